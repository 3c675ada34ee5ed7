"""What a worker released and what came of it, in a file that survives its process, though not its host.

A worker that is killed together with the primary takes what it remembers along. Where EFFECTS_EVIDENCE_FOLDER names a
folder, the next worker on this host reads it there. The file holds a digest of each payload, and no answer of a peer.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from effects.kit.logs import RateLimitedLogger, own_logger
from effects.kit.process import create_private
from effects.model.job import AttemptId, Job, JobStatus
from effects.model.settlement import Settlement, Verdict
from effects.store.recovery.comparison import Remembered, payload_digest

SUFFIX = ".evidence"
TURN_SECONDS = 60.0  # after which the file begins again, and what it held is kept beside it for as long
LEFT_SECONDS_MAX = 86_400.0  # older ones are deleted unread

_log = own_logger("effects.worker")


class EvidenceLine(msgspec.Struct, omit_defaults=True, array_like=True):
    """One attempt. `status` is empty where its release is all that is known."""

    at: float  # by the clock of this host
    worker: str
    id: int
    token: int
    job_type: str
    key: str | None
    queue: str
    digest: str
    cluster: str | None = None
    claimed: bool = False
    status: str = ""
    outcome: str = ""
    verdict: str | None = None
    delay_seconds: float = 0.0
    error_code: str | None = None


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(EvidenceLine)


class EvidenceFile:
    """The file of one worker process, locked while it lives. Each batch is one write.

    Args:
        folder: made if it is missing, for its owner alone.
        cluster: of the database; evidence of one says nothing of another.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, name: str, cluster: str | None) -> None:
        self._cluster = cluster
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._paths = [folder / f"{name}.{half}{SUFFIX}" for half in (0, 1)]
        self._files = [create_private(path) for path in self._paths]
        for file in self._files:
            fcntl.flock(file, fcntl.LOCK_EX)
        self._half, self._turned_at = 0, time.monotonic()
        self._not_kept = RateLimitedLogger(_log, "evidence.not_kept")

    def add(self, batch: Iterable[Remembered], worker: str) -> None:
        """Append these attempts. A full disk goes without them, which is logged now and then."""
        if time.monotonic() - self._turned_at > TURN_SECONDS:
            self._half, self._turned_at = 1 - self._half, time.monotonic()
            self._files[self._half].seek(0)
            self._files[self._half].truncate()
        now = time.time()
        lines = b"".join(_encode(_line(remembered, now, worker, self._cluster)) + b"\n" for remembered in batch)
        try:
            self._files[self._half].write(lines)
        except OSError as error:
            self._not_kept.error(f"{type(error).__name__}: {error.strerror}")

    def close(self) -> None:
        """The worker ended in order: nothing of it is in doubt."""
        for path, file in zip(self._paths, self._files, strict=True):
            path.unlink(missing_ok=True)
            file.close()


def _line(remembered: Remembered, now: float, worker: str, cluster: str | None) -> EvidenceLine:
    job, settlement = remembered.job, remembered.settlement
    line = EvidenceLine(
        now,
        worker,
        job.id,
        job.lease_token,
        job.job_type,
        job.key,
        job.queue,
        payload_digest(job.payload),
        cluster,
        remembered.claimed,
    )
    if settlement is not None and settlement.apply is None:  # what was to be written with it is not in the file
        line.status, line.outcome, line.verdict = settlement.status, settlement.outcome, settlement.verdict
        line.delay_seconds, line.error_code = settlement.delay_seconds, settlement.error_code
    return line


class LeftBehind(msgspec.Struct, frozen=True):
    """What dead processes have left in a folder."""

    paths: list[Path]
    attempts: list[Remembered]
    workers: set[str]

    def delete(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)


def read_left_behind(folder: Path, now: float, cluster: str | None) -> LeftBehind:
    """Read the files of processes that are gone; those of living ones are locked.

    Args:
        now: the worker's monotonic clock.
        cluster: of the database.
    """
    left = LeftBehind([], [], set())
    latest: dict[AttemptId, EvidenceLine] = {}  # over all halves of all files
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # BlockingIOError: its worker lives
            lines = [line for line in _lines(file) if line.cluster == cluster]
            left.paths.append(path)
            left.workers.update(line.worker for line in lines)
            for line in lines:
                if (before := latest.get((line.id, line.token))) is None or before.at <= line.at:
                    latest[line.id, line.token] = line
    left.attempts.extend(_remembered(line, now) for line in latest.values())
    return left


def _lines(file: Iterable[bytes]) -> Iterator[EvidenceLine]:
    oldest = time.time() - LEFT_SECONDS_MAX
    for text in file:
        with suppress(msgspec.MsgspecError):  # the last one may be half written
            line = _decoder.decode(text)
            if line.at > oldest:
                yield line


def _remembered(line: EvidenceLine, now: float) -> Remembered:
    job = _job(line)
    at = now - max(0.0, time.time() - line.at)
    return Remembered(job, at, _settlement(line, job), digest=line.digest, claimed=line.claimed)


def _job(line: EvidenceLine) -> Job:
    return Job(
        id=line.id, job_type=line.job_type, payload="", queue=line.queue, priority=0, attempts=1, max_attempts=None,
        lease_token=line.token, lost_count=0, unknown_count=0, routed=True, cancel_requested=False, age_seconds=0.0,
        key=line.key,
    )  # fmt: skip


def _settlement(line: EvidenceLine, job: Job) -> Settlement | None:
    if not line.status:
        return None
    status: JobStatus = msgspec.convert(line.status, JobStatus)
    verdict: Verdict | None = msgspec.convert(line.verdict, Verdict | None)
    return Settlement(
        job=job, status=status, outcome=line.outcome, verdict=verdict, delay_seconds=line.delay_seconds,
        error_code=line.error_code,
    )  # fmt: skip
