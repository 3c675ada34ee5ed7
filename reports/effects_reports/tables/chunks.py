"""Chunks of a run. What is written about an attempt matches its job and its lease: the fence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Store, as_json, columns_of

OPEN = "state IN ('pending', 'running')"
_PLACE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")


class NewChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One chunk to write: keys above `lo` up to and with `hi`. An open end is left out: null would be a value."""

    run_id: str
    ordinal: str
    lo: list[Any] | None = None
    hi: list[Any] | None = None
    rows_planned: int | None
    rows_before: int
    job_id: int


def _insert(sql: Sql) -> str:
    names = ", ".join(columns_of(NewChunk))
    return f"""
    INSERT INTO {sql.report_chunks} ({names}, updated_at)
    SELECT {names}, {sql.now} FROM {sql.rows("rows", NewChunk)} AS r"""


def insert_chunks(store: Store, connection: Connection, chunks: Sequence[NewChunk]) -> None:
    for start in range(0, len(chunks), 1000):
        store.write(connection, _insert, rows=as_json(chunks[start : start + 1000]))


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk as its row has it; the bounds are JSON texts."""

    run_id: str
    ordinal: str
    state: str
    lo: str | None
    hi: str | None
    rows_planned: int | None
    rows_before: int
    rows_seen: int
    rows_done: int
    bytes_done: int
    plain_bytes: int
    plain_crc32: int
    attempt: int
    job_id: int
    token: int
    part: str | None
    sha256: str | None
    boot: str | None
    route: str | None
    error_code: str | None
    error_text: str | None
    started_at: float | None
    finished_at: float | None

    @property
    def place(self) -> tuple[int, ...]:
        """Where its rows stand in the file: 00007.2 comes after 00007.1.2 and before 00008."""
        return tuple(int(number) for number in self.ordinal.split("."))


def _columns(sql: Sql) -> str:
    shown = {"lo": sql.json_text("lo"), "hi": sql.json_text("hi")}
    shown |= {name: sql.epoch(name) for name in ("started_at", "finished_at")}
    return ", ".join(f"{shown.get(name, name)} AS {name}" for name in Chunk.__struct_fields__)


def _of_run(sql: Sql) -> str:
    return f"SELECT {_columns(sql)} FROM {sql.report_chunks} WHERE run_id = :run_id"


def chunks_of(store: Store, connection: Connection, run_id: str) -> list[Chunk]:
    """All of them, split ones too, in the order of their rows.

    Raises:
        ValueError: the place of one cannot be read.
    """
    return sorted(_chunks(store, connection, run_id), key=lambda chunk: chunk.place)


def shown_chunks(store: Store, connection: Connection, run_id: str) -> list[Chunk]:
    """The same to be looked at: those whose place cannot be read come last."""
    chunks = _chunks(store, connection, run_id)
    return sorted(chunks, key=lambda chunk: (0, chunk.place) if _PLACE.fullmatch(chunk.ordinal) else (1, ()))


def _chunks(store: Store, connection: Connection, run_id: str) -> list[Chunk]:
    return [_chunk(row) for row in store.all(connection, _of_run, run_id=run_id)]


def _by_jobs(sql: Sql) -> str:
    return f"SELECT {_columns(sql)} FROM {sql.report_chunks} WHERE job_id {sql.any_of('ids', 'int')}"


def chunks_by_job(store: Store, connection: Connection, job_ids: Sequence[int]) -> dict[int, Chunk]:
    """Job id → the chunk that it is the newest job of."""
    return {row.job_id: _chunk(row) for row in store.all(connection, _by_jobs, ids=as_json(list(job_ids)))}


def _chunk(row: Row[Any]) -> Chunk:
    return Chunk(**row._mapping)


# -- an attempt -------------------------------------------------------------------------------------------------

_HELD = "run_id = :run_id AND ordinal = :ordinal AND job_id = :job_id AND token = :token AND state = 'running'"


def _begin(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_chunks} SET state = 'running', attempt = attempt + 1, token = :token, route = NULL,
        started_at = {sql.now}, finished_at = NULL, error_code = NULL, error_text = NULL, updated_at = {sql.now}
    WHERE run_id = :run_id AND ordinal = :ordinal AND job_id = :job_id AND token <= :token AND {OPEN}
    AND EXISTS (SELECT 1 FROM {sql.report_runs} AS r WHERE r.id = :run_id AND r.state = 'running')"""


def begin_chunk(store: Store, connection: Connection, chunk: Chunk, job_id: int, token: int) -> bool:
    """pending → running, for the attempt with this lease; False where it is no longer wanted, or another's."""
    return store.write(connection, _begin, **_names(chunk, job_id, token)) == 1


def _names(chunk: Chunk, job_id: int, token: int) -> dict[str, Any]:
    return {"run_id": chunk.run_id, "ordinal": chunk.ordinal, "job_id": job_id, "token": token}


def _flush(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_chunks} SET rows_seen = {sql.greatest("rows_seen", "CAST(:rows AS bigint)")},
        updated_at = {sql.now}
    WHERE {_HELD} AND EXISTS (SELECT 1 FROM {sql.report_runs} AS r WHERE r.id = :run_id AND r.state = 'running')"""


def flush_progress(store: Store, connection: Connection, chunk: Chunk, job_id: int, token: int, rows: int) -> bool:
    """Note how far the attempt is; False where it should stop: cancelled, failed, or another's by now."""
    return store.write(connection, _flush, rows=rows, **_names(chunk, job_id, token)) == 1


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt made."""

    rows: int
    bytes: int
    plain_bytes: int
    plain_crc32: int
    part: str
    sha256: str
    boot: str | None
    route: str
    end: list[Any] | None = None  # of an iterable with cursors, behind which something follows


def _finish(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_chunks} SET state = 'done', rows_done = :rows, rows_seen = :rows, bytes_done = :bytes,
        plain_bytes = :plain_bytes, plain_crc32 = :plain_crc32, part = :part,
        sha256 = :sha256, boot = :boot, route = :route, finished_at = {sql.now}, updated_at = {sql.now},
        hi = COALESCE(hi, {"CAST(:end AS jsonb)" if sql.postgresql else ":end"})
    WHERE {_HELD}"""


def finish_chunk(
    store: Store, connection: Connection, chunk: Chunk, job_id: int, token: int, finished: Finished
) -> bool:
    """running → done; False for a late attempt, whose part is then an orphan."""
    values = msgspec.structs.asdict(finished) | {"end": None if finished.end is None else as_json(finished.end)}
    return store.write(connection, _finish, **_names(chunk, job_id, token), **values) == 1


def _split(sql: Sql) -> str:
    return (
        f"UPDATE {sql.report_chunks} SET state = 'split', finished_at = {sql.now}, updated_at = {sql.now} WHERE {_HELD}"
    )


def split_chunk(store: Store, connection: Connection, chunk: Chunk, job_id: int, token: int) -> bool:
    """running → split: its halves take its place."""
    return store.write(connection, _split, **_names(chunk, job_id, token)) == 1


def _wait(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_chunks} SET state = 'pending', error_code = :code, error_text = :text, updated_at = {sql.now}
    WHERE {_HELD}"""


def wait_again(
    store: Store, connection: Connection, run_id: str, ordinal: str, job_id: int, token: int, *, code: str, text: str
) -> None:
    """running → pending: the attempt failed and its job is tried again."""
    values = {"run_id": run_id, "ordinal": ordinal, "job_id": job_id, "token": token, "code": code, "text": text}
    store.write(connection, _wait, **values)


def _end(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_chunks} SET state = :state, error_code = :code, error_text = :text, finished_at = {sql.now},
        updated_at = {sql.now}
    WHERE run_id = :run_id AND ordinal = :ordinal AND job_id = :job_id AND {OPEN}"""


def end_chunk(
    store: Store, connection: Connection, run_id: str, ordinal: str, job_id: int, *, state: str, code: str, text: str
) -> bool:
    """pending or running → failed or cancelled, because its job has ended so."""
    values = {"run_id": run_id, "ordinal": ordinal, "job_id": job_id, "state": state, "code": code, "text": text}
    return store.write(connection, _end, **values) == 1


# -- all of a run -----------------------------------------------------------------------------------------------


class ChunkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """A run's chunks, counted. Split ones are left out: their halves count."""

    pending: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    rows_seen: int = 0
    rows_done: int = 0
    bytes_done: int = 0
    rows_planned: int = 0
    unplanned: int = 0  # those of which the plan has not counted the rows
    seconds_done: float = 0.0  # that the finished ones took, together

    @property
    def chunks(self) -> int:
        return self.pending + self.running + self.done + self.failed + self.cancelled


def _count_by_state(sql: Sql) -> str:
    states = ("pending", "running", "done", "failed", "cancelled")
    counts = ", ".join(
        f"COALESCE(sum(CASE WHEN state = '{state}' THEN 1 ELSE 0 END), 0) AS {state}" for state in states
    )
    sums = ("rows_seen", "rows_done", "bytes_done", "rows_planned")
    numbers = ", ".join(f"CAST(COALESCE(sum({sql.finite(name)}), 0) AS bigint) AS {name}" for name in sums)
    unplanned = "sum(CASE WHEN rows_planned IS NULL THEN 1 ELSE 0 END)"
    took = f"sum(CASE WHEN state = 'done' THEN {sql.seconds('started_at', 'finished_at')} END)"
    return f"""
    SELECT run_id, {counts}, {numbers}, {unplanned} AS unplanned, COALESCE({took}, 0) AS seconds_done
    FROM {sql.report_chunks}
    WHERE run_id {sql.any_of("ids")} AND state <> 'split' GROUP BY run_id"""


def count_chunks(store: Store, connection: Connection, run_ids: Sequence[str]) -> dict[str, ChunkCounts]:
    """Run id → its chunks, counted again each time: no counter can drift."""
    counts_by_run = {}
    for row in store.all(connection, _count_by_state, ids=as_json(list(run_ids))):
        numbers = dict(row._mapping)
        run_id, seconds = numbers.pop("run_id"), float(numbers.pop("seconds_done"))
        counts_by_run[run_id] = ChunkCounts(
            **{name: int(number) for name, number in numbers.items()}, seconds_done=seconds
        )
    return counts_by_run


def counts(store: Store, connection: Connection, run_id: str) -> ChunkCounts:
    return count_chunks(store, connection, [run_id]).get(run_id, ChunkCounts())


def _again(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_chunks} AS t SET state = 'pending', job_id = r.job_id, token = 0, part = NULL, sha256 = NULL,
        boot = NULL, rows_done = 0, bytes_done = 0, error_code = NULL, error_text = NULL, finished_at = NULL,
        updated_at = {sql.now}
    FROM {sql.rows("rows", {"run_id": "text", "ordinal": "text", "job_id": "int"})} AS r
    WHERE t.run_id = r.run_id AND t.ordinal = r.ordinal"""


def make_again(store: Store, connection: Connection, run_id: str, jobs: Sequence[tuple[str, int]]) -> None:
    """These chunks (ordinal, new job) are pending once more."""
    rows = [{"run_id": run_id, "ordinal": ordinal, "job_id": job_id} for ordinal, job_id in jobs]
    store.write(connection, _again, rows=as_json(rows))


def _delete(sql: Sql) -> str:
    return f"DELETE FROM {sql.report_chunks} WHERE run_id = :run_id"


def delete_chunks(store: Store, connection: Connection, run_id: str) -> None:
    store.write(connection, _delete, run_id=run_id)
