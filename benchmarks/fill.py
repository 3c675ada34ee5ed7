"""`python -m benchmarks.fill URL`: a database as it is after a year, by plain SQL.

Beside ended jobs lie live ones, most of them waiting behind limit keys; half of the ended ones delivered webhooks, the
others have keys in the core's ledger. Of the dead, one half waits for a person, the other half was ignored. Twenty job
types have numbers of each minute of the last day, and of each hour of the last month.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, text

from benchmarks.servers import effects_url
from effects import Effects
from effects.store.db.sql import Sql
from effects.store.enqueue.insert import reserve_ids
from effects.store.schema.tables import HOUR, LENGTHS, MINUTE, SIX_HOURS, TEN_MINUTES
from effects_email.message.address import address_digests

DELIVER, RARE = "webhook.deliver", "bench.rare"
QUIET_ENDPOINT, QUIET_TENANT = "ep_quiet", "quiet"
UNRESOLVED_JOB = 500  # one of them at full size, and in the tests
KEY = "order-last"  # of the newest ended job
ADDRESS, EMAIL_KEY = "ann@example.com", "mail-500"
REPORT, REPORT_KEY = "sales-3", "month-500"
YEAR_SECONDS = 365 * 86_400
TYPES = 20  # job types with numbers in each minute
HISTOGRAM = json.dumps([0] * 6 + [2, 14, 93, 260, 311, 187, 64, 21, 9, 3, 0, 1], separators=(",", ":"))


@dataclass(frozen=True)
class Sizes:
    """How many rows of each kind."""

    live: int = 100_000
    ended: int = 1_000_000
    deliveries: int = 500_000
    limit_keys: int = 1_000
    unresolved: int = 20_000
    emails: int = 100_000
    entries: int = 200_000  # of the audit log
    reports: int = 20_000
    unfolded: int = 25  # minutes of numbers, each worker's
    minutes: int = 1_500  # of numbers, folded, and in the longer rows as well
    hours: int = 720  # of numbers

    def scaled(self, scale: float) -> Sizes:
        return Sizes(**{name: max(2, int(count * scale)) for name, count in vars(self).items()})

    @property
    def dead_every(self) -> int:
        """Of so many ended jobs one is dead and unresolved, and another one dead and ignored."""
        return max(2, self.ended // self.unresolved)


def fill(effects: Effects, sizes: Sizes) -> None:
    """Fill fresh tables, and gather statistics."""
    sql = effects.store.sql
    with effects.store.begin() as connection, _without_indexes(effects, connection):
        reserve_ids(effects.store, connection, sizes.ended + sizes.live)
        for statement, count in _statements(sizes):
            series = (_POSTGRESQL if sql.postgresql else _SQLITE).format(n=count)
            connection.execute(text(statement.format(s=series, **_words(effects, sizes))))
    with effects.engine.connect() as connection:
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        autocommit.execute(text("VACUUM ANALYZE" if sql.postgresql else "ANALYZE"))


@contextmanager
def _without_indexes(effects: Effects, connection: Connection) -> Iterator[None]:
    """Those of no constraint are built afterwards: ten million rows would go into each of them one by one."""
    dropped = [index for table in effects.store.tables.values() for index in table.indexes if not index.unique]
    for index in dropped:
        index.drop(connection)
    yield
    for index in dropped:
        index.create(connection)


_POSTGRESQL = "generate_series(1, {n}) AS s(i)"
_SQLITE = "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {n}) SELECT i FROM s) AS s"


def _words(effects: Effects, sizes: Sizes) -> dict[str, object]:
    """What the statements need beside the row's number `i`."""
    sql = effects.store.sql
    every = sizes.dead_every
    return {
        "now": sql.now,
        "then": sql.after(f"(i - {sizes.ended}) * {YEAR_SECONDS / sizes.ended}"),
        "tomorrow": sql.after("86400"),
        "body": "'\\x7b7d'::bytea" if sql.postgresql else "x'7b7d'",
        "ended": sizes.ended,
        "keys": sizes.limit_keys,
        "deliveries": sizes.deliveries,
        "dead": f"i % {every} IN (0, 1)",
        "ignored": f"i % {every} = 1",
        # Of the dead every tenth may have happened.
        "unknown": f"i % {every * 10} IN (0, 1)",
        "deliver": DELIVER,
        "rare": RARE,
        "key": KEY,
        "quiet_endpoint": QUIET_ENDPOINT,
        "quiet_tenant": QUIET_TENANT,
        "digest": address_digests(effects, ADDRESS)[0],
        "types": TYPES,
        "histogram": HISTOGRAM,
        "ago": {seconds: _ago(sql, seconds, f"i / {TYPES}") for seconds in LENGTHS},
        "sampled": _ago(sql, 60, "i / 2"),
        "made": sql.after("-i * 300"),
    }


def _ago(sql: Sql, seconds: int, number: str) -> str:
    """When the minute or hour began that is so many before this one."""
    return sql.time(f"{sql.floor(f'{sql.epoch(sql.now)} / {seconds}')} * {seconds} - {number} * {seconds}")


_STATUS = "CASE WHEN {dead} THEN 'dead' ELSE 'succeeded' END"
_VERDICT = "CASE WHEN {unknown} THEN 'unknown' WHEN {dead} THEN 'not_done' ELSE 'done' END"
_STATE = "CASE WHEN {unknown} THEN 'unknown' WHEN {dead} THEN 'refused' ELSE 'done' END"
_TYPE = "CASE WHEN i % 50000 = 7 THEN '{rare}' WHEN i <= {deliveries} THEN '{deliver}' ELSE 'bench.' || (i % 20) END"
_CODE = "CASE WHEN {dead} THEN 'code_' || (i % 7) END"
_ERROR = "CASE WHEN {dead} THEN 'the peer refused request ' || i || ' of the day' END"
_KEY = (
    "CASE WHEN i = {ended} THEN '{key}' WHEN i <= {deliveries} THEN 'msg_' || i || ':' || 'ep_' || (i % {keys}) "
    "ELSE 'order-' || i END"
)
_HISTORY = f"""
    INSERT INTO effects_job_history (id, job_type, limit_key, status, idempotency_key, attempts, lease_token,
        unknown_count, error_code, last_error, created_at, run_at, finished_at, started_at, worker, verdict)
    SELECT i, {_TYPE}, 'webhook:ep_' || (i % {{keys}}), {_STATUS}, {_KEY}, 1, 1,
        CASE WHEN {{unknown}} THEN 1 ELSE 0 END, {_CODE}, {_ERROR}, {{then}}, {{then}}, {{then}},
        CASE WHEN NOT {{dead}} THEN {{then}} END, CASE WHEN NOT {{dead}} THEN 'w' END,
        CASE WHEN NOT {{dead}} THEN 'done' END FROM {{s}}"""
_ATTEMPTS = f"""
    INSERT INTO effects_attempt_log (job_id, lease_token, attempt, started_at, finished_at, worker, outcome,
        verdict, error_code)
    SELECT i, 1, 1, {{then}}, {{then}}, 'w', 'refused', {_VERDICT}, {_CODE} FROM {{s}} WHERE {{dead}}"""
_LEDGER = f"""
    INSERT INTO effects_effect_ledger (job_type, key, digest, state, job_id, created_at, updated_at)
    SELECT {_TYPE}, {_KEY}, '', {_STATE}, i, {{then}}, {{then}} FROM {{s}} WHERE i > {{deliveries}}"""
_DELIVERED = f"""
    INSERT INTO effects_delivered_webhooks (event_id, endpoint_id, digest, state, job_id, created_at, updated_at)
    SELECT 'msg_' || i, 'ep_' || (i % {{keys}}), '', {_STATE}, i, {{then}}, {{then}} FROM {{s}}"""
_EMAILS = f"""
    INSERT INTO effects_sent_emails (key, recipient, template, template_version, transport, message_id, date,
        digest, state, job_id, created_at, updated_at)
    SELECT 'mail-' || i, CASE WHEN i % 5000 = 1 THEN '{{digest}}' ELSE 'digest-' || (i % 1000) END, 'receipt', 'v1',
        'smtp', 'mail-' || i || '@example.com', {{then}}, '', {_STATE}, i, {{then}}, {{then}} FROM {{s}}"""
_RUNS = """
    INSERT INTO effects_report_runs (id, report, key, state, format, dialect, consistency, prefix, created_at)
    SELECT 'run_' || i, 'sales-' || (i % 10), 'month-' || i, CASE WHEN i % 500 = 0 THEN 'failed' ELSE 'ready' END,
        'csv', '', 'none', 'p' || i, {made} FROM {s}"""
_LIVE = """
    INSERT INTO effects_jobs (id, job_type, limit_key, group_key, status, routed, run_at)
    SELECT {ended} + i, 'bench.' || (i % 20), 'webhook:ep_' || (i % {keys}),
        CASE WHEN i % 10 = 0 THEN 'group-' || i END, CASE WHEN i % 5 = 0 THEN 'failed' ELSE 'queued' END, true,
        CASE WHEN i % 2 = 0 THEN {tomorrow} ELSE {now} END FROM {s}"""
_IGNORED = """
    INSERT INTO effects_job_actions (job_id, action, actor)
    SELECT i, 'ignore', 'cli:ann' FROM {s} WHERE {ignored}"""
_UNRESOLVED = """
    INSERT INTO effects_unresolved (job_id, job_type, queue, limit_key, error_code, unknown, finished_at)
    SELECT h.id, h.job_type, h.queue, h.limit_key, h.error_code, h.unknown_count > 0, h.finished_at
    FROM effects_job_history AS h WHERE h.status = 'dead'
    AND h.id NOT IN (SELECT job_id FROM effects_job_actions)"""
_LIMITS = """
    INSERT INTO effects_limits (limit_key, max_in_flight, parent_key)
    SELECT 'webhook:ep_' || (i - 1), 4,
        CASE WHEN i % 100 <> 1 THEN 'webhook:ep_' || (i - 1 - (i - 1) % 100) END FROM {s}"""
_ENDPOINTS = """
    INSERT INTO effects_webhook_endpoints (id, tenant, url)
    SELECT 'ep_' || (i - 1), 'tenant-' || (i - 1), 'https://example.com/' || i FROM {s}"""
_QUIET_ENDPOINT = """
    INSERT INTO effects_webhook_endpoints (id, tenant, url)
    SELECT '{quiet_endpoint}', '{quiet_tenant}', 'https://example.com/quiet' FROM {s}"""
_EVENTS = """
    INSERT INTO effects_webhook_events (id, tenant, type, digest, body, occurred_at, created_at)
    SELECT 'msg_' || i, 'tenant-' || (i % {keys}), 'order.paid', '', {body}, {then}, {then} FROM {s}"""
_ENTRIES = """
    INSERT INTO effects_audit_log (actor, via, action, subject_kind, subject, created_at)
    SELECT 'cli:person-' || (i % 50), 'cli', CASE WHEN i % 10 = 0 THEN 'pause' ELSE 'requeue' END,
        CASE WHEN i % 10 = 0 THEN 'limit' ELSE 'job' END, CAST(i AS text), {made} FROM {s}"""
_SAMPLES = """
    INSERT INTO effects_samples (seconds, begins_at, queue, due, unresolved, workers)
    SELECT 60, {sampled}, CASE WHEN i % 2 = 0 THEN '' ELSE 'default' END, i % 100, 20, 4 FROM {s}"""
_GROUPS = "INSERT INTO effects_job_groups (group_key) SELECT 'group-' || i FROM {s} WHERE i % 10 = 0"


def _statements(sizes: Sizes) -> list[tuple[str, int]]:
    """Each with the number of its rows."""
    return [
        (_HISTORY, sizes.ended),
        (_ATTEMPTS, sizes.ended),
        (_LEDGER, sizes.ended),
        (_IGNORED, sizes.ended),
        (_UNRESOLVED, 1),
        (_LIVE, sizes.live),
        (_GROUPS, sizes.live),
        (_LIMITS, sizes.limit_keys),
        (_ENDPOINTS, sizes.limit_keys),
        (_QUIET_ENDPOINT, 1),
        (_EVENTS, sizes.deliveries),
        (_DELIVERED, sizes.deliveries),
        (_EMAILS, sizes.emails),
        (_ENTRIES, sizes.entries),
        (_RUNS, sizes.reports),
        (_SAMPLES, 2 * sizes.minutes),
        (_rollups(MINUTE, "w-1"), TYPES * sizes.unfolded),
        (_rollups(MINUTE, "w-2"), TYPES * sizes.unfolded),
        (_rollups(MINUTE), TYPES * sizes.minutes),
        (_rollups(TEN_MINUTES), TYPES * max(1, sizes.minutes // 10)),
        (_rollups(HOUR), TYPES * sizes.hours),
        (_rollups(SIX_HOURS), TYPES * max(1, sizes.hours // 6)),
    ]


def _rollups(seconds: int, worker: str = "") -> str:
    return f"""
        INSERT INTO effects_rollups (seconds, worker, begins_at, job_type, queue, done, failed, wait_seconds,
            run_seconds, wait_counts, run_counts)
        SELECT {seconds}, '{worker}', {{ago[{seconds}]}}, 'bench.' || (i % {{types}}), 'default', 965, i % 7, 41.5,
            97.25, '{{histogram}}', '{{histogram}}' FROM {{s}}"""


def main(arguments: list[str] | None = None) -> None:
    """Create the tables and fill them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fill", description=__doc__)
    parser.add_argument("database", help="a libpq URL or the path of a SQLite file, without our tables")
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 for a hundredth of the rows; default 1")
    options = parser.parse_args(arguments)
    effects = Effects(effects_url(options.database), log_level="WARNING")
    effects.create_tables()
    fill(effects, Sizes().scaled(options.scale))
    effects.dispose()


if __name__ == "__main__":
    main()
