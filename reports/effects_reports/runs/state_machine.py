"""The state machine of a run: its transitions, with the jobs that follow. Each is part of a transaction.

    requested → planning → running → assembling → ready → expired
                                                  failed, cancelling → cancelled; resume: failed, cancelled → running

A step is one conditional update; the jobs of the next state are written with it or not at all. Where a decision
depends on all chunks, the run's row is locked first and the chunks are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import NewJob, enqueue
from effects.extend.actions import IGNORE, record_action
from effects.extend.jobs import ensure_limit, insert_reserved, reserve_jobs
from effects.extend.text import moment
from effects_reports.routing import (
    CLEANUP_TYPE,
    assemble_job,
    chunk_job,
    limit_key,
    plan_job,
)
from effects_reports.runs.notify import tell
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import reports as report_table
from effects_reports.tables import runs as run_table
from effects_reports.tables import watermarks
from effects_reports.tables.chunks import Chunk, ChunkCounts, Finished, NewChunk
from effects_reports.tables.reports import Artifact
from effects_reports.tables.retention import dead_jobs
from effects_reports.tables.runs import Planned, Run

if TYPE_CHECKING:
    from effects import Effects

ASSEMBLY_SHARE = 0.05  # of the bar is kept for joining the parts


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, as `report_status` reads it. `fraction` is 0 to 1 and never less than it was before."""

    fraction: float
    rows_done: int
    rows_total: int | None
    total_kind: str
    bytes_done: int
    chunks_done: int
    chunks_total: int
    rows_per_second: float | None
    seconds_left: float | None


def progress_of(run: Run, counts: ChunkCounts) -> Progress:
    """The run's progress by its chunks.

    Rows that an attempt has read count at once; another attempt at the same chunk reads them again, and until it has
    come as far nothing moves. The rate is that of the finished chunks, times those that run now.
    """
    rate = _rate(counts)
    total = run.rows_total
    left = None if rate is None or total is None or run.state != "running" else max(0, total - counts.rows_seen) / rate
    return Progress(
        fraction=max(run.progress_floor, _fraction(run, counts)),
        rows_done=counts.rows_seen if total is None or run.total_kind != "exact" else min(counts.rows_seen, total),
        rows_total=total,
        total_kind=run.total_kind,
        bytes_done=counts.bytes_done,
        chunks_done=counts.done,
        chunks_total=counts.chunks,
        rows_per_second=rate,
        seconds_left=left,
    )


def _has_all_chunks(run: Run, counts: ChunkCounts) -> bool:
    """Whether the chunks hold all rows that the plan has counted; of rows that it has not, whether there is a chunk."""
    if run.total_kind != "exact" or counts.unplanned:
        return counts.chunks > 0
    return counts.rows_planned == run.rows_total


def _fraction(run: Run, counts: ChunkCounts) -> float:
    if run.state in ("ready", "expired"):
        return 1.0
    if run.state == "assembling":
        return 1.0 - ASSEMBLY_SHARE
    if not counts.chunks:
        return 0.0
    done = min(1.0, counts.rows_seen / run.rows_total) if run.rows_total else counts.done / counts.chunks
    return (1.0 - ASSEMBLY_SHARE) * done


def _rate(counts: ChunkCounts) -> float | None:
    if not counts.rows_done or counts.seconds_done <= 0:
        return None
    return counts.rows_done / counts.seconds_done * max(1, counts.running)


_REPAIRS_MAX = 2
_SNAPSHOT_RESTARTS_MAX = 2


class Range(msgspec.Struct, frozen=True):
    """Keys above `lo` up to and with `hi`, as JSON holds them; `before`: how many rows of its sheet precede them."""

    ordinal: str
    lo: list[Any] | None
    hi: list[Any] | None
    rows: int | None
    before: int = 0


def _insert(app: Effects, connection: Connection, run_id: str, jobs: Sequence[NewJob]) -> list[int]:
    reserved = reserve_jobs(app, connection, jobs)
    insert_reserved(app, connection, reserved)
    if reserved:
        report_table.name_job(app.store, connection, run_id, reserved[-1].id)
    return [job.id for job in reserved]


def _lock_current(app: Effects, connection: Connection, run: Run, state: str) -> Run | None:
    """The run, locked; None where it is no longer in this state, or has been resumed since."""
    current = run_table.lock_run(app.store, connection, run.id)
    return current if current is not None and (current.state, current.round) == (state, run.round) else None


# -- forward ----------------------------------------------------------------------------------------------------


def planned(
    app: Effects, connection: Connection, run: Run, plan: Planned, ranges: Sequence[Range], parallel: int
) -> None:
    """planning → running, with a chunk and a job for each range; without any, → assembling: an empty file is a file."""
    if not run_table.commit_plan(app.store, connection, run, plan):
        return
    ensure_limit(app.store, connection, limit_key(run.report), max_in_flight=parallel)
    _add_chunks(app, connection, run, ranges)
    if not ranges:
        close(app, connection, run.id)


def _add_chunks(app: Effects, connection: Connection, run: Run, ranges: Sequence[Range]) -> None:
    ids = _insert(app, connection, run.id, [chunk_job(run, chunk_range.ordinal) for chunk_range in ranges])
    chunks = [
        NewChunk(
            run_id=run.id,
            ordinal=chunk_range.ordinal,
            lo=chunk_range.lo,
            hi=chunk_range.hi,
            rows_planned=chunk_range.rows,
            rows_before=chunk_range.before,
            job_id=job_id,
        )
        for chunk_range, job_id in zip(ranges, ids, strict=True)
    ]
    chunk_table.insert_chunks(app.store, connection, chunks)


def chunk_done(
    app: Effects, connection: Connection, run: Run, chunk: Chunk, job_id: int, token: int, finished: Finished,
    rows_max: int,
) -> None:  # fmt: skip
    """A chunk's part is whole; where it was the last, the run continues. Behind an iterable's the next one follows."""
    if not chunk_table.finish_chunk(app.store, connection, chunk, job_id, token, finished):
        return
    if run.full_since is not None:
        run_table.note_room(app.store, connection, run.id)
    if finished.end is not None and chunk.hi is None:
        if chunk_table.counts(app.store, connection, run.id).rows_done > rows_max:
            fail(app, connection, run.id, "too_many_rows", f"it has more than {rows_max:,} rows, which is its rows_max")
        else:
            following = f"{int(chunk.ordinal) + 1:05}"
            before = chunk.rows_before + finished.rows
            _add_chunks(app, connection, run, [Range(following, finished.end, None, None, before)])
    close(app, connection, run.id)


def close(app: Effects, connection: Connection, run_id: str) -> None:
    """After a chunk's end: running → assembling or failed, cancelling → cancelled, according to its chunks.

    Exactly once: the run's row is locked, the chunks are counted, and the update names the state that it leaves.
    """
    run = run_table.lock_run(app.store, connection, run_id)
    if run is None:
        return
    counts = chunk_table.counts(app.store, connection, run_id)
    if run.state == "cancelling" and not counts.running:
        if run_table.become_cancelled(app.store, connection, run_id):
            report_table.settle(app.store, connection, run_id, "abandoned")
    elif run.state == "running" and counts.failed + counts.cancelled:
        text = f"{counts.failed} of {counts.chunks} chunks failed and {counts.cancelled} were cancelled"
        fail(app, connection, run_id, "chunk_failed" if counts.failed else "chunk_cancelled", text)
    elif run.state == "running" and run.bytes_max is not None and counts.bytes_done > run.bytes_max:
        text = f"its parts have {counts.bytes_done:,} bytes and its definition allows {run.bytes_max:,} (bytes_max)"
        fail(app, connection, run_id, "too_many_bytes", text)
    elif run.state == "running" and not _has_all_chunks(run, counts):
        text = f"{counts.chunks} chunks are not all that its plan made; `effects retry {run_id}` plans it again"
        fail(app, connection, run_id, "chunks_missing", text)
    elif not counts.pending and not counts.running and run_table.begin_assembling(app.store, connection, run_id):
        _insert(app, connection, run_id, [assemble_job(run)])


def ready(app: Effects, connection: Connection, run: Run, artifact: Artifact) -> None:
    """assembling → ready: record the artifact, enqueue its notices and the cleanup of its parts."""
    if _lock_current(app, connection, run, "assembling") is None:
        return
    if watermarks.is_superseded(app.store, connection, run.id):
        fail(app, connection, run.id, "superseded", "another run of this report has begun with the same rows since")
        return
    if not run_table.become_ready(app.store, connection, run):
        return
    watermarks.advance(app.store, connection, run.id)
    report_table.record_artifact(app.store, connection, run.id, artifact)
    tell(app, connection, run, "ready", artifact, "")
    enqueue(CLEANUP_TYPE, {"run_id": run.id}, session=connection, effects=app)


# -- aside ------------------------------------------------------------------------------------------------------


def fail(app: Effects, connection: Connection, run_id: str, code: str, text: str) -> None:
    """Whatever it was doing → failed. Chunks that are done are kept for `resume`; those that wait end by themselves."""
    _raise_floor(app, connection, run_id)
    run = run_table.get_run(app.store, connection, run_id)
    if run is not None and run_table.become_failed(app.store, connection, run_id, code, text):
        report_table.settle(app.store, connection, run_id, "refused")
        tell(app, connection, run, "failed", None, text)


def cancel(app: Effects, connection: Connection, run_id: str) -> str | None:
    """→ cancelling, and → cancelled at once where no chunk is under way; the state, None where it had ended."""
    if not run_table.begin_cancelling(app.store, connection, run_id):
        return None
    _raise_floor(app, connection, run_id)
    close(app, connection, run_id)
    run = run_table.get_run(app.store, connection, run_id)
    return None if run is None else run.state


def _raise_floor(app: Effects, connection: Connection, run_id: str) -> float:
    """Keep what progress has been shown; what follows counts again."""
    run = run_table.get_run(app.store, connection, run_id)
    if run is None:
        return 0.0
    floor = progress_of(run, chunk_table.counts(app.store, connection, run_id)).fraction
    run_table.raise_floor(app.store, connection, run_id, floor)
    return floor


# -- again ------------------------------------------------------------------------------------------------------


def resume(app: Effects, connection: Connection, run: Run, *, actor: str, reason: str | None) -> str | None:
    """failed or cancelled → running with the chunks that are done, or → requested where they are not all there.

    Returns:
        The new state; None if the run's state cannot be resumed.
    """
    if run.state not in ("failed", "cancelled"):
        return None
    is_kept = run.snapshot is None and _has_all_chunks(run, chunk_table.counts(app.store, connection, run.id))
    state = "running" if is_kept else "requested"
    floor = _raise_floor(app, connection, run.id)
    if not run_table.restart(app.store, connection, run, state, floor=floor):
        return None
    _close_dead_letters(app, connection, run, actor, reason or f"run {run.id} was resumed")
    fresh = msgspec.structs.replace(run, state=state, round=run.round + 1)
    if state == "requested":
        _plan_again(app, connection, fresh)
        return state
    chunks = chunk_table.chunks_of(app.store, connection, run.id)
    again = [chunk.ordinal for chunk in chunks if chunk.state not in ("done", "split")]
    now = moment(app.store.now(connection))
    ids = _insert(app, connection, run.id, [chunk_job(fresh, ordinal, run_at=now) for ordinal in again])
    chunk_table.make_again(app.store, connection, run.id, list(zip(again, ids, strict=True)))
    if not again:
        close(app, connection, run.id)
    return state


def _close_dead_letters(app: Effects, connection: Connection, run: Run, actor: str, reason: str) -> None:
    """What the run's dead jobs left undone is taken up by others: no person need look at them any more."""
    artifact = report_table.generated(app.store, connection, [run.id]).get(run.id)
    ids = [chunk.job_id for chunk in chunk_table.chunks_of(app.store, connection, run.id) if chunk.state == "failed"]
    ids += [artifact.job_id] if artifact is not None else []
    for job_id in dead_jobs(app.store, connection, ids):
        record_action(app.store, connection, job_id, IGNORE, actor, reason)


def _plan_again(app: Effects, connection: Connection, run: Run) -> None:
    run_table.forget_plan(app.store, connection, run.id)
    chunk_table.delete_chunks(app.store, connection, run.id)
    _insert(app, connection, run.id, [plan_job(run.id, run.report, run.round)])


def snapshot_lost(app: Effects, connection: Connection, run: Run, reason: str) -> None:
    """running → requested: what all chunks have read together is gone, so all are read again; twice at most."""
    current = _lock_current(app, connection, run, "running")
    if current is None:
        return
    if current.snapshot_restarts >= _SNAPSHOT_RESTARTS_MAX:
        fail(app, connection, run.id, "snapshot_lost", f"{reason}, for the third time")
        return
    floor = _raise_floor(app, connection, run.id)
    if run_table.restart(app.store, connection, current, "requested", floor=floor, restarts=1):
        _plan_again(app, connection, msgspec.structs.replace(current, round=current.round + 1))


def split(app: Effects, connection: Connection, run: Run, chunk: Chunk, job_id: int, token: int, middle: Any) -> None:
    """A chunk that took too long, or too much memory, is replaced by its two halves."""
    _raise_floor(app, connection, run.id)
    if not chunk_table.split_chunk(app.store, connection, chunk, job_id, token):
        return
    lo, hi = (None if text is None else msgspec.json.decode(text) for text in (chunk.lo, chunk.hi))
    half = None if chunk.rows_planned is None else (chunk.rows_planned + 1) // 2
    rest = None if chunk.rows_planned is None or half is None else chunk.rows_planned - half
    before = chunk.rows_before
    halves = [
        Range(f"{chunk.ordinal}.1", lo, middle, half, before),
        Range(f"{chunk.ordinal}.2", middle, hi, rest, before + (half or 0)),
    ]
    _add_chunks(app, connection, run, halves)


def parts_missing(app: Effects, connection: Connection, run: Run, ordinals: Sequence[str]) -> None:
    """assembling → running: parts are gone or altered, and are made again; twice at most."""
    current = _lock_current(app, connection, run, "assembling")
    if current is None:
        return
    if current.repairs >= _REPAIRS_MAX:
        text = f"{len(ordinals)} parts were missing or altered in the storage, for the third time"
        fail(app, connection, run.id, "parts_missing", text)
    elif run_table.back_to_running(app.store, connection, current):
        fresh = msgspec.structs.replace(current, round=current.round + 1)
        ids = _insert(app, connection, run.id, [chunk_job(fresh, ordinal) for ordinal in ordinals])
        chunk_table.make_again(app.store, connection, run.id, list(zip(ordinals, ids, strict=True)))


def begin_again(app: Effects, connection: Connection, run: Run) -> None:
    """Enqueue the missing job of a run to be planned or assembled."""
    job = assemble_job(run) if run.state == "assembling" else plan_job(run.id, run.report, run.round)
    _insert(app, connection, run.id, [job])


# -- the end of a job --------------------------------------------------------------------------------------------


def chunk_ended(
    app: Effects, connection: Connection, run_id: str, ordinal: str, job_id: int, *, died: bool, code: str, text: str
) -> None:
    """End the run's wait for a chunk whose job ended without its part: dead, poisoned or cancelled."""
    state = "failed" if died else "cancelled"
    ending = {"state": state, "code": code, "text": text}
    if not chunk_table.end_chunk(app.store, connection, run_id, ordinal, job_id, **ending):
        return
    if died:
        fail(app, connection, run_id, code, f"chunk {ordinal}: {text}")
    close(app, connection, run_id)
