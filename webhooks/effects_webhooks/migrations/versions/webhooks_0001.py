"""The tables of webhooks."""

import sqlalchemy as sa
from alembic import op

from effects.extend.rows import DatabaseNow, Json, UtcTime, check_json

revision = "webhooks_0001"
down_revision = None
branch_labels = ("webhooks",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "effects_delivered_webhooks",
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
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
        sa.PrimaryKeyConstraint("event_id", "endpoint_id"),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "ix_effects_delivered_webhooks_endpoint", "effects_delivered_webhooks", ["endpoint_id", "job_id"], unique=False
    )
    op.create_index("ix_effects_delivered_webhooks_job_id", "effects_delivered_webhooks", ["job_id"], unique=False)
    op.create_table(
        "effects_webhook_endpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("patterns", Json, server_default=sa.text("'[\"*\"]'"), nullable=False),
        sa.Column("status", sa.Text(), server_default="active", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("profile", sa.Text(), server_default="default", nullable=False),
        sa.Column("overrides", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ordering", sa.Text(), server_default="none", nullable=False),
        sa.Column("headers", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.CheckConstraint("ordering IN ('none', 'endpoint', 'key')", name="ck_effects_webhook_endpoints_ordering"),
        sa.CheckConstraint("status IN ('active', 'disabled')", name="ck_effects_webhook_endpoints_status"),
        check_json("effects_webhook_endpoints", patterns="texts", overrides="object"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_effects_webhook_endpoints_tenant", "effects_webhook_endpoints", ["tenant", "status"], unique=False
    )
    op.create_index(
        "ux_effects_webhook_endpoints_key",
        "effects_webhook_endpoints",
        ["tenant", "key"],
        unique=True,
        sqlite_where=sa.text("key IS NOT NULL"),
        postgresql_where=sa.text("key IS NOT NULL"),
    )
    op.create_table(
        "effects_webhook_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("ordering_key", sa.Text(), nullable=True),
        sa.Column("occurred_at", UtcTime(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_effects_webhook_events_created_at", "effects_webhook_events", ["created_at"], unique=False)
    op.create_index(
        "ix_effects_webhook_events_tenant", "effects_webhook_events", ["tenant", "created_at", "id"], unique=False
    )
    op.create_index(
        "ux_effects_webhook_events_key",
        "effects_webhook_events",
        ["key", "tenant"],
        unique=True,
        sqlite_where=sa.text("key IS NOT NULL"),
        postgresql_where=sa.text("key IS NOT NULL"),
    )
    op.create_table(
        "effects_webhook_secrets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["endpoint_id"], ["effects_webhook_endpoints.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("endpoint_id", "number", name="uq_effects_webhook_secrets_number"),
    )
    op.create_table(
        "effects_webhook_health",
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("failing_since", UtcTime(), nullable=True),
        sa.Column("failed_messages", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("noticed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("gone_at", UtcTime(), nullable=True),
        sa.Column("gone_event", sa.Text(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.ForeignKeyConstraint(["endpoint_id"], ["effects_webhook_endpoints.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("endpoint_id"),
    )
