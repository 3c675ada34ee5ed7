"""Which jobs a bulk action is about: the filters of a list, frozen, and read in the order of ids.

What comes into being after the preview is not swept in: the ages of a filter become times, nothing counts that had not
ended (of live jobs: not been created) by the time of the preview, and no job with a greater id than the newest then.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cache
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection

from effects.moments import moment, moment_or_none
from effects.store.db.sql import Sql, Window
from effects.store.db.store import Statement, Store
from effects.store.operator.dead_letters import DeadFilters, unresolved_conditions
from effects.store.operator.job_list import Filters, ids_of_window, newest_id, span_of, table_conditions

COUNTED_MAX = 10_000  # jobs that a preview counts

SelectedTable: TypeAlias = Literal["unresolved", "jobs", "job_history"]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Filters as they were at a preview.

    Args:
        table: where the jobs are: unresolved dead letters, live jobs, or ended ones.
        filters: of the list of unresolved jobs, or of the list of jobs.
        after_id: only jobs with a greater id.
        max_id: no job with a greater id.
    """

    table: SelectedTable
    filters: DeadFilters | Filters
    after_id: int
    max_id: int


class SelectedIds(msgspec.Struct, frozen=True):
    """Some ids, ascending. `last_id`: up to where all are looked at."""

    ids: list[int]
    last_id: int


class Counted(msgspec.Struct, frozen=True):
    """How many jobs match. `all`: False where the count ended at 10,000 jobs, or older ones were not looked at, which
    `reached_oldest` tells apart.
    """

    jobs: int
    all: bool
    reached_oldest: bool = True


def freeze(store: Store, connection: Connection, table: SelectedTable, filters: DeadFilters | Filters) -> Selection:
    """Fix what these filters select now; at `filters.as_of`, where that has passed.

    Transactions that were under way then, and commit later, may still add a job that ended or was created before.
    """
    now = store.now(connection)
    newest = newest_id(store, connection)
    as_of = moment(now) if filters.as_of is None else min(filters.as_of, moment(now))
    since, until = filters.window.times(as_of.timestamp())  # the ages that rows had then
    window = Window(since=moment_or_none(since), until=moment_or_none(until))
    first, end = 0, newest + 1
    if isinstance(filters, Filters):
        first, end = ids_of_window(store, connection, window, end)
        end = min(end, filters.before or end)
    frozen = msgspec.structs.replace(filters, window=window, as_of=as_of)
    return Selection(table=table, filters=frozen, after_id=max(first - 1, 0), max_id=end - 1)


def select_ids(store: Store, connection: Connection, selection: Selection, after_id: int, limit: int) -> SelectedIds:
    """The next ids after that one, at most `limit`; of ended jobs those in the next window of ids, maybe none."""
    upper = selection.max_id
    if (span := _span(selection)) is not None:
        first = store.value(connection, _first_after, after=after_id)
        upper = min(upper, after_id + span if first is None else int(first) + span - 1)
        if first is None:
            return SelectedIds([], selection.max_id)
    parameters = selection.filters.parameters()
    build = _select(selection.table, frozenset(parameters))
    rows = store.all(connection, build, after=after_id, upper=upper, limit=limit, **parameters)
    ids = [int(row.id) for row in rows]
    return SelectedIds(ids, ids[-1] if len(ids) == limit else max(upper, after_id))


def count_selected(store: Store, connection: Connection, selection: Selection) -> Counted:
    """Count what is selected, at most 10,000; of ended jobs those in the newest window of ids."""
    span = _span(selection)
    after = selection.after_id if span is None else max(selection.after_id, selection.max_id - span)
    parameters = selection.filters.parameters()
    build = _count(selection.table, frozenset(parameters))
    limit = COUNTED_MAX + 1
    jobs = int(store.value(connection, build, after=after, upper=selection.max_id, limit=limit, **parameters))
    looked_at_all = after == selection.after_id or not store.value(connection, _is_older, after=after)
    return Counted(min(jobs, COUNTED_MAX), looked_at_all and jobs <= COUNTED_MAX, looked_at_all)


def frozen_at(selection: Selection) -> dt.datetime:
    """The time of the preview."""
    assert selection.filters.as_of is not None
    return selection.filters.as_of


def groups_of(store: Store, connection: Connection, job_ids: Sequence[int]) -> list[str]:
    """The groups of these ended jobs."""
    ids = msgspec.json.encode(job_ids).decode()
    return [row.group_key for row in store.all(connection, _groups, ids=ids)]


def _span(selection: Selection) -> int | None:
    """How many ids one statement looks at; None is no bound: live and unresolved jobs do not grow with time."""
    filters = selection.filters
    return span_of(filters) if selection.table == "job_history" and isinstance(filters, Filters) else None


# -- the statements --------------------------------------------------------------------------------------


@cache
def _select(table: SelectedTable, names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        row, key = ("u", "u.job_id") if table == "unresolved" else ("listed", "listed.id")
        conditions = unresolved_conditions(sql, names) if row == "u" else table_conditions(sql, table, names)
        return f"""
        SELECT {key} AS id FROM {getattr(sql, table)} AS {row}
        WHERE {key} > :after AND {key} <= :upper{conditions} ORDER BY {key} LIMIT :limit"""

    return build


@cache
def _count(table: SelectedTable, names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT count(*) FROM ({_select(table, names)(sql)}) AS selected"

    return build


def _first_after(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_history} WHERE id > :after ORDER BY id LIMIT 1"


def _is_older(sql: Sql) -> str:
    return f"SELECT EXISTS (SELECT 1 FROM {sql.job_history} WHERE id <= :after)"


def _groups(sql: Sql) -> str:
    return f"""
    SELECT DISTINCT group_key FROM {sql.job_history} WHERE id {sql.any_of("ids", "int")} AND group_key IS NOT NULL"""
