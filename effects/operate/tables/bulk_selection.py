"""What a bulk action does to one job, as a person would do it alone, and which jobs it is about.

These are the filters of a list, frozen, and read in the order of ids. What comes into being after the preview is not
swept in: the ages of a filter become times, nothing counts that had not ended (of live jobs: not been created) by the
time of the preview, and no job with a greater id than the newest then.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from effects.errors import JobNotFound, JobStateError, code_of
from effects.kit.moments import moment, moment_or_none
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.operate.tables import actions
from effects.operate.tables.dead_letters import DeadFilters, unresolved_conditions
from effects.operate.tables.job_list import (
    Filters,
    ids_of_window,
    newest_id,
    search_floor,
    span_of,
    table_conditions,
)
from effects.store.db.sql import Sql, Window
from effects.store.db.store import Statement, Store
from effects.store.effects.requeue import Resolution, ignore, read_standing, requeue, resolve_unknown
from effects.store.queue import cancellation

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


class SelectedCause(msgspec.Struct, frozen=True):
    """Selected jobs of one type that ended, or wait, by the same code. `unknown`: their effects may have happened."""

    job_type: str
    error_code: str | None
    unknown: bool
    jobs: int


class Counted(msgspec.Struct, frozen=True):
    """How many jobs match. `all`: False where the count ended at 10,000 jobs, or older ones were not looked at, which
    `reached_oldest` tells apart.
    """

    jobs: int
    all: bool
    reached_oldest: bool = True
    causes: tuple[SelectedCause, ...] = ()


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
    """Count what is selected, at most 10,000; of ended jobs those that a page of their list searches."""
    after, filters = selection.after_id, selection.filters
    if _span(selection) is not None and isinstance(filters, Filters):
        after = max(after, search_floor(store, connection, filters, selection.max_id + 1) - 1)
    parameters = selection.filters.parameters()
    build = _count(selection.table, frozenset(parameters))
    limit = COUNTED_MAX + 1
    rows = store.all(connection, build, after=after, upper=selection.max_id, limit=limit, **parameters)
    causes = tuple(SelectedCause(row.job_type, row.error_code, bool(row.unknown), row.jobs) for row in rows)
    jobs = sum(cause.jobs for cause in causes)
    looked_at_all = after == selection.after_id or not store.value(connection, _is_older, after=after)
    return Counted(min(jobs, COUNTED_MAX), looked_at_all and jobs <= COUNTED_MAX, looked_at_all, causes)


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
def _select(table: SelectedTable, names: frozenset[str], *, facts: bool = False) -> Statement:
    def build(sql: Sql) -> str:
        row, key = ("u", "u.job_id") if table == "unresolved" else ("listed", "listed.id")
        conditions = unresolved_conditions(sql, names) if row == "u" else table_conditions(sql, table, names)
        unknown = "u.unknown" if row == "u" else "false"
        columns = f", {row}.job_type, {row}.error_code, {unknown} AS unknown" if facts else ""
        return f"""
        SELECT {key} AS id{columns} FROM {getattr(sql, table)} AS {row}
        WHERE {key} > :after AND {key} <= :upper{conditions} ORDER BY {key} LIMIT :limit"""

    return build


@cache
def _count(table: SelectedTable, names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        selected = _select(table, names, facts=True)(sql)
        return f"""
        SELECT job_type, error_code, unknown, count(*) AS jobs FROM ({selected}) AS selected
        GROUP BY job_type, error_code, unknown ORDER BY jobs DESC, job_type, error_code, unknown"""

    return build


def _first_after(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_history} WHERE id > :after ORDER BY id LIMIT 1"


def _is_older(sql: Sql) -> str:
    return f"SELECT EXISTS (SELECT 1 FROM {sql.job_history} WHERE id <= :after)"


def _groups(sql: Sql) -> str:
    return f"""
    SELECT DISTINCT group_key FROM {sql.job_history} WHERE id {sql.any_of("ids", "int")} AND group_key IS NOT NULL"""


ActionName: TypeAlias = Literal["requeue", "ignore", "resolve_requeue", "mark_done", "give_up", "cancel", "run_now"]

_RESOLUTIONS: Mapping[str, Resolution] = {
    "resolve_requeue": "requeue", "mark_done": "mark-done", "give_up": "give-up"
}  # fmt: skip
NOT_FOUND, REJECTED = "not_found", "rejected"


class BulkAction(msgspec.Struct, frozen=True):
    """What to do with each job.

    Args:
        name: `resolve_requeue` decides about an unknown effect; `requeue` refuses one.
        even_if_unknown: requeue although the effect may have happened.
        even_if_done: requeue although the effect is done.
    """

    name: ActionName
    even_if_unknown: bool = False
    even_if_done: bool = False


class ActedOn(msgspec.Struct, frozen=True):
    """What was done to a job: the new job of a requeue, and the queue whose workers should hear of it.

    `words`: of a package, about an effect that many jobs make.
    """

    new_id: int | None = None
    queue: str | None = None
    words: str | None = None


class InlineResult(msgspec.Struct, frozen=True):
    """What was done at once: job id → the new job of a requeue, else None; and job id → why it was refused."""

    done: dict[int, int | None]
    refused: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An action by a person, for a reason, on jobs that are yet to be named."""

    store: Store
    job_types: Registry
    ledgers: Mapping[str, Ledger]
    action: BulkAction
    actor: str
    reason: str | None = None
    bulk_id: int | None = None

    def act(self, job_id: int, connection: Connection | None = None) -> ActedOn:
        """Act on one job; in the caller's transaction, if there is one.

        Raises:
            JobNotFound, JobStateError: it is refused, and nothing was written.
        """
        store, name, actor, reason, bulk_id = self.store, self.action.name, self.actor, self.reason, self.bulk_id
        if name == "requeue":
            return self._requeue(job_id, connection)
        if name == "cancel":
            cancellation.cancel(
                store, self.ledgers, job_id, actor=actor, reason=reason, bulk_id=bulk_id, connection=connection
            )
            return ActedOn()
        if name == "run_now":
            queue = actions.run_now(store, job_id, actor=actor, reason=reason, bulk_id=bulk_id, connection=connection)
            return ActedOn(queue=queue)
        return self._resolve(job_id, connection)

    def _requeue(self, job_id: int, connection: Connection | None) -> ActedOn:
        """As a new job; where many jobs make its effect, by its package."""
        try:
            requeued = requeue(
                self.store, self.job_types, job_id, confirm_unknown=self.action.even_if_unknown,
                confirm_done=self.action.even_if_done, actor=self.actor, reason=self.reason, bulk_id=self.bulk_id,
                connection=connection,
            )  # fmt: skip
        except JobStateError as error:
            if code_of(error) != "shared_effect":
                raise
        else:
            return ActedOn(requeued.job_id, requeued.queue)
        with self.store.joined(connection) as joined:
            standing = read_standing(self.store, joined, self.job_types, job_id)
            job_type = self.job_types.get(standing.job_type)
            words = job_type.retry_effect(joined, standing.key or "", actor=self.actor, reason=self.reason)
        return ActedOn(queue=job_type.queue, words=words)

    def _resolve(self, job_id: int, connection: Connection | None) -> ActedOn:
        name, actor, bulk_id = self.action.name, self.actor, self.bulk_id
        if name == "ignore":
            ignore(
                self.store, self.ledgers, job_id, actor=actor, reason=self.reason or "", bulk_id=bulk_id,
                connection=connection,
            )  # fmt: skip
            return ActedOn()
        requeued = resolve_unknown(
            self.store, self.job_types, self.ledgers, job_id, _RESOLUTIONS[name], actor=actor, reason=self.reason,
            bulk_id=bulk_id, connection=connection,
        )  # fmt: skip
        return ActedOn() if requeued is None else ActedOn(requeued.job_id, requeued.queue)


def act_inline(operation: Operation, job_ids: Sequence[int]) -> tuple[InlineResult, set[str]]:
    """Act on each job in its own transaction. Jobs that changed meanwhile are refused, and the others continue.

    Returns:
        The result, and the queues whose workers should hear of it.
    """
    done: dict[int, int | None] = {}
    refused: dict[int, str] = {}
    queues: set[str] = set()
    for job_id in job_ids:
        try:
            acted = operation.act(job_id)
        except (JobNotFound, JobStateError) as error:
            refused[job_id] = str(error)
        except DBAPIError:  # about its row: all others are translated
            refused[job_id] = f"job {job_id}: the database refuses it"
        else:
            done[job_id] = acted.new_id
            queues.update({acted.queue} if acted.queue is not None else ())
    return InlineResult(done, refused), queues


def refusal_code(error: JobNotFound | JobStateError) -> str:
    """Why a job was refused, in a word that is the same for every such job."""
    return NOT_FOUND if isinstance(error, JobNotFound) else code_of(error)
