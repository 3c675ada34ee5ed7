"""Dead letters and unknown outcomes, which are unresolved until an operator acts.

Unresolved is an ended job that is dead, or whose effect is unknown, and about which no one has said a closing word in
`effects_job_actions`: requeue, ignore, mark done, give up (`effects.store.effects.requeue`). They are listed and
counted by their own table (`effects_unresolved`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.model.ledger import Ledger
from effects.store.db.records import record
from effects.store.db.sql import ANY_TIME, Sql, Window, and_each, set_filters
from effects.store.db.store import Statement, Store, as_json
from effects.store.queue.table_ledger import all_ledgers
from effects.store.queue.unresolved import closing_words, is_unknown, needs_person

ACTIONS_MAX = 2_000  # recorded actions that the list of resolved ones looks at; more, and PostgreSQL would compile it


class DeadFilters(msgspec.Struct, frozen=True, kw_only=True, tag="dead", tag_field="list"):
    """Which open ones; None is no filter.

    Args:
        text: part of the last error's text, ignoring case.
        word: a whole word of it, ignoring case: letters, digits and underscores.
        limit_key: the limit key, whole or what follows its first colon (`ep_…` of `webhook:ep_…`).
        limit_keys: any of these limit keys.
        window: when it ended.
        unknown: True: only effects that may have happened; False: only effects that did not.
        closed: list the resolved ones instead of the unresolved.
        before: the id of a job of the list; only those behind it: the next page.
        as_of: only those that had ended at this time (aware), the time of a preview.
    """

    job_type: str | None = None
    queue: str | None = None
    key: str | None = None
    error_code: str | None = None
    text: str | None = None
    word: str | None = None
    limit_key: str | None = None
    limit_keys: tuple[str, ...] | None = None
    window: Window = ANY_TIME
    unknown: bool | None = None
    closed: bool = False
    before: int | None = None
    as_of: dt.datetime | None = None
    limit: int = 50

    def parameters(self) -> dict[str, object]:
        """The parameters of those filters that are set."""
        names = ("job_type", "queue", "key", "error_code", "text", "word", "limit_key", "unknown", "before")
        values = {name: getattr(self, name) for name in names} | self.window.parameters()
        if self.limit_keys is not None:
            values["limit_keys"] = as_json(self.limit_keys)
        if self.as_of is not None:
            values["as_of"] = self.as_of.timestamp()
        return set_filters(values)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `unknown`: the effect may have happened."""

    id: int
    job_type: str
    status: str
    unknown: bool
    queue: str
    key: str | None
    limit_key: str | None
    attempts: int
    error_code: str | None
    last_error: str | None
    finished_at: dt.datetime


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Unresolved jobs of one type that ended by the same code. `unknown`: their effects may have happened. `last_job`:
    the newest of them.
    """

    job_type: str
    error_code: str | None
    unknown: bool
    jobs: int
    first_at: dt.datetime
    last_at: dt.datetime
    last_job: int


class Unresolved(msgspec.Struct, frozen=True):
    """How many jobs wait for a person, and of how many of them the effect may have happened."""

    jobs: int
    unknown: int


def count_unresolved(store: Store, connection: Connection) -> Unresolved:
    """What waits for a person, in numbers."""
    row = store.row(connection, _count)
    assert row is not None
    return Unresolved(row.jobs, row.unknown)


def list_dead(store: Store, ledgers: Mapping[str, Ledger], filters: DeadFilters) -> list[DeadLetter]:
    """Those that match, newest end first, at most `filters.limit`.

    The resolved ones are those of 2,000 recorded actions, the newest resolution first.
    """
    parameters = filters.parameters()
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers))
    build = _resolved(tables, frozenset(parameters)) if filters.closed else _unresolved(frozenset(parameters))
    with store.read() as connection:
        return [_letter(row) for row in store.all(connection, build, limit=filters.limit, **parameters)]


def count_causes(store: Store, connection: Connection) -> list[Cause]:
    """The unresolved jobs by type, code and whether the effect may have happened; the most frequent cause first."""
    return [record(Cause, row) for row in store.all(connection, _causes)]


def _letter(row: Row[Any]) -> DeadLetter:
    return record(DeadLetter, row, key=row.idempotency_key)


# -- the conditions --------------------------------------------------------------------------------------


# -- the statements --------------------------------------------------------------------------------------

_SHOWN = "h.id, h.job_type, h.status, h.queue, h.idempotency_key, h.limit_key, h.attempts, h.error_code, h.last_error"


def _conditions(sql: Sql, names: frozenset[str], row: str) -> str:
    """What the set and the history both know of a job, under the alias `row`."""
    by_filter = {
        "job_type": f"{row}.job_type = :job_type",
        "queue": f"{row}.queue = :queue",
        "error_code": f"{row}.error_code = :error_code",
        "limit_keys": f"{row}.limit_key {sql.any_of('limit_keys')}",
        "limit_key": f"({row}.limit_key = :limit_key OR {_after_colon(sql, row)} = :limit_key)",
        "as_of": f"{row}.finished_at <= {sql.time(sql.number('as_of'))}",
        **sql.bounds(f"{row}.finished_at"),
    }
    return and_each(by_filter, names)


def _of_history(sql: Sql, names: frozenset[str]) -> str:
    """What only the history knows of the job `h`."""
    by_filter = {
        "key": "h.idempotency_key = :key",
        "text": sql.contains("h.last_error", "text"),
        "word": sql.contains_word("h.last_error", "word"),
    }
    return and_each(by_filter, names)


def unresolved_conditions(sql: Sql, names: frozenset[str]) -> str:
    """` AND …` for each of these filters, on the unresolved job `u`."""
    cursor = f"SELECT b.finished_at, b.id FROM {sql.job_history} AS b WHERE b.id = :before"
    own = {"unknown": "u.unknown = :unknown", "before": f"(u.finished_at, u.job_id) < ({cursor})"}
    conditions = _conditions(sql, names, "u") + and_each(own, names)
    if of_history := _of_history(sql, names):
        conditions += f" AND {sql.exists(f'FROM {sql.job_history} AS h WHERE h.id = u.job_id{of_history}')}"
    return conditions


@cache
def _unresolved(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        WITH picked AS (
            SELECT u.job_id, u.unknown FROM {sql.unresolved} AS u WHERE true{unresolved_conditions(sql, names)}
            ORDER BY u.finished_at DESC, u.job_id DESC LIMIT :limit
        )
        SELECT {_SHOWN}, picked.unknown, {sql.epoch("h.finished_at")} AS finished_at
        FROM picked JOIN {sql.job_history} AS h ON h.id {sql.among("picked", "job_id")} AND h.id = picked.job_id
        ORDER BY h.finished_at DESC, h.id DESC"""

    return build


@cache
def _resolved(tables: tuple[str, ...], names: frozenset[str]) -> Statement:
    """By their newest resolution, among the newest actions: all that was ever resolved is too much to look at."""

    def build(sql: Sql) -> str:
        unknown = is_unknown(sql, tables)
        conditions = needs_person(sql, tables) + _conditions(sql, names, "h") + _of_history(sql, names)
        if "unknown" in names:
            conditions += f" AND {unknown} = :unknown"
        closing = f"action IN ({closing_words()})"
        cursor = f"SELECT max(id) FROM {sql.job_actions} WHERE job_id = :before AND {closing}"
        behind = f"WHERE id < ({cursor})" if "before" in names else ""
        later = f"FROM {sql.job_actions} AS later WHERE later.job_id = a.job_id AND later.id > a.id AND later.{closing}"
        return f"""
        WITH picked AS (
            SELECT a.id AS action_id, a.job_id FROM (
                SELECT id, job_id, action FROM {sql.job_actions} {behind} ORDER BY id DESC LIMIT {ACTIONS_MAX}) AS a
            WHERE a.{closing} AND NOT {sql.exists(later)}
            AND {sql.exists(f"FROM {sql.job_history} AS h WHERE h.id = a.job_id AND {conditions}")}
            ORDER BY a.id DESC LIMIT :limit
        )
        SELECT {_SHOWN}, {unknown} AS unknown, {sql.epoch("h.finished_at")} AS finished_at
        FROM picked JOIN {sql.job_history} AS h ON h.id {sql.among("picked", "job_id")} AND h.id = picked.job_id
        ORDER BY picked.action_id DESC"""

    return build


def _count(sql: Sql) -> str:
    unknown = "sum(CASE WHEN unknown THEN 1 ELSE 0 END)"
    return f"SELECT count(*) AS jobs, COALESCE({unknown}, 0) AS unknown FROM {sql.unresolved}"


def _causes(sql: Sql) -> str:
    return f"""
    SELECT job_type, error_code, unknown, count(*) AS jobs, {sql.epoch("min(finished_at)")} AS first_at,
        {sql.epoch("max(finished_at)")} AS last_at, max(job_id) AS last_job
    FROM {sql.unresolved} GROUP BY job_type, error_code, unknown ORDER BY jobs DESC, job_type, error_code, unknown"""


def _after_colon(sql: Sql, row: str) -> str:
    """The part after the first colon; NULL without one."""
    place = f"{'strpos' if sql.postgresql else 'instr'}({row}.limit_key, ':')"
    return f"CASE WHEN {place} > 0 THEN substr({row}.limit_key, {place} + 1) END"
