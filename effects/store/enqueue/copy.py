"""Writing many jobs by COPY: through psycopg's own connection, inside the transaction of the caller.

Whatever goes wrong is undone to a savepoint, and the statements that follow instead say what it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from operator import attrgetter
from typing import Any

from msgspec import Raw
from sqlalchemy import Connection

from effects.kit.moments import exact_moment, moment
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.enqueue.new_rows import COLUMNS, KINDS, NAMES, JobRow, fields_used

ROWS_MIN = 500  # below, one statement is as quick
ROWS_MAX = 5000  # by one COPY, so that none outlasts a statement_timeout that the statements would not
BLOCK_ROWS = 250  # sent at a time
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
    return exact_moment(reserved.microseconds / 1e6)  # a float of the caller's session may have few digits


def _next_ids(sql: Sql) -> str:
    return f"""
    SELECT string_agg(CAST(nextval('{sql.jobs}_id_seq') AS text), ',') AS ids,
        CAST({sql.epoch(sql.now)} * 1000000 AS bigint) AS microseconds
    FROM generate_series(1, :count)"""


def _with_free_keys(rows: Sequence[JobRow], intend: Intend) -> Sequence[JobRow]:
    keyed = [row for row in rows if row.digest is not None]
    if not keyed:
        return rows
    won = intend(keyed)
    return [row for row in rows if row.digest is None or row.id in won]


def _copy(store: Store, connection: Connection, rows: Sequence[JobRow], now: datetime) -> None:
    used = fields_used(rows)
    fields = [field for field in COLUMNS if field in used and field != "run_at"]
    columns = ["id", "routed", *(NAMES[field] for field in fields)]
    has_times = bool(store.sql.shift_seconds or {"run_at", "delay"} & used)
    if has_times:
        columns += ["created_at", "updated_at", "run_at", "age_from"]
    pooled: Any = connection.connection
    with (
        pooled.cursor() as cursor,
        cursor.copy(f"COPY {store.sql.jobs} ({', '.join(columns)}) FROM STDIN") as copy,
    ):
        for start in range(0, len(rows), BLOCK_ROWS):
            copy.write(_block(rows[start : start + BLOCK_ROWS], fields, now if has_times else None))


def _block(rows: Sequence[JobRow], fields: Sequence[str], now: datetime | None) -> str:
    """The lines of these rows: their ids, `routed`, these fields, and with `now` their times."""
    cells: list[Iterable[str]] = [map(str, map(attrgetter("id"), rows)), repeat("t")]
    cells += [map(_CELLS[KINDS[field]], map(attrgetter(field), rows)) for field in fields]
    if now is not None:
        starts = [_start(row, now) for row in rows]
        cells += [repeat(now.isoformat()), repeat(now.isoformat()), starts, starts]
    return "\n".join(map("\t".join, zip(*cells, strict=False))) + "\n"


def _start(row: JobRow, now: datetime) -> str:
    return _time(row.run_at) if row.run_at is not None else (now + timedelta(seconds=row.delay or 0)).isoformat()


def _text(value: str | None) -> str:
    """What may stand in a line: texts are printable, and JSON escapes all that is not."""
    if value is None:
        return "\\N"
    return value.replace("\\", "\\\\") if "\\" in value else value


def _json(value: Raw) -> str:
    return _text(bytes(value).decode())


def _whole(value: int | None) -> str:
    return "\\N" if value is None else str(value)


def _time(seconds: float | None) -> str:
    return "\\N" if seconds is None else moment(seconds).isoformat()


_CELLS: Mapping[str, Callable[[Any], str]] = {"text": _text, "json": _json, "int": _whole, "num": _time}
