"""The job type `report.chunk`: one range of a report, written as one part."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects import Attempt, Cancelled, Done, Effects, Job, Outcome, Snooze
from effects.extend.files import StorageFull
from effects.extend.process import own_logger, point
from effects.extend.text import exact_moment
from effects_reports.definitions.definition import ReportDefinition
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import ChunkSource, Format
from effects_reports.jobs.plan import stored_since
from effects_reports.jobs.step import ReportWork, RunPayload, Shares, check_unchanged, frozen_sheets, sheet_of
from effects_reports.loading import LoadedChunk, load_chunks
from effects_reports.readers import choose_route, write_chunk
from effects_reports.routing import CHUNK_PRIORITY, CHUNK_TYPE, report_of
from effects_reports.runs import state_machine
from effects_reports.runs.planner import Resolved, resolve_parts
from effects_reports.source import statements as source
from effects_reports.source.paging import Key, PagedRows, cursor_from_json, cursor_to_json, key_from_json, key_to_json
from effects_reports.source.replica import Position, ReplicaUnfit, was_conflict
from effects_reports.source.snapshot import SnapshotLost, was_too_long
from effects_reports.state import ChunkRoom, ReportRegistry, state_of
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables.chunks import Chunk, Finished
from effects_reports.tables.runs import Run

FLUSH_SECONDS = 1.0
_ROOM_SECONDS = 1.0  # an attempt waits so long for room, and then lets others have its thread
NO_ROOM = "this worker makes as many chunks as it has cores, or memory (EFFECTS_REPORT_MEMORY)"
_CONFLICTS_MAX = 3
CONFLICT = "the replica ended the statement: it had to replay what changes its rows (max_standby_streaming_delay)"
_SNAPSHOT_LOST = "the snapshot is gone: the worker that held it has ended, or 15 minutes were over"
_log = own_logger("effects.reports")


class ChunkPayload(RunPayload, frozen=True):
    """Which chunk of which run."""

    ordinal: str


class _TooLong(Exception):
    """Half of the time limit is over, and the part is not written."""


class _ChunkUnwanted(Exception):
    """The run was cancelled or has failed, or the chunk is another attempt's."""


class ReportChunk(ReportWork[ChunkPayload]):
    """Reads one range and writes it to its own object name, `…/parts/<ordinal>.<attempt>.<random>`.

    The chunk's row names the part once it is whole; objects without a row are orphans and are deleted. After half of
    its time limit, or without memory, a chunk is replaced by its two halves; one that cannot be divided fails.
    """

    name = CHUNK_TYPE
    payload = ChunkPayload
    priority = CHUNK_PRIORITY
    time_limit_seconds = 900.0

    def __init__(self, app: Effects, registry: ReportRegistry, shares: Shares) -> None:
        super().__init__(app, registry)
        self._shares = shares
        self.full_of_formulas: set[str] = set()  # reports of which PostgreSQL is to look at each text, as seen here

    def max_in_flight(self, limit_key: str) -> int | None:
        name, share = report_of(limit_key), self._shares.of(limit_key)
        room = self.room.most(name, by_python=self.registry.is_encoded_by_python(name))
        return room if share is None else min(share, room)

    @property
    def room(self) -> ChunkRoom:
        """That of the process, for all its reports."""
        return state_of(self.app).room

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, ChunkPayload]]) -> Mapping[int, Any]:
        loaded = load_chunks(self.app, connection, [(job, payload.run_id) for job, payload in jobs])
        self._shares.update(connection, [each.run.report for each in loaded.values() if each.run is not None])
        return loaded

    def perform(self, payload: ChunkPayload, attempt: Attempt) -> Outcome:
        loaded: LoadedChunk = attempt.loaded
        if loaded.run is None or loaded.chunk is None:
            return Cancelled("another job makes this chunk, or it is no longer needed")
        if (waiting := self.unknown_report(loaded.run) or self.missing_packing(loaded.run)) is not None:
            return waiting
        return _ChunkAttempt(self, loaded.run, loaded.chunk, loaded.job_id, loaded.token, attempt).outcome()


class _ChunkAttempt:
    """One attempt at one chunk."""

    def __init__(
        self, job_type: ReportChunk, run: Run, chunk: Chunk, job_id: int, token: int, attempt: Attempt
    ) -> None:
        self._job_type, self._app, self._registry = job_type, job_type.app, job_type.registry
        self._run, self._chunk, self._job_id, self._token = run, chunk, job_id, token
        self._attempt = attempt
        self._began = self._flushed = time.monotonic()
        self._definition = self._registry.get(run.report)
        self._sheets = frozen_sheets(run.columns)
        self._sheet = sheet_of(self._sheets, chunk)
        self._source, self._from_primary = self._registry.source_of(self._definition), False
        # The other half is for finding the middle. What has none gets all but the time to end in order.
        self._soft_seconds = job_type.time_limit_seconds * (0.5 if self._divisible else 0.95)

    def outcome(self) -> Outcome:
        if self._run.state != "running":
            return Cancelled("the run is no longer running")
        seconds = self._attempt.remaining_seconds() / 4 if self._attempt.draining else _ROOM_SECONDS
        by_python = self._is_encoded_by_python()
        with self._job_type.room.hold(self._run.report, by_python=by_python, seconds=seconds) as has_room:
            return self._outcome_in_room() if has_room else Snooze(_ROOM_SECONDS, NO_ROOM, ages=False)

    def _is_encoded_by_python(self) -> bool:
        resolved = self._resolved()
        if self._definition.paged or resolved.statement is None:
            return True
        dialect_name = self._registry.engine_of(self._definition).dialect.name
        return choose_route(resolved.chunk_source(), resolved.file, dialect_name) != "copy"

    def _outcome_in_room(self) -> Outcome:
        self._began = self._flushed = time.monotonic()
        self._soft_seconds = min(self._soft_seconds, self._attempt.remaining_seconds() * 0.95)
        if not self._fenced(chunk_table.begin_chunk):
            return Cancelled("the run is not running, or another job makes this chunk")
        point("report.chunk_begun")
        return self._outcome_of_writing()

    def _outcome_of_writing(self) -> Outcome:
        try:
            return self._write()
        except _ChunkUnwanted:
            return Cancelled("the run is no longer running")
        except SnapshotLost:
            apply = partial(state_machine.snapshot_lost, self._app, run=self._run, reason=_SNAPSHOT_LOST)
            return Done(apply=apply, detail={"snapshot_lost": True})
        except (_TooLong, MemoryError) as error:
            return self._split(error)
        except StorageFull as full:
            return self._job_type.wait_for_room(self._run, full)
        except ReplicaUnfit as unfit:
            return self._job_type.wait_for_replica(unfit)
        except Exception as error:
            if was_too_long(error):
                return self._split(error)
            if self._source.replica is not None and was_conflict(error):
                return self._conflicted(error)
            raise

    def _conflicted(self, error: Exception) -> Outcome:
        """The replica had to replay what would change the rows under the reader: again, elsewhere, or in two halves."""
        replica = self._source.replica
        if (
            replica is not None
            and replica.behind == "primary"
            and self._run.snapshot is None
            and not self._from_primary
        ):
            self._from_primary = True
            return self._outcome_of_writing()
        if self._chunk.attempt < _CONFLICTS_MAX:
            return self._job_type.wait_for_replica(ReplicaUnfit("replica_conflict", CONFLICT))
        if self._divisible:
            return self._split(error)
        raise error

    def _fenced(self, step: Any, **arguments: Any) -> bool:
        with self._app.store.begin() as connection:
            return bool(step(self._app.store, connection, self._chunk, self._job_id, self._token, **arguments))

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self) -> Outcome:
        resolved = self._resolved()
        name = f"{self._run.prefix}/parts/{self._chunk.ordinal}.{self._attempt.number}.{secrets.token_hex(4)}"
        storage = self._app.storage
        chunk_source = self._chunk_source(resolved)
        with self._reading(resolved, self._soft_seconds) as connection, storage.writer(name, durable=False) as out:
            result = write_chunk(chunk_source, resolved.file, connection, out, progress=self._progress)
            point("report.part_written")
            stored = out.finish()
        if result.formulas:
            self._job_type.full_of_formulas.add(self._run.report)
        point("report.part_renamed")
        if not self._fenced(chunk_table.flush_progress, rows=result.rows):
            storage.delete([name])
            raise _ChunkUnwanted
        finished = Finished(
            rows=result.rows, bytes=stored.size_bytes, plain_bytes=result.plain_bytes, plain_crc32=result.plain_crc32,
            part=name, sha256=stored.sha256, boot=stored.boot, route=result.route, end=_end(chunk_source),
        )  # fmt: skip
        apply = partial(
            state_machine.chunk_done,
            self._app,
            run=self._run,
            chunk=self._chunk,
            job_id=self._job_id,
            token=self._token,
            finished=finished,
            rows_max=self._definition.rows_max,
        )
        detail = {"rows": finished.rows, "bytes": finished.bytes, "route": finished.route}
        return Done(apply=apply, detail=detail | self._cut(resolved.file))

    @property
    def _part(self) -> ReportDefinition:
        """What the chunk is of: the report, or a sheet of it."""
        return self._definition.parts[min(self._sheet, len(self._definition.parts) - 1)]  # there may be fewer by now

    def _chunk_source(self, resolved: Resolved) -> ChunkSource:
        chunk = self._chunk
        if not self._definition.paged:
            chunk_source = resolved.chunk_source(key_from_json(chunk.lo), key_from_json(chunk.hi))
            is_full = self._run.report in self._job_type.full_of_formulas
            return replace(chunk_source, formulas=is_full, rows_before=chunk.rows_before)
        after = cursor_from_json(chunk.lo)
        rows = PagedRows(
            resolved.pages(after), after=after, until=cursor_from_json(chunk.hi),
            rows_min=self._definition.rows_of_a_chunk("iterable"), seconds=self._soft_seconds / 2,
        )  # fmt: skip
        return ChunkSource(columns=resolved.columns, rows=rows, rows_before=chunk.rows_before)

    def _cut(self, file: Format) -> dict[str, int]:
        """How many texts were too long for their cells, in the log too."""
        if not (cut := getattr(file, "texts_cut", 0)):
            return {}
        where = {"run": self._run.id, "chunk": self._chunk.ordinal, "texts": cut}
        _log.warning("report.texts_cut", extra=where)
        return {"texts_cut": cut}

    def _resolved(self) -> Resolved:
        """The part of the report that the chunk is of.

        Raises:
            ReportRefused: the definition is no longer the one that was planned.
        """
        assert self._run.as_of is not None  # frozen by the plan
        as_of = exact_moment(self._run.as_of)
        params = self._definition.read_params(msgspec.json.decode(self._run.params))
        since = stored_since(self._app, self._definition, self._run.id)
        run = self._run
        parts = resolve_parts(
            self._definition, params, run.format, run.dialect, as_of, since=since, packing=run.packing
        )
        check_unchanged(self._definition, run, self._sheets, parts)
        return parts[self._sheet]

    def _reading(self, resolved: Resolved, seconds: float) -> Any:
        if resolved.statement is None:
            return nullcontext()
        run = self._run
        position = None if run.read_position is None else Position(str(run.read_from), run.read_position)
        return self._source.reading(
            seconds=seconds, snapshot=run.snapshot, position=position, primary=self._from_primary
        )

    def _progress(self, rows: int, size: int) -> None:
        """Report the progress once a second, and return whether to continue."""
        now = time.monotonic()
        if now - self._began > self._soft_seconds:
            raise _TooLong
        if now - self._flushed < FLUSH_SECONDS:
            return
        self._flushed = now
        if self._attempt.cancel_requested or not self._fenced(chunk_table.flush_progress, rows=rows):
            raise _ChunkUnwanted

    # -- splitting -----------------------------------------------------------------------------------------------

    def _split(self, cause: Exception) -> Outcome:
        """Replace the chunk by its halves.

        Raises:
            ReportRefused: it cannot be halved.
        """
        middle = self._middle()
        if middle is None:
            raise ReportRefused(
                f"chunk {self._chunk.ordinal} took more than {self._soft_seconds:g} s or too much memory, and cannot "
                "be divided: give the report a key with an index, or a smaller range",
                code="chunk_too_long",
            ) from cause
        _log.warning("report.chunk_split", extra={"run": self._run.id, "chunk": self._chunk.ordinal})
        apply = partial(
            state_machine.split, self._app, run=self._run, chunk=self._chunk, job_id=self._job_id, token=self._token,
            middle=key_to_json(middle),
        )  # fmt: skip
        return Done(apply=apply, detail={"split": True})

    @property
    def _divisible(self) -> bool:
        return self._part.consistency != "single" and (self._chunk.rows_planned or 0) >= 2

    @property
    def _half(self) -> int:
        return ((self._chunk.rows_planned or 0) + 1) // 2

    def _middle(self) -> Key | None:
        """The key in the middle of the range; None where there is nothing to divide."""
        if not self._divisible:
            return None
        lo, hi = key_from_json(self._chunk.lo), key_from_json(self._chunk.hi)
        resolved = self._resolved()
        with self._reading(resolved, self._attempt.remaining_seconds()) as connection:
            return source.nth_key(connection, resolved.statement, resolved.definition.key, lo, hi, self._half)


def _end(chunk_source: ChunkSource) -> list[Any] | None:
    """Where the next chunk of an iterable begins."""
    rows = chunk_source.rows
    return cursor_to_json(rows.end) if isinstance(rows, PagedRows) and rows.end is not None else None
