"""Ledgers: one row per effect, which outlives its jobs.

A job type without its own ledger shares `effects_effect_ledger`, and only where its job has a key. A
package that brings its own table (`delivered_webhooks`, `sent_emails`, …) gives its job type a Ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.errors import EffectsError
from effects.model.ledger import Ledger, LedgerRow, fold_sql
from effects.model.settlement import Execution, Settlement
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.db.walk import PAGE, Ages, Page, may_continue


class _Entry(msgspec.Struct):
    job_id: int
    verdict: str | None
    ended: bool


class LedgerFailed(EffectsError):
    """A ledger failed to record outcomes, for the reason in `__cause__`."""


class TableLedger:
    """A ledger over one table; `table` is its name without the prefix."""

    spans_jobs = False

    def __init__(self, table: str) -> None:
        self.table = table

    def mark_released(self) -> Statement:
        return _mark_released(self.table)

    def release_data(self, execution: Execution) -> str | None:
        """None: the state is all that these ledgers have."""
        return None

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        entries = [_Entry(settlement.job.id, settlement.verdict, settlement.ends) for settlement in settled]
        store.write(connection, _record(self.table), rows=as_json(entries))

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The effects with this key, at most one per job type."""
        return self.holders(store, connection, key)

    def parts(self, store: Store, connection: Connection, name: str) -> Sequence[LedgerRow]:
        """The same."""
        return self.find(store, connection, name)

    def limit_keys(self, store: Store, connection: Connection, name: str) -> Sequence[str]:
        """None: these ledgers know effects alone."""
        return []

    def about(self, store: Store, connection: Connection, key: str) -> Mapping[str, str]:
        return {}

    def holders(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """By the table's column `key`; one ledger for several job types has a column `job_type` too."""
        columns = store.tables[self.table].columns
        if "key" not in columns or self.spans_jobs:
            return []
        if "job_type" in columns:
            rows = store.all(connection, _find(self.table), key=key)
            return [LedgerRow(row.key, row.state, row.job_id, row.job_type) for row in rows]
        rows = store.all(connection, _of_key(self.table), key=key)
        return [LedgerRow(row.key, row.state, row.job_id) for row in rows]

    def why_none(self, store: Store, connection: Connection, key: str) -> str | None:
        """None: an effect of these ledgers is there from its enqueue on."""
        return None


@cache
def _mark_released(table: str) -> Statement:
    def build(sql: Sql) -> str:
        name = getattr(sql, table)
        return f"""
        UPDATE {name} SET released_at = {sql.now}, updated_at = {sql.now},
            state = CASE WHEN state IN ('intended', 'refused', 'abandoned') THEN 'released' ELSE state END
        FROM m WHERE {name}.job_id {sql.among("m")} AND {name}.job_id = m.id"""

    return build


@cache
def _record(table: str) -> Statement:
    def build(sql: Sql) -> str:
        name = getattr(sql, table)
        return f"""
        UPDATE {name} SET updated_at = {sql.now}, state = {fold_sql("state", "r.verdict", "r.ended")}
        FROM {sql.rows("rows", _Entry)} AS r WHERE {name}.job_id = r.job_id"""

    return build


@cache
def _find(table: str) -> Statement:
    def build(sql: Sql) -> str:
        """The key is the index's second column: a loose scan gives the first, one probe a job type."""
        name = getattr(sql, table)
        return f"""
        WITH RECURSIVE types(t) AS (
            SELECT min(job_type) FROM {name}
            UNION ALL
            SELECT (SELECT min(job_type) FROM {name} WHERE job_type > types.t) FROM types WHERE t IS NOT NULL
        )
        SELECT l.key, l.state, l.job_id, l.job_type FROM types JOIN {name} AS l ON l.job_type = types.t AND l.key = :key
        ORDER BY l.job_type LIMIT 100"""

    return build


@cache
def _of_key(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT key, state, job_id FROM {getattr(sql, table)} WHERE key = :key"

    return build


CORE_LEDGER = TableLedger("effect_ledger")


def all_ledgers(ledgers: Mapping[str, Ledger]) -> list[Ledger]:
    """Every ledger once, the core's first: jobs of types that are not registered here may be in that."""
    distinct: dict[str, Ledger] = {CORE_LEDGER.table: CORE_LEDGER}
    distinct.update((ledger.table, ledger) for ledger in ledgers.values())
    return list(distinct.values())


def bare_ledgers(ledgers: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """By job type, the state of each effect alone, without the code of its package. None for those that span jobs."""
    return {name: TableLedger(ledger.table) for name, ledger in ledgers.items() if not ledger.spans_jobs}


def states(store: Store, connection: Connection, table: str, job_ids: Sequence[int]) -> dict[int, str]:
    """The ledger's word on each of these jobs' effects."""
    rows: Sequence[Any] = store.all(connection, _states(table), ids=as_json(job_ids))
    return {row.job_id: row.state for row in rows}


@cache
def _states(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT job_id, state FROM {getattr(sql, table)} WHERE job_id {sql.any_of('ids', 'int')}"

    return build


def record_verdicts(
    store: Store, connection: Connection, accepted: Sequence[Settlement], ledgers: Mapping[str, Ledger]
) -> None:
    """Fold the verdicts of these attempts into the ledgers of their job types.

    Raises:
        LedgerFailed: the code of a package's ledger would end this thread.
    """
    by_ledger: dict[int, list[Settlement]] = defaultdict(list)
    named: dict[int, Ledger] = {}
    for settlement in accepted:
        ledger = ledgers.get(settlement.job.job_type)
        if ledger is not None and settlement.job.key is not None and settlement.concerns_effect:
            by_ledger[id(ledger)].append(settlement)
            named[id(ledger)] = ledger
    for identity, settlements in by_ledger.items():
        try:
            named[identity].record(store, connection, settlements)
        except Exception:
            raise
        except BaseException as error:  # a package's ledger ends no thread of ours
            raise LedgerFailed from error


def take_back_releases(
    store: Store, connection: Connection, accepted: Sequence[Settlement], ledgers: Mapping[str, Ledger]
) -> None:
    """Say of jobs that were given back before their attempts heard of a release that no effect is under way."""
    by_table: dict[str, list[Settlement]] = defaultdict(list)
    for settlement in accepted:
        if settlement.unheard and settlement.job.key is not None:
            ledger = ledgers.get(settlement.job.job_type)
            if ledger is not None and not ledger.spans_jobs:
                by_table[ledger.table].append(settlement)
    for table, settlements in by_table.items():  # the state alone: for a package's own code there was no attempt
        TableLedger(table).record(store, connection, settlements)


# -- retention -------------------------------------------------------------------------------------------


def delete_old_effects(store: Store, *, table: str, ages: Ages, cursor: int | None, dry_run: bool) -> Page:
    """One page of a ledger by job id: settled effects whose job is gone and whose retention has passed."""
    with store.read() as connection:
        page = store.all(connection, _effects_page(table), cursor=cursor or 0)
    old = _old_by_age(page, ages)
    taken = sum(map(len, old.values()))
    if old and not dry_run:
        with store.begin() as connection:
            taken = sum(
                store.write(connection, _delete_effects(table), ids=as_json(ids), age=kept) for kept, ids in old.items()
            )
    continues = len(page) == PAGE and (
        any(row.expired for row in page) or may_continue((row.since_created for row in page), ages.least)
    )
    return Page(taken, page[-1].job_id if continues else None)


def _old_by_age(page: Iterable[Any], ages: Ages) -> Mapping[float, Sequence[int]]:
    """Seconds that rows are kept → the jobs of those that are past it, or past their own expiry."""
    old: dict[float, list[int]] = {}
    for job_id, job_type, eligible, expired, age, _ in page:
        kept = ages.of(job_type)
        if eligible and (age >= kept if expired is None else expired):
            old.setdefault(kept, []).append(job_id)
    return old


def _settled(sql: Sql) -> str:
    return "l.state NOT IN ('intended', 'released')"


def _orphaned(sql: Sql) -> str:
    """Asked once, when the page is read: a job that is gone does not come back."""
    return f"""
    NOT {sql.exists(f"FROM {sql.jobs} AS j WHERE j.id = l.job_id")}
    AND NOT {sql.exists(f"FROM {sql.job_history} AS k WHERE k.id = l.job_id")}"""


def _is_typed(sql: Sql, table: str) -> bool:
    """The core's ledger names each row's job type; a package's is of its own types only."""
    return bool(getattr(sql, table) == sql.effect_ledger)


@cache
def _effects_page(table: str) -> Statement:
    def build(sql: Sql) -> str:
        job_type = "job_type" if _is_typed(sql, table) else "'' AS job_type"
        columns = f"job_id, state, created_at, updated_at, expires_at, {job_type}"
        return f"""
        SELECT l.job_id, l.job_type, {_settled(sql)} AND {_orphaned(sql)} AS eligible,
            l.expires_at <= {sql.now} AS expired, {sql.seconds("l.updated_at")} AS age,
            {sql.seconds("l.created_at")} AS since_created
        FROM (SELECT {columns} FROM {getattr(sql, table)} WHERE job_id > :cursor ORDER BY job_id LIMIT {PAGE}) AS l
        ORDER BY l.job_id"""

    return build


@cache
def _delete_effects(table: str) -> Statement:
    """Of rows that are kept for one time; not what has changed since it was read."""

    def build(sql: Sql) -> str:
        return f"""
        DELETE FROM {getattr(sql, table)} AS l WHERE l.job_id {sql.any_of("ids", "int")}
        AND {_settled(sql)} AND CASE WHEN l.expires_at IS NULL
            THEN {sql.seconds("l.updated_at")} >= {sql.number("age")} ELSE l.expires_at <= {sql.now} END"""

    return build
