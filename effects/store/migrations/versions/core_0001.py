"""The core's tables."""

import sqlalchemy as sa
from alembic import op

from effects.store.enqueue.new_rows import create_function
from effects.store.schema.columns import DatabaseNow, Identity, Json, UtcTime
from effects.store.schema.job_tables import (
    REFUSE_FAR_IDS,
    attempts_view,
    job_checks,
    limit_checks,
    queue_checks,
    statistics_views,
)
from effects.store.schema.tables import (
    audit_checks,
    bulk_checks,
    evidence_checks,
    failover_checks,
    number_checks,
    web_session_checks,
)

revision = "core_0001"
down_revision = None
branch_labels = ("core",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "effects_definition_runs",
        sa.Column("definition_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("slot", UtcTime(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), server_default="enqueued", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('enqueued', 'existing', 'skipped', 'failed')", name="ck_effects_definition_runs_outcome"
        ),
        sa.PrimaryKeyConstraint("definition_id", "slot"),
    )
    op.create_table(
        "effects_effect_ledger",
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="intended", nullable=False),
        sa.Column("released_at", UtcTime(), nullable=True),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('intended', 'released', 'done', 'refused', 'unknown', 'abandoned')",
            name="ck_ledger_state",
        ),
        sa.PrimaryKeyConstraint("job_type", "key"),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index("ix_effects_effect_ledger_job_id", "effects_effect_ledger", ["job_id"], unique=False)
    op.create_table(
        "effects_audit_log",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject_kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.CheckConstraint("via IN ('cli', 'web', 'api', 'schedule')", name="ck_effects_audit_log_via"),
        *audit_checks(),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_effects_audit_log_actor", "effects_audit_log", ["actor", "id"], unique=False)
    op.create_index("ix_effects_audit_log_action", "effects_audit_log", ["action", "id"], unique=False)
    op.create_index(
        "ix_effects_audit_log_subject", "effects_audit_log", ["subject_kind", "subject", "id"], unique=False
    )
    op.create_index("ix_effects_audit_log_created_at", "effects_audit_log", ["created_at"], unique=False)
    op.create_table(
        "effects_job_actions",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_effects_job_actions_job_id", "effects_job_actions", ["job_id"], unique=False)
    op.create_table(
        "effects_bulk_actions",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("options", Json, nullable=False),
        sa.Column("filters", Json, nullable=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("max_id", sa.BigInteger(), nullable=False),
        sa.Column("expected", sa.Integer(), nullable=False),
        sa.Column("counted_all", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("status", sa.Text(), server_default="running", nullable=False),
        sa.Column("done", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("refused", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("refusals", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        *bulk_checks(),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_effects_bulk_actions_running",
        "effects_bulk_actions",
        ["id"],
        unique=False,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "effects_attempt_log",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("lease_token", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("finished_at", UtcTime(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("stack", sa.Text(), nullable=True),
        sa.Column("detail", Json, nullable=True),
        sa.Column("error_text", Json, nullable=True),
        sa.Column("result", Json, nullable=True),
        sa.Column("late_outcome", sa.Text(), nullable=True),
        sa.Column("late_verdict", sa.Text(), nullable=True),
        sa.Column("late_code", sa.Text(), nullable=True),
        sa.Column("late_message", sa.Text(), nullable=True),
        sa.Column("late_at", UtcTime(), nullable=True),
        sa.CheckConstraint("verdict IN ('done', 'not_done', 'unknown')", name="ck_effects_attempt_log_verdict"),
        sa.PrimaryKeyConstraint("job_id", "lease_token"),
    )
    op.create_table(
        "effects_job_definitions",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("payload", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), server_default="UTC", nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("overlap", sa.Text(), server_default="skip", nullable=False),
        sa.Column("catch_up", sa.Text(), server_default="latest", nullable=False),
        sa.Column("catch_up_max", sa.Integer(), server_default=sa.text("100"), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("in_code", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("retired", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("last_slot", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "effects_job_groups",
        sa.Column("group_key", sa.Text(), nullable=False),
        sa.Column("blocked", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("group_key"),
    )
    op.create_table(
        "effects_job_history",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("lease_token", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lost_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unknown_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("5"), nullable=False),
        sa.Column("run_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("definition_id", sa.BigInteger(), nullable=True),
        sa.Column("slot", UtcTime(), nullable=True),
        sa.Column("requeued_from", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), server_default="default", nullable=False),
        sa.Column("group_key", sa.Text(), nullable=True),
        sa.Column("limit_key", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("on_unknown", sa.Text(), nullable=True),
        sa.Column("trace_context", sa.Text(), nullable=True),
        sa.Column("payload", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("finished_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("started_at", UtcTime(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("detail", Json, nullable=True),
        sa.Column("result", Json, nullable=True),
        sa.CheckConstraint("status IN ('succeeded', 'dead', 'cancelled')", name="ck_effects_job_history_status"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_effects_job_history_failed",
        "effects_job_history",
        ["status", "finished_at"],
        unique=False,
        sqlite_where=sa.text("status <> 'succeeded'"),
        postgresql_where=sa.text("status <> 'succeeded'"),
    )
    op.create_index(
        "ix_effects_job_history_unsuccessful",
        "effects_job_history",
        ["status", "id"],
        unique=False,
        sqlite_where=sa.text("status <> 'succeeded'"),
        postgresql_where=sa.text("status <> 'succeeded'"),
    )
    op.create_index(
        "ix_effects_job_history_requeued_from",
        "effects_job_history",
        ["requeued_from"],
        unique=False,
        sqlite_where=sa.text("requeued_from IS NOT NULL"),
        postgresql_where=sa.text("requeued_from IS NOT NULL"),
    )
    op.create_table(
        "effects_jobs",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("age_from", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("locked_until", UtcTime(), nullable=True),
        sa.Column("started_at", UtcTime(), nullable=True),
        sa.Column("released_at", UtcTime(), nullable=True),
        sa.Column("routed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("has_attempts", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("locked_by", sa.Text(), nullable=True),
        sa.Column("quarantined_from", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lost_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unknown_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("5"), nullable=False),
        sa.Column("run_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("definition_id", sa.BigInteger(), nullable=True),
        sa.Column("slot", UtcTime(), nullable=True),
        sa.Column("requeued_from", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), server_default="default", nullable=False),
        sa.Column("group_key", sa.Text(), nullable=True),
        sa.Column("limit_key", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("on_unknown", sa.Text(), nullable=True),
        sa.Column("trace_context", sa.Text(), nullable=True),
        sa.Column("payload", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.CheckConstraint("on_unknown IN ('repeat', 'repeat_once', 'hold')", name="ck_effects_jobs_on_unknown"),
        sa.CheckConstraint("status IN ('queued', 'running', 'failed')", name="ck_effects_jobs_status"),
        *job_checks(),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with={
            "fillfactor": "50",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "500",
            "autovacuum_analyze_scale_factor": "0.05",
        },
        sqlite_autoincrement=True,
    )
    _create_job_indexes()
    op.create_table(
        "effects_limits",
        sa.Column("limit_key", sa.Text(), nullable=False),
        sa.Column("parent_key", sa.Text(), nullable=True),
        sa.Column("max_in_flight", sa.Integer(), nullable=True),
        sa.Column("rate_tokens", sa.Integer(), nullable=True),
        sa.Column("rate_period_seconds", sa.Double(), nullable=True),
        sa.Column("rate_burst", sa.Integer(), nullable=True),
        sa.Column("tokens", sa.Double(), nullable=True),
        sa.Column("refilled_at", UtcTime(), nullable=True),
        sa.Column("paused_until", UtcTime(), nullable=True),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.Column("paused_from", UtcTime(), nullable=True),
        sa.Column("paused_seconds", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("breaker_after", sa.Integer(), nullable=True),
        sa.Column("breaker_seconds", sa.Double(), nullable=True),
        sa.Column("breaker_state", sa.Text(), server_default="closed", nullable=False),
        sa.Column("breaker_failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("breaker_changed_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.CheckConstraint("max_in_flight > 0", name="ck_effects_limits_max_in_flight"),
        sa.CheckConstraint("breaker_state IN ('closed', 'open')", name="ck_effects_limits_breaker_state"),
        *limit_checks(),
        sa.PrimaryKeyConstraint("limit_key"),
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.1"},
    )
    op.create_index(
        "ix_effects_limits_parent",
        "effects_limits",
        ["parent_key"],
        sqlite_where=sa.text("parent_key IS NOT NULL"),
        postgresql_where=sa.text("parent_key IS NOT NULL"),
    )
    op.create_table(
        "effects_queues",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("paused_until", UtcTime(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        *queue_checks(),
        sa.PrimaryKeyConstraint("queue"),
    )
    op.create_table(
        "effects_alert_episodes",
        sa.Column("alert", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("is_open", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("opened_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("alert", "subject"),
    )
    op.create_table(
        "effects_pruned",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "effects_unresolved",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("limit_key", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("unknown", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("finished_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
        postgresql_with={"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "500"},
    )
    op.create_index("ix_effects_unresolved_finished_at", "effects_unresolved", ["finished_at", "job_id"], unique=False)
    op.create_table(
        "effects_failovers",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("history", sa.Text(), nullable=True),
        sa.Column("sign", sa.Text(), nullable=False),
        sa.Column("noticed_by", sa.Text(), nullable=False),
        sa.Column("noticed_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("workers", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("compared", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("recorded", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unknowns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("orphans", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("incomplete", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("resolved_at", UtcTime(), nullable=True),
        *failover_checks(),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "effects_evidence",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("fate", sa.Text(), nullable=False),
        sa.Column("failover_id", sa.BigInteger(), nullable=False),
        sa.Column("happened_at", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        *evidence_checks(),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "lease_token", name="ux_effects_evidence_attempt"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_effects_evidence_key", "effects_evidence", ["key"], unique=False)
    op.create_table(
        "effects_workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("revisions", sa.Text(), server_default="", nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column("heartbeat_seconds", sa.Double(), nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("started_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("seen_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("beat", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("compared", sa.BigInteger(), nullable=True),
        sa.Column("claimed_at", UtcTime(), nullable=True),
        sa.Column("settled_at", UtcTime(), nullable=True),
        sa.Column("fired_at", UtcTime(), nullable=True),
        sa.Column("oldest_unsettled_seconds", sa.Double(), nullable=True),
        sa.Column("drain_requested_at", UtcTime(), nullable=True),
        sa.Column("drain_requested_by", sa.Text(), nullable=True),
        sa.Column("drain_reason", sa.Text(), nullable=True),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "effects_rollups",
        sa.Column("seconds", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("begins_at", UtcTime(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("done", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("refused", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unknown", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("timed_out", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lost", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancelled", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("snoozed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("dead", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("wait_seconds", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("run_seconds", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("wait_counts", Json, server_default=sa.text("'[]'"), nullable=False),
        sa.Column("run_counts", Json, server_default=sa.text("'[]'"), nullable=False),
        *number_checks("effects_rollups"),
        sa.PrimaryKeyConstraint("seconds", "worker", "begins_at", "job_type", "queue"),
    )
    op.create_table(
        "effects_samples",
        sa.Column("seconds", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("begins_at", UtcTime(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("oldest_due_seconds", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("due", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("held", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("running", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("retrying", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unresolved", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("workers", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("minutes", sa.Integer(), server_default=sa.text("1"), nullable=False),
        *number_checks("effects_samples"),
        sa.PrimaryKeyConstraint("seconds", "begins_at", "queue"),
    )
    op.create_table(
        "effects_web_sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("personal", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("session_seconds", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("seen_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("ends_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        *web_session_checks(),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_effects_web_sessions_ends_at", "effects_web_sessions", ["ends_at"], unique=False)
    op.create_table(
        "effects_grants",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("trusted_fields", Json, server_default=sa.text("'[]'"), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("role", "job_type"),
    )
    op.create_table(
        "effects_schema_support",
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("oldest_code", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision"),
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for view in (attempts_view(postgresql=not is_sqlite), *statistics_views(postgresql=not is_sqlite)):
        op.execute(view)
    if is_sqlite:  # ids are taken from here before rows exist
        op.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('effects_jobs', 0)")
        op.execute(REFUSE_FAR_IDS)
    else:
        schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one()
        op.get_bind().exec_driver_sql(create_function(schema).replace("%", "%%"))


def _create_job_indexes() -> None:
    for name, columns, where in (
        ("ix_effects_jobs_failed", ["queue"], "status = 'failed'"),
        ("ix_effects_jobs_group", ["group_key", "id"], "group_key IS NOT NULL"),
        (
            "ix_effects_jobs_ready",
            ["queue", "priority", "run_at", "id"],
            "status <> 'running' AND limit_key IS NULL AND group_key IS NULL",
        ),
        ("ix_effects_jobs_ready_grouped", ["queue", "run_at", "id"], "status <> 'running' AND group_key IS NOT NULL"),
        (
            "ix_effects_jobs_ready_limited",
            ["queue", "limit_key", "priority", "run_at", "id"],
            "status <> 'running' AND limit_key IS NOT NULL AND group_key IS NULL",
        ),
        ("ix_effects_jobs_running_worker", ["locked_by"], "status = 'running'"),
        ("ux_effects_jobs_group_running", ["group_key"], "status = 'running' AND group_key IS NOT NULL"),
        ("ix_effects_jobs_definition", ["definition_id"], "definition_id IS NOT NULL"),
        ("ux_effects_jobs_requeued_from", ["requeued_from"], "requeued_from IS NOT NULL"),
    ):
        condition = sa.text(where)
        op.create_index(
            name, "effects_jobs", columns, unique=name.startswith("ux_"),
            sqlite_where=condition, postgresql_where=condition,
        )  # fmt: skip
