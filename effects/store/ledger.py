"""Ledgers: one row an effect, whatever becomes of its jobs.

A job type without a ledger of its own shares `effects_effect_ledger`, and only where its job has a key. A
package that brings its own table (`delivered_webhooks`, `sent_emails`, …) gives its job type a Ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import msgspec
from sqlalchemy import Connection

from effects.settlement import Settlement, fold_sql
from effects.store.sql import Sql
from effects.store.store import Statement, Store, as_json


class LedgerRow(NamedTuple):
    """One effect as its ledger has it. `job_id` is the newest job of the effect."""

    key: str
    state: str
    job_id: int


class Ledger(Protocol):
    """What the core asks of a ledger; what it writes is one batch in the core's transaction.

    Its table has the columns of `schema.ledger_columns`, whatever else it has.
    """

    table: str  # without the prefix
    spans_jobs: bool  # many jobs make one effect, and the package says when it is done: no fold over one job's verdicts

    def mark_released(self) -> Statement:
        """The UPDATE for attempts that are about to pass the point of no return: those in the relation `m` (id, note).

        On PostgreSQL it is a part of the statement that marks their jobs, and always the same function: statements are
        kept by it.
        """
        ...

    def note(self, job_id: int) -> str | None:
        """What the mark is to keep of this attempt, as a text."""
        ...

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        """Fold these verdicts into the effects' states."""
        ...

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The effects that a person may mean by this key, for `effects why`; at most 100."""
        ...

    def why_none(self, store: Store, connection: Connection, key: str) -> str | None:
        """Where this package knows the key and it has no effect: words for a person. None where it is unknown."""
        ...


class _Entry(msgspec.Struct):
    job_id: int
    verdict: str | None
    ended: bool


ENTRY = {"job_id": "int", "verdict": "text", "ended": "bool"}


class TableLedger:
    """A ledger over one table; `table` is its name without the prefix."""

    spans_jobs = False

    def __init__(self, table: str) -> None:
        self.table = table

    def mark_released(self) -> Statement:
        return _mark_released(self.table)

    def note(self, job_id: int) -> str | None:
        """None: the state is all that these ledgers have."""
        return None

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        entries = [_Entry(one.job.id, one.verdict, one.ends) for one in settled]
        store.write(connection, _record(self.table), rows=as_json(entries))

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The effects of this very key, one a job type at most; none where a table has other columns than those."""
        if "key" not in store.tables[self.table].columns:
            return []
        found = store.all(connection, _find(self.table), key=key)
        return [LedgerRow(row.key, row.state, row.job_id) for row in found]

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
        FROM {sql.rows("rows", ENTRY)} AS r WHERE {name}.job_id = r.job_id"""

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
        SELECT l.key, l.state, l.job_id FROM types JOIN {name} AS l ON l.job_type = types.t AND l.key = :key
        ORDER BY l.job_type LIMIT 100"""

    return build


CORE_LEDGER = TableLedger("effect_ledger")


def all_ledgers(ledgers: Mapping[str, Ledger]) -> list[Ledger]:
    """Every ledger once, the core's first: jobs of types that are not registered here may be in that."""
    distinct: dict[str, Ledger] = {CORE_LEDGER.table: CORE_LEDGER}
    distinct.update((ledger.table, ledger) for ledger in ledgers.values())
    return list(distinct.values())


def states(store: Store, connection: Connection, table: str, job_ids: Sequence[int]) -> dict[int, str]:
    """The ledger's word on each of these jobs' effects."""
    found: Sequence[Any] = store.all(connection, _states(table), ids=as_json(job_ids))
    return {row.job_id: row.state for row in found}


@cache
def _states(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT job_id, state FROM {getattr(sql, table)} WHERE job_id {sql.any_of('ids', 'int')}"

    return build
