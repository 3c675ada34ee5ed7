"""Comparing what a worker remembers with what the database knows; restoring its leases; who else has compared."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import Connection

from effects.model.job import AttemptId, Job
from effects.model.settlement import Settlement
from effects.store.audit_log import AuditAction, note
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.workers import Failover

BATCH = 500  # attempts in one statement
COMPARED = AuditAction("failover", "compare")


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """An attempt as its worker remembers it: its release, or what came of it. Of a plain success the flag is enough.

    Args:
        claimed: its claim was its release.
        at: when it was recorded, on the worker's monotonic clock.
    """

    job: Job
    at: float
    written: Settlement | None = None
    is_done: bool = False
    claimed: bool = False
    digest: str | None = None  # of the payload, where the job was read from a file without it

    @property
    def settlement(self) -> Settlement | None:
        """What came of it; None where only its release is known."""
        if not self.is_done:
            return self.written
        return Settlement(job=self.job, status="succeeded", outcome="succeeded", verdict="done")

    def is_of(self, job_type: str, key: str | None, payload: str) -> bool:
        """Whether this job is the attempt's: ids are handed out again after commits were lost."""
        if (job_type, key) != (self.job.job_type, self.job.key):
            return False
        return payload == self.job.payload if self.digest is None else payload_digest(payload) == self.digest

    @property
    def is_settled(self) -> bool:
        return self.is_done or self.written is not None

    @property
    def attempt(self) -> AttemptId:
        return self.job.attempt_id


def payload_digest(payload: str) -> str:
    return hashlib.sha256(payload.encode(errors="surrogateescape")).hexdigest()[:32]


class _AttemptRow(msgspec.Struct):
    id: int
    token: int
    settled: bool
    claimed: bool


def _missing(sql: Sql) -> str:
    """Attempts that are neither recorded nor, where only their release is known, marked."""
    leased = f"FROM {sql.jobs} AS j WHERE j.id = r.id AND j.lease_token = r.token"
    logged = f"FROM {sql.attempt_log} AS a WHERE a.job_id = r.id AND a.lease_token = r.token"
    done = f"FROM {sql.job_history} AS h WHERE h.id = r.id AND h.lease_token = r.token AND h.started_at IS NOT NULL"
    written = f"FROM {sql.evidence} AS e WHERE e.job_id = r.id AND e.lease_token = r.token"
    return f"""
    SELECT r.id, r.token FROM {sql.rows("rows", _AttemptRow)} AS r
    WHERE NOT {sql.exists(logged)} AND NOT {sql.exists(done)} AND NOT {sql.exists(written)}
    AND NOT (NOT r.settled AND {sql.exists(leased + " AND (r.claimed OR j.released_at IS NOT NULL)")})"""


def find_missing(store: Store, attempts: Sequence[Remembered]) -> list[Remembered]:
    """Those of which the database knows nothing, in their order."""
    missing: set[AttemptId] = set()
    for start in range(0, len(attempts), BATCH):
        rows = [
            _AttemptRow(*remembered.attempt, remembered.is_settled, remembered.claimed)
            for remembered in attempts[start : start + BATCH]
        ]
        with store.read() as connection:
            missing.update((row.id, row.token) for row in store.all(connection, _missing, rows=as_json(rows)))
    return [remembered for remembered in attempts if remembered.attempt in missing]


# -- leases ----------------------------------------------------------------------------------------------


class _LeaseRow(msgspec.Struct):
    id: int
    token: int
    job_type: str
    key: str | None
    payload: str
    lease_seconds: float


def _restore(sql: Sql) -> str:
    """As the claim had left them: under the same token, which is above all that this history has given out."""
    payload = sql.json_text("j.payload")
    busy = f"FROM {sql.jobs} AS busy WHERE busy.group_key = j.group_key AND busy.status = 'running'"
    return f"""
    UPDATE {sql.jobs} AS j SET status = 'running', attempts = attempts + 1, lease_token = r.token,
        locked_by = :worker, locked_until = {sql.after("r.lease_seconds")}, started_at = {sql.now},
        released_at = NULL, updated_at = {sql.now}
    FROM {sql.rows("rows", _LeaseRow)} AS r
    WHERE j.id = r.id AND j.lease_token < r.token AND j.status <> 'running' AND j.job_type = r.job_type
    AND COALESCE(j.idempotency_key, '') = COALESCE(r.key, '') AND {payload} = r.payload
    AND (j.group_key IS NULL OR NOT {sql.exists(busy)})"""


def restore_leases(store: Store, jobs: Sequence[tuple[Job, float]], worker: str) -> int:
    """Lease these jobs to the worker again, whose claims were lost and whom no one else has claimed; how many.

    Args:
        jobs: each with the seconds that its lease is to last.
    """
    rows = [_LeaseRow(job.id, job.lease_token, job.job_type, job.key, job.payload, seconds) for job, seconds in jobs]
    if not rows:
        return 0
    with store.begin() as connection:
        return store.write(connection, _restore, rows=as_json(rows), worker=worker)


# -- reports ---------------------------------------------------------------------------------------------


class Comparison(msgspec.Struct):
    """What one worker's comparison came to. `incomplete`: it had more to remember than it may."""

    recorded: int = 0
    unknowns: int = 0
    orphans: int = 0
    incomplete: bool = False

    @property
    def differences(self) -> int:
        return self.recorded + self.unknowns + self.orphans


def _report_worker(sql: Sql) -> str:
    return f"UPDATE {sql.workers} SET compared = :failover WHERE id = :worker"


def _report_counted(sql: Sql) -> str:
    """Those of these workers that the failover counts as alive when it was noticed.

    The rows' locks count each once, though two processes may have read its file.
    """
    return f"""
    UPDATE {sql.workers} AS w SET compared = :failover WHERE id {sql.any_of("workers")}
    AND COALESCE(compared, 0) < :failover AND EXISTS (
        SELECT 1 FROM {sql.failovers} AS f WHERE f.id = :failover AND w.started_at <= f.noticed_at
        AND {sql.seconds("w.seen_at", "f.noticed_at")} <= w.lease_seconds)"""


def _report(sql: Sql) -> str:
    return f"""
    UPDATE {sql.failovers} SET compared = compared + :count, recorded = recorded + :recorded,
        unknowns = unknowns + :unknowns, orphans = orphans + :orphans, incomplete = incomplete + :incomplete
    WHERE id = :failover"""


def report(
    store: Store,
    worker: str,
    failover: Failover,
    comparison: Comparison,
    *,
    ids: Collection[str],
    actor: str,
    reason: str | None,
) -> bool:
    """Write down that a worker has compared what it remembers; False where its own row was lost.

    Args:
        ids: which it has had since its last report.
        actor, reason: for the audit log, if anything was lost: no person decided it, and every person must find it.
    """
    counts = {name: int(getattr(comparison, name)) for name in ("recorded", "unknowns", "orphans", "incomplete")}
    with store.begin() as connection:
        count = store.write(connection, _report_counted, workers=as_json(sorted(ids)), failover=failover.id)
        store.write(connection, _report, failover=failover.id, count=count, **counts)
        if store.write(connection, _report_worker, failover=failover.id, worker=worker) == 0:
            connection.rollback()
            return False
        if comparison.differences or comparison.incomplete:
            note(store, connection, COMPARED, failover.id, actor=actor, reason=reason, detail=counts)
    return True


def report_for(store: Store, workers: Collection[str], failover: Failover) -> None:
    """Write down that what these dead workers had remembered was compared, from the files that they left."""
    with store.begin() as connection:
        count = store.write(connection, _report_counted, workers=as_json(sorted(workers)), failover=failover.id)
        store.write(connection, _add_compared, count=count, failover=failover.id)


def _add_compared(sql: Sql) -> str:
    return f"UPDATE {sql.failovers} SET compared = compared + :count WHERE id = :failover"


def _awaited(sql: Sql) -> str:
    """Workers that were alive at the failover and have not compared yet, within a lease of it."""
    return f"""
    SELECT count(*) FROM {sql.workers} AS w CROSS JOIN (
        SELECT id, noticed_at FROM {sql.failovers} WHERE sign <> 'first' ORDER BY id DESC LIMIT 1) AS f
    WHERE {sql.seconds("f.noticed_at")} < w.lease_seconds AND w.ended_at IS NULL AND w.started_at < f.noticed_at
    AND {sql.seconds("w.seen_at", "f.noticed_at")} < w.lease_seconds AND COALESCE(w.compared, 0) < f.id"""


def awaited_workers(store: Store, connection: Connection) -> int:
    """How many workers may still hold evidence of attempts that the present history does not know."""
    return int(store.value(connection, _awaited))
