"""Walking a table a page at a time, and deleting rows past their retention so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store

PAUSE_SECONDS_MAX = 0.05


class Page(msgspec.Struct, frozen=True):
    """The result of one step. `cursor` is where the next continues; None at the end of the walk."""

    taken: int
    cursor: Any = None


def walk(step: Callable[[Any], Page], *, go_on: Callable[[], bool], dry_run: bool = False) -> int:
    """Take page after page until the last, or until `go_on` returns False, which is called before each.

    After a page from which something was deleted, others have the database for as long as it took (at most 50 ms).

    Args:
        step: given the cursor (None for the first page), deletes or counts one page.
        dry_run: `step` only counts.

    Returns:
        How many rows the steps took.
    """
    taken, cursor = 0, None
    while go_on():
        began = time.monotonic()
        page = step(cursor)
        taken += page.taken
        if page.cursor is None:
            break
        cursor = page.cursor
        if page.taken and not dry_run:
            threading.Event().wait(min(PAUSE_SECONDS_MAX, time.monotonic() - began))
    return taken


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
