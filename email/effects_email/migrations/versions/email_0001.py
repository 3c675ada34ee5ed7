"""The tables of email."""

import sqlalchemy as sa
from alembic import op

from effects.store.schema import DatabaseNow, Identity, UtcTime

revision = "email_0001"
down_revision = None
branch_labels = ("email",)
depends_on = None


def upgrade() -> None:
    _suppressions()


def _suppressions() -> None:
    op.create_table(
        "effects_email_suppressions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), server_default="all", nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("until", UtcTime(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.CheckConstraint(
            "reason IN ('hard_bounce', 'complaint', 'unsubscribe', 'manual', 'soft_repeat')",
            name="ck_effects_email_suppressions_reason",
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ux_effects_email_suppressions_digest",
        "effects_email_suppressions",
        ["digest", "scope", "reason"],
        unique=True,
    )
    op.create_table(
        "effects_email_suppression_log",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_effects_email_suppression_log_digest", "effects_email_suppression_log", ["digest"], unique=False
    )
    op.create_table(
        "effects_email_soft_failures",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("digest", "day"),
    )
