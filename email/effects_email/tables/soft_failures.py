"""How often and on how many days an address was refused for now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json

_COUNT = {"digest": "text", "failures": "int"}


def _today(sql: Sql) -> str:
    """Days since 1970."""
    days = f"{sql.epoch(sql.now)} / 86400"
    return f"CAST(floor({days}) AS integer)" if sql.postgresql else f"CAST({days} AS INTEGER)"


def _add(sql: Sql) -> str:
    """In the order of the digests, so that two workers lock the rows in the same order."""
    table = sql.email_soft_failures
    return f"""
    INSERT INTO {table} (digest, day, failures)
    SELECT r.digest, {_today(sql)}, r.failures FROM {sql.rows("rows", _COUNT)} AS r WHERE true ORDER BY r.digest
    ON CONFLICT (digest, day) DO UPDATE SET failures = {table}.failures + excluded.failures"""


def _repeated(sql: Sql) -> str:
    return f"""
    SELECT digest FROM {sql.email_soft_failures}
    WHERE digest {sql.any_of("digests")} AND day > {_today(sql)} - :window_days
    GROUP BY digest HAVING sum(failures) >= :failures AND count(*) >= :days ORDER BY digest"""


def add(store: Store, connection: Connection, counts: Mapping[str, int]) -> None:
    """Count these failures today, by the database's clock and in UTC."""
    rows = [{"digest": digest, "failures": count} for digest, count in counts.items()]
    store.write(connection, _add, rows=as_json(rows))


def repeated(
    store: Store, connection: Connection, digests: Sequence[str], *, failures: int, days: int, window_days: int
) -> list[str]:
    """Which of these have failed so often, on so many days of the last `window_days`."""
    rows: Sequence[Row[Any]] = store.all(
        connection, _repeated, digests=as_json(digests), failures=failures, days=days, window_days=window_days
    )
    return [row.digest for row in rows]


def _clear(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_soft_failures} WHERE digest {sql.any_of('digests')}"


def clear(store: Store, connection: Connection, digests: Sequence[str]) -> None:
    """Forget them: a message arrived."""
    store.write(connection, _clear, digests=as_json(digests))
