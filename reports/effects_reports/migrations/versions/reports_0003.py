"""How far incremental reports have come, and what each of their runs covers."""

import sqlalchemy as sa
from alembic import op

from effects.extend import DatabaseNow, UtcTime

revision, down_revision, branch_labels, depends_on = "reports_0003", "reports_0002", None, None
oldest_code = "reports_0001"


def upgrade() -> None:
    op.create_table(
        "effects_report_watermarks",
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("series"),
    )
    op.create_table(
        "effects_report_increments",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("lo", sa.BigInteger(), nullable=True),
        sa.Column("hi", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["effects_report_runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id"),
    )
