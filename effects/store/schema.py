"""The tables of the core. The table is the contract: a plain `INSERT INTO effects_jobs (job_type, payload)` works.

No foreign key points at `effects_jobs`: it holds live work only and its rows leave it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Integer, MetaData, SmallInteger, Table, Text, text

from effects.store.columns import (
    DatabaseNow,
    Identity,
    Json,
    UtcTime,
    flag_column,
    int_column,
    ledger_columns,
    now_column,
    partial_index,
    seconds_column,
)

STATUS_LIVE = "status IN ('queued', 'running', 'failed')"
STATUS_ENDED = "status IN ('succeeded', 'dead', 'cancelled')"
WAITING = "status <> 'running'"  # of a live job; the indexes' predicate, word for word


def _facts() -> list[Column[Any]]:
    """What a live and an ended job have in common."""
    return [
        Column("job_type", Text, nullable=False),
        Column("queue", Text, nullable=False, server_default="default"),
        Column("priority", SmallInteger, nullable=False, server_default=text("5")),
        Column("payload", Json, nullable=False, server_default=text("'{}'")),
        Column("run_at", UtcTime, nullable=False, server_default=DatabaseNow()),
        int_column("attempts"),
        Column("max_attempts", Integer),
        Column("lease_token", BigInteger, nullable=False, server_default=text("0")),
        int_column("lost_count"),
        int_column("unknown_count"),
        Column("group_key", Text),
        Column("limit_key", Text),
        Column("idempotency_key", Text),
        Column("definition_id", BigInteger),
        Column("slot", UtcTime),
        Column("requeued_from", BigInteger),
        Column("last_error", Text),
        Column("error_code", Text),
        Column("expires_at", UtcTime),
        Column("trace_context", Text),
        Column("on_unknown", Text),  # NULL: as its job type says
        now_column("created_at"),
    ]


FACTS = tuple(column.name for column in _facts())


def build_tables(metadata: MetaData) -> dict[str, Table]:
    """The core's tables in this MetaData, by their names without the prefix."""
    tables = [
        *_job_tables(metadata),
        *_limit_tables(metadata),
        *_schedule_tables(metadata),
        *_record_tables(metadata),
    ]
    return {table.name.removeprefix("effects_"): table for table in tables}


def _job_tables(metadata: MetaData) -> list[Table]:
    jobs = Table(
        "effects_jobs",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        *_facts(),
        Column("status", Text, nullable=False, server_default="queued"),
        flag_column("prepared"),
        now_column("age_from"),
        Column("locked_by", Text),
        Column("locked_until", UtcTime),
        Column("started_at", UtcTime),
        Column("released_at", UtcTime),
        Column("quarantined_from", Text),
        flag_column("cancel_requested"),
        now_column("updated_at"),
        CheckConstraint(STATUS_LIVE, name="ck_effects_jobs_status"),
        CheckConstraint("on_unknown IN ('repeat', 'repeat_once', 'hold')", name="ck_effects_jobs_on_unknown"),
        sqlite_autoincrement=True,
        # Dead tuples are what makes a queue table slow: leave room for HOT updates and vacuum early.
        postgresql_with={
            "fillfactor": "80",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "500",
            "autovacuum_analyze_scale_factor": "0.05",
        },
    )
    _job_indexes(jobs)
    history = Table(
        "effects_job_history",
        metadata,
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        *_facts(),
        Column("status", Text, nullable=False),
        now_column("finished_at"),
        CheckConstraint(STATUS_ENDED, name="ck_effects_job_history_status"),
    )
    partial_index("ix_effects_job_history_failed", history, ["status", "finished_at"], "status <> 'succeeded'")
    partial_index("ix_effects_job_history_requeued_from", history, ["requeued_from"], "requeued_from IS NOT NULL")
    attempts = Table(
        "effects_job_attempts",
        metadata,
        Column("job_id", BigInteger, primary_key=True, autoincrement=False),
        Column("lease_token", BigInteger, primary_key=True, autoincrement=False),
        Column("attempt", Integer, nullable=False),
        Column("started_at", UtcTime, nullable=False),
        Column("finished_at", UtcTime, nullable=False),
        Column("worker", Text),
        Column("outcome", Text, nullable=False),
        Column("verdict", Text),
        Column("error_type", Text),
        Column("error_code", Text),
        Column("message", Text),
        Column("stack", Text),
        Column("detail", Json),
        CheckConstraint("verdict IN ('done', 'not_done', 'unknown')", name="ck_effects_job_attempts_verdict"),
    )
    return [jobs, history, attempts]


def _job_indexes(jobs: Table) -> None:
    partial_index("ix_effects_jobs_ready", jobs, ["queue", "priority", "run_at", "id"],
             f"{WAITING} AND limit_key IS NULL AND group_key IS NULL")  # fmt: skip
    partial_index("ix_effects_jobs_ready_limited", jobs, ["queue", "limit_key", "priority", "run_at", "id"],
             f"{WAITING} AND limit_key IS NOT NULL AND group_key IS NULL")  # fmt: skip
    partial_index("ix_effects_jobs_group", jobs, ["group_key", "id"], "group_key IS NOT NULL")
    partial_index("ix_effects_jobs_running_worker", jobs, ["locked_by"], "status = 'running'")
    partial_index("ix_effects_jobs_running_until", jobs, ["locked_until"], "status = 'running'")
    partial_index("ux_effects_jobs_group_running", jobs, ["group_key"],
             "status = 'running' AND group_key IS NOT NULL", unique=True)  # fmt: skip
    partial_index("ux_effects_jobs_requeued_from", jobs, ["requeued_from"], "requeued_from IS NOT NULL", unique=True)
    partial_index("ix_effects_jobs_definition", jobs, ["definition_id"], "definition_id IS NOT NULL")


def _limit_tables(metadata: MetaData) -> list[Table]:
    groups = Table(
        "effects_job_groups",
        metadata,
        Column("group_key", Text, primary_key=True),
        flag_column("blocked"),
    )
    limits = Table(
        "effects_limits",
        metadata,
        Column("limit_key", Text, primary_key=True),
        Column("parent_key", Text),
        Column("max_in_flight", Integer),
        Column("rate_tokens", Integer),  # so many starts
        Column("rate_period_seconds", Double),  # in so many seconds
        Column("rate_burst", Integer),  # at most so many at once; also what the bucket holds
        Column("tokens", Double),  # in the bucket at `refilled_at`
        Column("refilled_at", UtcTime),
        Column("paused_until", UtcTime),
        Column("pause_reason", Text),
        Column("paused_from", UtcTime),  # where a run of pauses began that follow each other closely
        seconds_column("paused_seconds"),  # of that run
        Column("breaker_after", Integer),  # failures in a row that open the breaker; NULL is no breaker
        Column("breaker_seconds", Double),  # until one attempt may probe
        Column("breaker_state", Text, nullable=False, server_default="closed"),
        int_column("breaker_failures"),
        Column("breaker_changed_at", UtcTime),
        Column("last_action", Text),
        Column("last_actor", Text),
        Column("last_action_at", UtcTime),
        now_column("updated_at"),
        CheckConstraint("max_in_flight > 0", name="ck_effects_limits_max_in_flight"),
        CheckConstraint("breaker_state IN ('closed', 'open')", name="ck_effects_limits_breaker_state"),
        # A row with a rate is written with every claim.
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.1"},
    )
    partial_index("ix_effects_limits_parent", limits, ["parent_key"], "parent_key IS NOT NULL")
    return [groups, limits]


def _schedule_tables(metadata: MetaData) -> list[Table]:
    definitions = Table(
        "effects_job_definitions",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("name", Text, nullable=False, unique=True),
        Column("job_type", Text, nullable=False),
        Column("payload", Json, nullable=False, server_default=text("'{}'")),
        Column("cron", Text, nullable=False),
        Column("zone", Text, nullable=False, server_default="UTC"),
        Column("max_attempts", Integer),
        Column("overlap", Text, nullable=False, server_default="skip"),
        Column("catch_up", Text, nullable=False, server_default="latest"),
        int_column("catch_up_max", 100),
        Column("key", Text),
        flag_column("in_code"),
        flag_column("retired"),  # in code once, and no longer
        flag_column("enabled", "true"),  # the operator's word, which no deploy changes
        Column("paused_by", Text),
        now_column("last_slot"),  # slots up to here have been dealt with
        now_column("created_at"),
        now_column("updated_at"),
        sqlite_autoincrement=True,
    )
    runs = Table(
        "effects_definition_runs",
        metadata,
        Column("definition_id", BigInteger, primary_key=True, autoincrement=False),
        Column("slot", UtcTime, primary_key=True),
        Column("job_id", BigInteger),
        Column("outcome", Text, nullable=False, server_default="enqueued"),
        Column("reason", Text),
        now_column("created_at"),
        CheckConstraint(
            "outcome IN ('enqueued', 'existing', 'skipped', 'failed')", name="ck_effects_definition_runs_outcome"
        ),
    )
    return [definitions, runs]


def _record_tables(metadata: MetaData) -> list[Table]:
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
        Column("lanes", Text, nullable=False),
        now_column("started_at"),
        now_column("seen_at"),
        postgresql_with={"fillfactor": "50"},
    )
    ledger = Table(
        "effects_effect_ledger",
        metadata,
        Column("job_type", Text, primary_key=True),
        Column("key", Text, primary_key=True),
        *ledger_columns(),
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
    return [actions, workers, ledger, pruned, episodes]
