"""The conservation invariants: no effect is lost, duplicated or invented. For tests and operators.

Every check is one statement over whole tables, so that it is consistent in itself while workers run, and
costs a few scans however many rows there are. A check selects the ids of the jobs for which its sentence is
not true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import msgspec

from effects.model.ledger import Ledger
from effects.model.settlement import UNCOUNTED
from effects.operate.tables.failovers import compared_failovers, effects_known
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store
from effects.store.effects.requeue import EVEN_IF_DONE
from effects.store.queue.table_ledger import all_ledgers
from effects.store.queue.unresolved import MARK_DONE, is_proved_not_done, is_resolved, is_unknown, needs_person
from effects.store.schema.tables import PRUNED_JOBS

IDS_MAX = 20


class AuditFinding(msgspec.Struct, frozen=True):
    """A sentence that is not true: of how many jobs, and the first 20 of them."""

    check: str
    sentence: str
    count: int
    job_ids: list[int]


def audit(store: Store, ledgers: Mapping[str, Ledger]) -> list[AuditFinding]:
    """Run every check, over the core's tables and these ledgers.

    A ledger whose effects span several jobs is checked by its package: no single job's verdicts determine its state.

    Args:
        ledgers: the ledger of each registered job type, by the type's name (`Effects.ledgers`).

    Returns:
        What is wrong; an empty list is a clean database.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    findings = []
    with store.read() as connection:
        for check, build in _statements(ledgers):
            rows = store.all(connection, build)
            if rows:
                ids = [row.id for row in rows]
                findings.append(AuditFinding(check, CHECKS[check], rows[0].found, ids))
    return findings


CHECKS: dict[str, str] = {
    "one_place": "A job is live or ended, never both.",
    "running_leased": "A running job has a worker, a deadline, an attempt and a lease token above 0.",
    "waiting_unleased": "A waiting job holds no lease and no release mark.",
    "group_order": "Of one group at most one job runs.",
    "end_recorded": "A job that succeeded or died has its last attempt in the log.",
    "done_succeeded": "A job succeeded if, and only if, one of its attempts is done.",
    "attempts_logged": "Every attempt that was counted is in the log once.",
    "attempts_fenced": "Every logged attempt belongs to a known job, under a token which that job has had.",
    "requeued_ended": "A requeued job names an ended job that it comes from.",
    "intent_kept": "Every effect in a ledger has its job, live or ended, or is settled and its job was pruned.",
    "intent_written": "Every live job with a key that has been routed is the one that a ledger names.",
    "done_proved": "Every effect that is done has an attempt that did it, or an operator marked it done.",
    "state_folded": "Every effect's state is what the verdicts of its attempts add up to.",
    "failovers_compared": "After a failover every worker that was alive has compared what it remembers (`effects "
    "failovers list`; the numbers are of failovers).",
    "effects_known": "No effect arrived of a job that a failover lost (`effects failovers orphans`).",
    "unresolved_kept": "The unresolved jobs are those that are dead or unknown without a resolution, and no others.",
}


def _statements(ledgers: Mapping[str, Ledger]) -> Iterator[tuple[str, Statement]]:
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers) if not ledger.spans_jobs)
    types = tuple(sorted(name for name, ledger in ledgers.items() if not ledger.spans_jobs))
    for name, build in _CORE.items():
        yield name, _limited(build)
    yield "intent_written", _limited(_intent_written(tables, types))
    yield "unresolved_kept", _limited(_unresolved_kept(tuple(ledger.table for ledger in all_ledgers(ledgers))))
    for table in tables:
        for name, make in _EACH_LEDGER.items():
            yield name, _limited(make(table))


@cache
def _limited(build: Statement) -> Statement:
    """The first ids, each with the total number."""

    def limited(sql: Sql) -> str:
        return f"""
        SELECT id, count(*) OVER () AS found FROM (SELECT DISTINCT id FROM ({build(sql)}) AS wrong) AS distinct_ids
        ORDER BY id LIMIT {IDS_MAX}"""

    return limited


# -- jobs and attempts -----------------------------------------------------------------------------------


def _all_jobs(sql: Sql) -> str:
    """Live and ended jobs alike. A running attempt is counted and not yet logged."""
    return f"""(
        SELECT id, status, attempts, lease_token, requeued_from FROM {sql.jobs}
        UNION ALL SELECT id, status, attempts, lease_token, requeued_from FROM {sql.job_history})"""


def _one_place(sql: Sql) -> str:
    return f"SELECT j.id FROM {sql.jobs} AS j JOIN {sql.job_history} AS h ON h.id = j.id"


def _running_leased(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.jobs} WHERE status = 'running'
    AND (locked_by IS NULL OR locked_until IS NULL OR started_at IS NULL OR lease_token < 1 OR attempts < 1)"""


def _waiting_unleased(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.jobs} WHERE status <> 'running' AND (locked_until IS NOT NULL OR released_at IS NOT NULL)"""


def _group_order(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.jobs} WHERE status = 'running' AND group_key IN (
        SELECT group_key FROM {sql.jobs} WHERE status = 'running' AND group_key IS NOT NULL
        GROUP BY group_key HAVING count(*) > 1)"""


def _end_recorded(sql: Sql) -> str:
    return f"""
    SELECT h.id FROM {sql.job_history} AS h
    LEFT JOIN {sql.job_attempts} AS a ON a.job_id = h.id AND a.lease_token = h.lease_token
    WHERE h.status IN ('succeeded', 'dead') AND a.job_id IS NULL"""


def _done_succeeded(sql: Sql) -> str:
    return f"""
    SELECT k.id FROM {_all_jobs(sql)} AS k
    LEFT JOIN (SELECT DISTINCT job_id FROM {sql.job_attempts} WHERE verdict = 'done') AS done ON done.job_id = k.id
    WHERE (k.status = 'succeeded') <> (done.job_id IS NOT NULL)"""


def _attempts_logged(sql: Sql) -> str:
    """A snooze or a pause is logged and not counted."""
    uncounted = ", ".join(f"'{outcome}'" for outcome in UNCOUNTED)
    return f"""
    SELECT k.id FROM {_all_jobs(sql)} AS k LEFT JOIN (
        SELECT job_id, count(*) AS logged FROM {sql.job_attempts} WHERE outcome NOT IN ({uncounted}) GROUP BY job_id
    ) AS log ON log.job_id = k.id
    WHERE k.attempts <> COALESCE(log.logged, 0) + CASE WHEN k.status = 'running' THEN 1 ELSE 0 END"""


def _attempts_fenced(sql: Sql) -> str:
    return f"""
    SELECT a.job_id AS id FROM {sql.job_attempts} AS a LEFT JOIN {_all_jobs(sql)} AS k ON k.id = a.job_id
    WHERE k.id IS NULL OR a.lease_token > k.lease_token OR a.lease_token < 1
    UNION ALL SELECT id FROM {_all_jobs(sql)} AS more WHERE attempts > lease_token"""


def _requeued_ended(sql: Sql) -> str:
    return f"""
    SELECT k.id FROM {_all_jobs(sql)} AS k LEFT JOIN {sql.job_history} AS h ON h.id = k.requeued_from
    WHERE k.requeued_from IS NOT NULL AND h.id IS NULL"""


_CORE: dict[str, Statement] = {
    "one_place": _one_place,
    "running_leased": _running_leased,
    "waiting_unleased": _waiting_unleased,
    "group_order": _group_order,
    "end_recorded": _end_recorded,
    "done_succeeded": _done_succeeded,
    "attempts_logged": _attempts_logged,
    "attempts_fenced": _attempts_fenced,
    "requeued_ended": _requeued_ended,
    "failovers_compared": compared_failovers,
    "effects_known": effects_known,
}


# -- ledgers ---------------------------------------------------------------------------------------------


@cache
def _intent_kept(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        SELECT l.job_id AS id FROM {getattr(sql, table)} AS l LEFT JOIN {_all_jobs(sql)} AS k ON k.id = l.job_id
        WHERE k.id IS NULL AND (l.state IN ('intended', 'released')
            OR l.job_id > COALESCE((SELECT job_id FROM {sql.pruned} WHERE name = '{PRUNED_JOBS}'), 0))"""

    return build


@cache
def _intent_written(tables: tuple[str, ...], types: tuple[str, ...]) -> Statement:
    """Only for job types that are registered here: another's ledger may be one that we cannot see."""

    def build(sql: Sql) -> str:
        named = " UNION ALL ".join(f"SELECT job_id FROM {getattr(sql, table)}" for table in tables)
        seen = ", ".join(f"'{name}'" for name in types) or "NULL"
        return f"""
        SELECT j.id FROM {sql.jobs} AS j LEFT JOIN ({named}) AS l ON l.job_id = j.id
        WHERE j.idempotency_key IS NOT NULL AND j.routed AND l.job_id IS NULL AND j.job_type IN ({seen})"""

    return build


def _chains(sql: Sql, table: str) -> str:
    """`chain(newest, id, source)`: each effect's jobs, from the newest back to the first of this sending."""
    return f"""
    WITH RECURSIVE chain(newest, id, source) AS (
        SELECT l.job_id, k.id, k.requeued_from
        FROM {getattr(sql, table)} AS l JOIN {_all_jobs(sql)} AS k ON k.id = l.job_id
        UNION
        SELECT chain.newest, h.id, h.requeued_from FROM chain JOIN {sql.job_history} AS h ON h.id = chain.source
        WHERE NOT EXISTS (
            SELECT 1 FROM {sql.job_actions} AS a WHERE a.job_id = chain.id AND a.action = '{EVEN_IF_DONE}')
    ), verdicts AS (
        SELECT chain.newest, max(CASE WHEN a.verdict = 'done' THEN 1 ELSE 0 END) AS done,
            max(CASE WHEN a.verdict = 'unknown' AND NOT {is_proved_not_done(sql, "a.job_id")} THEN 1 ELSE 0 END)
                AS unknown
        FROM chain JOIN {sql.job_attempts} AS a ON a.job_id = chain.id GROUP BY chain.newest
    ), vouched AS (
        SELECT DISTINCT chain.newest FROM chain
        JOIN {sql.job_actions} AS a ON a.job_id = chain.id AND a.action = '{MARK_DONE}'
    )"""


@cache
def _done_proved(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        {_chains(sql, table)}
        SELECT l.job_id AS id FROM {getattr(sql, table)} AS l
        JOIN {_all_jobs(sql)} AS k ON k.id = l.job_id LEFT JOIN verdicts AS v ON v.newest = l.job_id
        WHERE l.state = 'done' AND COALESCE(v.done, 0) = 0 AND l.job_id NOT IN (SELECT newest FROM vouched)"""

    return build


@cache
def _state_folded(table: str) -> Statement:
    """`ledger.fold` in SQL. An end without its own attempt (a cancel, an expiry) has no verdict."""

    def build(sql: Sql) -> str:
        return f"""
        {_chains(sql, table)}
        SELECT l.job_id AS id FROM {getattr(sql, table)} AS l
        LEFT JOIN verdicts AS v ON v.newest = l.job_id
        LEFT JOIN {sql.jobs} AS j ON j.id = l.job_id
        LEFT JOIN {sql.job_history} AS h ON h.id = l.job_id
        LEFT JOIN {sql.job_attempts} AS last ON last.job_id = h.id AND last.lease_token = h.lease_token
        WHERE l.state <> 'done' AND (j.id IS NOT NULL OR h.id IS NOT NULL) AND l.state <> CASE
            WHEN COALESCE(v.done, 0) = 1 THEN 'done'
            WHEN COALESCE(v.unknown, 0) = 1 THEN 'unknown'
            WHEN j.released_at IS NOT NULL THEN 'released'
            WHEN j.id IS NOT NULL THEN 'intended'
            WHEN last.verdict = 'not_done' OR {is_proved_not_done(sql, "h.id")} THEN 'refused' ELSE 'abandoned' END"""

    return build


@cache
def _unresolved_kept(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        unresolved = f"{needs_person(sql, tables)} AND NOT {is_resolved(sql)}"
        return f"""
        SELECT h.id FROM {sql.job_history} AS h LEFT JOIN {sql.unresolved} AS u ON u.job_id = h.id
        WHERE h.status <> 'succeeded' AND (({unresolved}) <> (u.job_id IS NOT NULL)
            OR u.unknown <> {is_unknown(sql, tables)})
        UNION ALL
        SELECT u.job_id FROM {sql.unresolved} AS u LEFT JOIN {sql.job_history} AS h ON h.id = u.job_id
        WHERE h.id IS NULL OR h.status = 'succeeded'"""

    return build


_EACH_LEDGER = {"intent_kept": _intent_kept, "done_proved": _done_proved, "state_folded": _state_folded}
