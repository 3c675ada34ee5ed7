"""Tables of what holds jobs back: limits of keys, paused queues."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Double, Integer, MetaData, Table, Text

from effects.limits import PERIOD_SECONDS_MIN
from effects.store.schema.checks import (
    COUNT_MAX,
    COUNTS,
    SECONDS,
    TIMES,
    check,
    check_keys,
    check_range,
    check_types,
    numeric,
)
from effects.store.schema.columns import UtcTime, int_column, now_column, partial_index, seconds_column

PAUSED_SECONDS_MAX = 1e15  # what a run of pauses may add up to


def limit_checks() -> list[CheckConstraint]:
    """What a row of `effects_limits` must be: one that cannot be calculated with would stop the claims of its queue."""
    table = "effects_limits"
    return [
        check_keys(table, "limit_key", "parent_key"),
        check_range(
            table,
            TIMES,
            "refilled_at",
            "paused_until",
            "paused_from",
            "breaker_changed_at",
            "updated_at",
        ),
        check_range(table, COUNTS, "max_in_flight", "rate_tokens", "rate_burst", "breaker_after", "breaker_failures"),
        check_range(table, SECONDS, "rate_period_seconds", "breaker_seconds"),
        _check_limits(table),
        check_types(table, texts=["pause_reason"]),
    ]


def _check_limits(table: str) -> CheckConstraint:
    """Limits that something can run under, whole or absent."""
    conditions = [
        "max_in_flight > 0",
        f"COALESCE(rate_tokens > 0 AND rate_period_seconds >= {PERIOD_SECONDS_MIN} AND rate_burst > 0, "
        "rate_tokens IS NULL)",
        "COALESCE(breaker_after > 0 AND breaker_seconds > 0, breaker_after IS NULL)",
        f"tokens BETWEEN -{COUNT_MAX} AND {COUNT_MAX}",
        f"paused_seconds BETWEEN 0 AND {PAUSED_SECONDS_MAX:.0f}",
    ]
    numbers = [f"({column} IS NULL OR {numeric(column)})" for column in ("tokens", "paused_seconds")]
    return check(table, "limits", conditions, [*conditions, *numbers])


def queue_checks() -> list[CheckConstraint]:
    """What a row of `effects_queues` must be."""
    table = "effects_queues"
    return [
        check_keys(table, "queue"),
        check_range(table, TIMES, "paused_until"),
        check_types(table, texts=["paused_by", "reason"]),
    ]


def limit_tables(metadata: MetaData) -> list[Table]:
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
        now_column("updated_at"),
        CheckConstraint("max_in_flight > 0", name="ck_effects_limits_max_in_flight"),
        CheckConstraint("breaker_state IN ('closed', 'open')", name="ck_effects_limits_breaker_state"),
        *limit_checks(),
        # A row with a rate is written with every claim.
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.1"},
    )
    partial_index("ix_effects_limits_parent", limits, ["parent_key"], "parent_key IS NOT NULL")
    queues = Table(
        "effects_queues",
        metadata,
        Column("queue", Text, primary_key=True),
        Column("paused_until", UtcTime),
        Column("paused_by", Text),
        Column("reason", Text),
        *queue_checks(),
    )
    return [limits, queues]
