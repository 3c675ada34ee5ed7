"""The tables beside the jobs' own: workers, failovers, operators' actions, sign-ins, grants, alerts; all together."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from effects.store.schema.columns import (
    COUNTS,
    TIMES,
    Identity,
    Json,
    UtcTime,
    check_keys,
    check_range,
    check_types,
    flag_column,
    int_column,
    now_column,
    partial_index,
    seconds_column,
)
from effects.store.schema.job_tables import job_tables, limit_tables, schedule_tables

PRUNED_JOBS = "jobs"  # the row of `effects_pruned` about jobs
FOLDED_NUMBERS = "numbers"  # the one that is held while numbers are folded
# Seconds of a row of numbers. What workers did is kept by each of them, so that no look at it reads many rows.
MINUTE, TEN_MINUTES, HOUR, SIX_HOURS = LENGTHS = (60, 600, 3600, 21_600)
# How attempts ended, a column each: attempts, but for the two last.
ROLLUP_COUNTS = (
    "done", "failed", "refused", "unknown", "timed_out", "lost", "cancelled", "snoozed", "dead",
)  # fmt: skip
# What a sample counts at one moment.
SAMPLE_COUNTS = ("due", "held", "running", "retrying", "unresolved", "workers")
AUDIT_VIAS = ("cli", "web", "api", "schedule")  # through what an action came
FIRST, BY_NAME, BY_HEARTBEAT = "first", "name", "heartbeat"  # by what a history was noticed
RECORDED, UNKNOWN, REPEATED, ORPHAN = FATES = ("recorded", "unknown", "repeated", "orphan")
LINK, SESSION = "link", "session"


def operator_tables(metadata: MetaData) -> list[Table]:
    actions = Table(
        "effects_job_actions",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("job_id", BigInteger, nullable=False, index=True),
        Column("action", Text, nullable=False),
        Column("actor", Text, nullable=False),
        Column("reason", Text),
        now_column("created_at"),
        sqlite_autoincrement=True,
    )
    workers = Table(
        "effects_workers",
        metadata,
        Column("id", Text, primary_key=True),
        Column("host", Text, nullable=False),
        Column("pid", Integer, nullable=False),
        Column("version", Text, nullable=False),
        Column("revisions", Text, nullable=False, server_default=""),  # the newest that its code knows, of each package
        Column("queues", Text, nullable=False),
        Column("heartbeat_seconds", Double, nullable=False),  # its own settings: others may have different ones
        Column("lease_seconds", Double, nullable=False),
        now_column("started_at"),
        now_column("seen_at"),
        Column("beat", BigInteger, nullable=False, server_default=text("0")),  # heartbeats: fewer than before are lost
        Column("compared", BigInteger),  # the failover with which it has compared what it remembers
        Column("claimed_at", UtcTime),  # when it last looked for work, or had no room for more
        Column("settled_at", UtcTime),  # when it last wrote outcomes
        Column("fired_at", UtcTime),  # when it last looked at the schedules
        Column("oldest_unsettled_seconds", Double),  # how old its oldest unwritten outcome was at the last heartbeat
        Column("drain_requested_at", UtcTime),  # a drain was requested; its heartbeat reads it
        Column("drain_requested_by", Text),
        Column("drain_reason", Text),
        Column("ended_at", UtcTime),  # it ended by a fault; kept for a while
        Column("exit_code", Integer),
        Column("end_reason", Text),
        postgresql_with={"fillfactor": "50"},
    )
    pruned = Table(
        "effects_pruned",
        metadata,
        Column("name", Text, primary_key=True),
        Column("job_id", BigInteger, nullable=False),  # of ended jobs up to this id, some are gone
        now_column("updated_at"),
    )
    episodes = Table(
        "effects_alert_episodes",
        metadata,
        Column("alert", Text, primary_key=True),
        Column("subject", Text, primary_key=True),
        Column("number", Integer, nullable=False),
        flag_column("is_open"),
        Column("value", Double, nullable=False),
        now_column("opened_at"),
        now_column("updated_at"),
    )
    return [actions, _bulk_actions(metadata), workers, pruned, episodes, *_numbers(metadata)]


def bulk_checks() -> list[CheckConstraint]:
    """What a row of `effects_bulk_actions` must be, to be worked off."""
    table = "effects_bulk_actions"
    return [
        CheckConstraint("status IN ('running', 'done', 'cancelled')", name=f"ck_{table}_status"),
        check_range(table, COUNTS, "done", "refused"),
    ]


def _bulk_actions(metadata: MetaData) -> Table:
    """An action on many jobs: what it is about, frozen at its preview, and how far it is."""
    bulk_actions = Table(
        "effects_bulk_actions",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("action", Text, nullable=False),
        Column("options", Json, nullable=False),  # of the action, such as what was confirmed
        Column("filters", Json, nullable=False),
        Column("last_id", BigInteger, nullable=False),  # jobs up to this id are done with
        Column("max_id", BigInteger, nullable=False),  # later ones are none of its business
        Column("expected", Integer, nullable=False),  # as counted by the preview
        flag_column("counted_all"),  # else `expected` is a least number
        Column("status", Text, nullable=False, server_default="running"),
        int_column("done"),
        int_column("refused"),
        Column("refusals", Json, nullable=False, server_default=text("'{}'")),  # reason → how many
        Column("job_id", BigInteger),  # the newest job that works on it
        Column("actor", Text, nullable=False),
        Column("reason", Text),
        now_column("created_at"),
        now_column("updated_at"),
        Column("ended_at", UtcTime),
        *bulk_checks(),
        sqlite_autoincrement=True,
    )
    partial_index("ix_effects_bulk_actions_running", bulk_actions, ["id"], "status = 'running'")
    return bulk_actions


def number_checks(table: str) -> list[CheckConstraint]:
    """What a row of `effects_rollups` or `effects_samples` must be, to be added up."""
    counts = ROLLUP_COUNTS if table == "effects_rollups" else (*SAMPLE_COUNTS, "minutes")
    return [check_range(table, TIMES, "begins_at"), check_range(table, COUNTS, "seconds", *counts)]


def _numbers(metadata: MetaData) -> list[Table]:
    """What was done and what waited, over time. `begins_at`: of a stretch of time, `seconds` long."""
    rollups = Table(
        "effects_rollups",
        metadata,
        Column("seconds", Integer, primary_key=True, autoincrement=False),
        Column("worker", Text, primary_key=True),  # empty: those of all workers, folded
        Column("begins_at", UtcTime, primary_key=True),
        Column("job_type", Text, primary_key=True),
        Column("queue", Text, primary_key=True),
        *(int_column(name) for name in ROLLUP_COUNTS),
        seconds_column("wait_seconds"),
        seconds_column("run_seconds"),
        Column("wait_counts", Json, nullable=False, server_default=text("'[]'")),  # histograms, see effects.histogram
        Column("run_counts", Json, nullable=False, server_default=text("'[]'")),
        *number_checks("effects_rollups"),
    )
    samples = Table(
        "effects_samples",
        metadata,
        Column("seconds", Integer, primary_key=True, autoincrement=False),
        Column("begins_at", UtcTime, primary_key=True),
        Column("queue", Text, primary_key=True),  # empty: the row of the whole, there whenever a worker was
        seconds_column("oldest_due_seconds"),
        *(int_column(name) for name in SAMPLE_COUNTS),
        int_column("minutes", 1),  # sampled ones, that this row stands for
        *number_checks("effects_samples"),
    )
    return [rollups, samples]


def audit_checks() -> list[CheckConstraint]:
    """What a row of `effects_audit_log` must be."""
    table = "effects_audit_log"
    return [
        check_keys(table, "actor", "action", "subject_kind", "subject"),
        check_range(table, TIMES, "created_at"),
        check_types(table, texts=["tenant", "reason"]),
    ]


def _audit_tables(metadata: MetaData) -> list[Table]:
    log = Table(
        "effects_audit_log",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("actor", Text, nullable=False),
        Column("via", Text, nullable=False),
        Column("action", Text, nullable=False),
        Column("subject_kind", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("tenant", Text),
        Column("reason", Text),
        Column("detail", Json, nullable=False, server_default=text("'{}'")),
        now_column("created_at"),
        CheckConstraint("via IN ('cli', 'web', 'api', 'schedule')", name="ck_effects_audit_log_via"),
        *audit_checks(),
        sqlite_autoincrement=True,
    )
    Index("ix_effects_audit_log_actor", log.c.actor, log.c.id)
    Index("ix_effects_audit_log_action", log.c.action, log.c.id)
    Index("ix_effects_audit_log_subject", log.c.subject_kind, log.c.subject, log.c.id)
    Index("ix_effects_audit_log_created_at", log.c.created_at)
    return [log]


def failover_checks() -> list[CheckConstraint]:
    """What a row of `effects_failovers` must be."""
    return [CheckConstraint("sign IN ('first', 'name', 'heartbeat')", name="ck_effects_failovers_sign")]


def evidence_checks() -> list[CheckConstraint]:
    """What a row of `effects_evidence` must be."""
    fates = ", ".join(f"'{fate}'" for fate in FATES)
    return [CheckConstraint(f"fate IN ({fates})", name="ck_effects_evidence_fate")]


def _failover_tables(metadata: MetaData) -> list[Table]:
    failovers = Table(
        "effects_failovers",
        metadata,
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("history", Text),  # system identifier and timeline; NULL where the database has no such names
        Column("sign", Text, nullable=False),  # what it was noticed by; the first row is no failover
        Column("noticed_by", Text, nullable=False),
        now_column("noticed_at"),
        int_column("workers"),  # that were alive then
        int_column("compared"),  # workers that have compared what they remember
        int_column("recorded"),  # of what they remember: outcomes that were lost, and are written back
        int_column("unknowns"),  # releases without an outcome
        int_column("orphans"),  # effects of jobs that the database does not know
        int_column("incomplete"),  # workers that may have forgotten more than they remember
        Column("resolved_at", UtcTime),  # a person has looked into it
        *failover_checks(),
    )
    evidence = Table(
        "effects_evidence",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("job_id", BigInteger, nullable=False),  # in the history that was lost
        Column("lease_token", BigInteger, nullable=False),  # likewise
        Column("job_type", Text, nullable=False),
        Column("key", Text),
        Column("worker", Text, nullable=False),
        Column("outcome", Text),  # NULL: released, and its end is not known
        Column("verdict", Text),
        Column("fate", Text, nullable=False),
        Column("failover_id", BigInteger, nullable=False),
        Column("happened_at", UtcTime),
        now_column("created_at"),
        UniqueConstraint("job_id", "lease_token", name="ux_effects_evidence_attempt"),
        *evidence_checks(),
        sqlite_autoincrement=True,
    )
    Index("ix_effects_evidence_key", evidence.c.key)
    return [failovers, evidence]


def _grant_tables(metadata: MetaData) -> list[Table]:
    grants = Table(
        "effects_grants",
        metadata,
        Column("role", Text, primary_key=True),  # of the database's, by its name
        Column("job_type", Text, primary_key=True),
        Column("trusted_fields", Json, nullable=False, server_default=text("'[]'")),  # a payload has none of these
        now_column("created_at"),
    )
    return [grants]


def web_session_checks() -> list[CheckConstraint]:
    """What a row of `effects_web_sessions` must be."""
    table = "effects_web_sessions"
    return [
        CheckConstraint(f"kind IN ('{LINK}', '{SESSION}')", name=f"ck_{table}_kind"),
        CheckConstraint("role IN ('viewer', 'operator', 'admin')", name=f"ck_{table}_role"),
    ]


def _web_tables(metadata: MetaData) -> list[Table]:
    sessions = Table(
        "effects_web_sessions",
        metadata,
        Column("id", Text, primary_key=True),  # SHA-256 of the secret, which only the person has
        Column("kind", Text, nullable=False),
        Column("person", Text, nullable=False),
        Column("role", Text, nullable=False),
        flag_column("personal"),
        seconds_column("session_seconds"),  # of a link: how long the session lasts that it begins
        now_column("created_at"),
        now_column("seen_at"),
        Column("ends_at", UtcTime, nullable=False),
        Column("ended_at", UtcTime),  # signed out, ended by an operator, or a link that was used
        *web_session_checks(),
    )
    Index("ix_effects_web_sessions_ends_at", sessions.c.ends_at)
    return [sessions]


SUPPORT = "effects_schema_support"


def _version_tables(metadata: MetaData) -> list[Table]:
    support = Table(
        SUPPORT,
        metadata,
        Column("revision", Text, primary_key=True),  # that was applied
        Column("oldest_code", Text, nullable=False),  # the newest revision of the oldest code that works with it
    )
    return [support]


def build_tables(metadata: MetaData) -> dict[str, Table]:
    """The core's tables in this MetaData, by their names without the prefix."""
    tables = [
        *job_tables(metadata),
        *limit_tables(metadata),
        *schedule_tables(metadata),
        *operator_tables(metadata),
        *_audit_tables(metadata),
        *_failover_tables(metadata),
        *_web_tables(metadata),
        *_grant_tables(metadata),
        *_version_tables(metadata),
    ]
    return {table.name.removeprefix("effects_"): table for table in tables}
