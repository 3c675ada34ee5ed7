"""Failovers for people: what was lost, what workers wrote back, and effects whose jobs the database does not know."""

from __future__ import annotations

import datetime as dt

import msgspec
from sqlalchemy import Connection

from effects.errors import FailoverNotFound
from effects.store.audit_log import AuditAction, note
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.schema.tables import FIRST, ORPHAN
from effects.store.workers import NOT_COMPARED, needs_person

_RESOLVE = AuditAction("failover", "resolve")
LIST_MAX = 10_000


class FailoverRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One failover.

    Args:
        workers, compared: workers that were alive when it was noticed, and how many of them have compared what they
            remember.
        recorded, unknowns, orphans: of that, outcomes that were written back, releases without an outcome, and effects
            of jobs that the database does not know.
        incomplete: workers that may have forgotten a part.
    """

    id: int
    sign: str
    noticed_at: dt.datetime
    noticed_by: str
    workers: int
    compared: int
    recorded: int
    unknowns: int
    orphans: int
    incomplete: int
    resolved_at: dt.datetime | None

    @property
    def is_open(self) -> bool:
        """Whether something of it is left for a person to look at."""
        has_gap = self.orphans or self.incomplete or self.compared < self.workers
        return self.resolved_at is None and bool(has_gap)


class EvidenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that was lost and remembered. `job_id` is its job's in the history that was lost.

    `outcome` is None where its release is all that was remembered.
    """

    id: int
    failover_id: int
    job_id: int
    job_type: str
    key: str | None
    fate: str
    outcome: str | None
    verdict: str | None
    worker: str
    happened_at: dt.datetime


def list_failovers(store: Store, connection: Connection) -> list[FailoverRecord]:
    """Newest first, without the first history."""
    return [record(FailoverRecord, row) for row in store.all(connection, _failovers)]


def _failovers(sql: Sql) -> str:
    counts = "workers, compared, recorded, unknowns, orphans, incomplete"
    return f"""
    SELECT id, sign, {sql.epoch("noticed_at")} AS noticed_at, noticed_by, {counts},
        {sql.epoch("resolved_at")} AS resolved_at
    FROM {sql.failovers} WHERE sign <> '{FIRST}' ORDER BY id DESC LIMIT {LIST_MAX}"""


def list_orphans(store: Store, connection: Connection, key: str | None = None) -> list[EvidenceRecord]:
    """Effects that arrived, or may have, of jobs that the database does not know; newest first. At most 10,000."""
    return [record(EvidenceRecord, row) for row in store.all(connection, _orphans, key=key)]


def _orphans(sql: Sql) -> str:
    return f"""
    SELECT id, failover_id, job_id, job_type, key, fate, outcome, verdict, worker,
        {sql.epoch("happened_at")} AS happened_at
    FROM {sql.evidence} WHERE fate = '{ORPHAN}' AND {sql.matches("key", "key")} ORDER BY id DESC LIMIT {LIST_MAX}"""


def resolve_failover(store: Store, failover_id: int, *, actor: str, reason: str | None) -> bool:
    """Record that an operator has looked into it: `audit` and `doctor` no longer report it. False if recorded before.

    Raises:
        FailoverNotFound: there is no such failover.
    """
    with store.begin() as connection:
        changed = store.write(connection, _resolve, id=failover_id)
        if changed:
            note(store, connection, _RESOLVE, failover_id, actor=actor, reason=reason)
        elif not any(failover.id == failover_id for failover in list_failovers(store, connection)):
            raise FailoverNotFound(f"failover {failover_id} not found")
    return changed > 0


def _resolve(sql: Sql) -> str:
    return f"""
    UPDATE {sql.failovers} SET resolved_at = {sql.now}
    WHERE id = :id AND resolved_at IS NULL AND sign <> '{FIRST}'"""


class FailoverCount(msgspec.Struct, frozen=True):
    """Failovers that need a person, and the effects of lost jobs that they list."""

    failovers: int
    orphans: int


def count_failovers(store: Store, connection: Connection) -> FailoverCount:
    row = store.row(connection, _counts)
    assert row is not None
    return FailoverCount(row.failovers, row.orphans)


def _counts(sql: Sql) -> str:
    return f"""
    SELECT count(*) AS failovers, COALESCE(sum(orphans), 0) AS orphans FROM {sql.failovers} WHERE {needs_person()}"""


# -- retention -------------------------------------------------------------------------------------------


# -- for the audit ---------------------------------------------------------------------------------------


def effects_known(sql: Sql) -> str:
    """Jobs whose effects arrived and that the database does not know, of failovers that no one has resolved."""
    return f"""
    SELECT e.job_id AS id FROM {sql.evidence} AS e LEFT JOIN {sql.failovers} AS f ON f.id = e.failover_id
    WHERE e.fate = '{ORPHAN}' AND f.resolved_at IS NULL"""


def compared_failovers(sql: Sql) -> str:
    """Failovers with a worker that has not compared, or has forgotten a part."""
    return f"""
    SELECT id FROM {sql.failovers}
    WHERE sign <> '{FIRST}' AND resolved_at IS NULL AND {NOT_COMPARED}"""
