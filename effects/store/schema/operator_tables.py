"""Tables of operations: workers, what operators did and are doing, open alerts, what retention deleted."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Integer, MetaData, Table, Text, text

from effects.store.schema.checks import COUNTS, TIMES, check_range
from effects.store.schema.columns import (
    Identity,
    Json,
    UtcTime,
    flag_column,
    int_column,
    now_column,
    partial_index,
    seconds_column,
)

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
