"""Rows past their retention: how long they are kept, and deleting them a page at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store
from effects.walk import Page

PAGE = 500


class OldRows(NamedTuple):
    """The rows of a table that are past their retention: what counts them, and what deletes a page of them."""

    counting: Statement
    deleting: Statement


def old_rows(table: str, key: str, select: Statement, lock: Statement = lambda sql: "") -> OldRows:
    """The rows of a table whose keys a statement selects.

    Args:
        key: its primary key, columns separated by commas.
        select: `SELECT key FROM …`, without LIMIT; `age` is bound.
        lock: how the rows to delete are locked.
    """

    def count(sql: Sql) -> str:
        return f"SELECT count(*) FROM ({select(sql)}) AS old"

    def delete(sql: Sql) -> str:
        return f"DELETE FROM {getattr(sql, table)} WHERE ({key}) IN ({select(sql)} LIMIT {PAGE} {lock(sql)})"

    return OldRows(count, delete)


def delete_page(store: Store, rows: OldRows, age_seconds: float, cursor: object, *, dry_run: bool) -> Page:
    """Delete a page of rows older than that, or only count them. The next begins where this did; an empty one ends."""
    if dry_run:
        with store.read() as connection:
            return Page(int(store.value(connection, rows.counting, age=age_seconds)))
    with store.single() as connection:
        count = store.write(connection, rows.deleting, age=age_seconds)
    return Page(count, True if count else None)


class Ages(msgspec.Struct, frozen=True):
    """Seconds that rows are kept: by job type, else the default."""

    by_type: Mapping[str, float]
    default: float

    def of(self, job_type: str) -> float:
        return self.by_type.get(job_type, self.default)

    @property
    def least(self) -> float:
        return min([self.default, *self.by_type.values()])


def may_continue(seconds: Iterable[float], least: float) -> bool:
    """Whether a walk goes on behind rows of these ages: where one may be past its retention.

    A time to come is of a clock that was ahead, and tells nothing of the rows behind it.
    """
    return any(age >= least or age < 0 for age in seconds)
