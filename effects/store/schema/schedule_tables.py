"""Tables of the schedules and of their slots."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, MetaData, Table, Text, text

from effects.store.schema.columns import Identity, Json, UtcTime, flag_column, int_column, now_column


def schedule_tables(metadata: MetaData) -> list[Table]:
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
