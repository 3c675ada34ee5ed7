"""Writing many jobs by COPY: through psycopg's own connection, inside the transaction of the caller.

Whatever goes wrong is undone to a savepoint, and the statements that follow instead say what it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from effects.moments import moment
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.enqueue.new_rows import JobRow

ROWS_MIN = 500  # below, one statement is as quick
ROWS_MAX = 5000  # by one COPY, so that none outlasts a statement_timeout that the statements would not
BLOCK_ROWS = 250  # sent at a time
_ALWAYS = "id, job_type, queue, priority, payload, routed"
_TIMES = "run_at, age_from, created_at, updated_at"
# Field → column, written where a row of the batch has it.
_OPTIONAL = {
    "max_attempts": "max_attempts", "group_key": "group_key", "limit_key": "limit_key", "key": "idempotency_key",
    "trace_context": "trace_context", "on_unknown": "on_unknown", "requeued_from": "requeued_from",
}  # fmt: skip
Intend = Callable[[Sequence[JobRow]], set[int]]


def can_copy(store: Store, connection: Connection, count: int) -> bool:
    """Whether so many rows are better copied, and the driver of this connection can."""
    return store.is_postgresql and count >= ROWS_MIN and _is_psycopg(connection)


def _is_psycopg(connection: Connection) -> bool:
    psycopg = sys.modules.get("psycopg")
    driver: Any = connection.connection.driver_connection
    return psycopg is not None and isinstance(getattr(driver, "driver", driver), psycopg.Connection)


def copy_jobs(store: Store, connection: Connection, rows: Sequence[JobRow], intend: Intend) -> dict[int, int] | None:
    """Insert at most `ROWS_MAX` rows, whose groups are locked.

    Args:
        rows: each gets its id.
        intend: writes the intents of rows that have their ids, and gives the ids of those whose keys were free.

    Returns:
        `n` → job id of every row that was inserted; None where the database refused something, and nothing was.
    """
    from psycopg import Error  # noqa: PLC0415 - `can_copy` has found it; an app on SQLite needs none

    now = _reserve(store, connection, rows)
    savepoint = connection.begin_nested()
    try:
        free = _with_free_keys(rows, intend)
        _copy(store, connection, free, now)
    except (Error, UnicodeError):
        savepoint.rollback()
        return None
    except BaseException:
        if savepoint.is_active:
            savepoint.rollback()
        raise
    savepoint.commit()
    return {row.n: row.id for row in free if row.id is not None}


def _reserve(store: Store, connection: Connection, rows: Sequence[JobRow]) -> datetime:
    """Give ids to the rows without; the database's time."""
    new = [row for row in rows if row.id is None]
    reserved = store.row(connection, _next_ids, count=len(new))
    assert reserved is not None
    for row, job_id in zip(new, (reserved.ids or "").split(","), strict=False):
        row.id = int(job_id)
    now: datetime = reserved.now
    return now.astimezone(UTC)


def _next_ids(sql: Sql) -> str:
    return f"""
    SELECT string_agg(CAST(nextval('{sql.jobs}_id_seq') AS text), ',') AS ids, {sql.now} AS now
    FROM generate_series(1, :count)"""


def _with_free_keys(rows: Sequence[JobRow], intend: Intend) -> Sequence[JobRow]:
    keyed = [row for row in rows if row.digest is not None]
    if not keyed:
        return rows
    won = intend(keyed)
    return [row for row in rows if row.digest is None or row.id in won]


def _copy(store: Store, connection: Connection, rows: Sequence[JobRow], now: datetime) -> None:
    optional = [name for name in _OPTIONAL if _is_used(name, rows)]
    columns = [_ALWAYS, *(_OPTIONAL[name] for name in optional)]
    lines: Iterator[str] = (_line(row, optional) for row in rows)
    if _is_used("expires_at", rows):
        columns.append("expires_at")
        lines = (f"{line}\t{_time(row.expires_at)}" for line, row in zip(lines, rows, strict=True))
    if store.sql.shift_seconds or _is_used("run_at", rows) or _is_used("delay", rows):
        columns.append(_TIMES)
        lines = (f"{line}\t{_times(row, now)}" for line, row in zip(lines, rows, strict=True))
    pooled: Any = connection.connection
    with (
        pooled.cursor() as cursor,
        cursor.copy(f"COPY {store.sql.jobs} ({', '.join(columns)}) FROM STDIN") as copy,
    ):
        while block := [line for _, line in zip(range(BLOCK_ROWS), lines, strict=False)]:
            copy.write("\n".join(block) + "\n")


def _is_used(field: str, rows: Sequence[JobRow]) -> bool:
    return set(map(attrgetter(field), rows)) != {None}


def _line(row: JobRow, optional: Sequence[str]) -> str:
    payload = _escaped(bytes(row.payload).decode())
    line = f"{row.id}\t{_escaped(row.job_type)}\t{_escaped(row.queue)}\t{row.priority}\t{payload}\tt"
    if optional:
        line += "".join([f"\t{_cell(getattr(row, name))}" for name in optional])
    return line


def _escaped(text: str) -> str:
    """What may stand in a line: texts are printable, and JSON escapes all that is not."""
    return text.replace("\\", "\\\\") if "\\" in text else text


def _cell(value: str | int | None) -> str:
    return "\\N" if value is None else _escaped(str(value))


def _time(seconds: float | None) -> str:
    return "\\N" if seconds is None else moment(seconds).isoformat()


def _times(row: JobRow, now: datetime) -> str:
    """`run_at` and `age_from`, `created_at` and `updated_at`."""
    starts = now + timedelta(seconds=row.delay or 0)
    run_at = starts.isoformat() if row.run_at is None else _time(row.run_at)
    return f"{run_at}\t{run_at}\t{now.isoformat()}\t{now.isoformat()}"
