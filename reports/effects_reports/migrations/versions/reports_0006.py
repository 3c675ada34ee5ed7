"""Subscriptions to reports."""

import sqlalchemy as sa
from alembic import op

from effects.extend import DatabaseNow, Json, UtcTime

revision, down_revision, branch_labels, depends_on = "reports_0006", "reports_0005", None, None
oldest_code = "reports_0001"


def upgrade() -> None:
    op.create_table(
        "effects_report_subscriptions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("params", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("notice", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("schedule", "recipient", name="uq_effects_report_subscriptions"),
    )
