"""Links whose downloads are counted."""

import sqlalchemy as sa
from alembic import op

from effects.extend import DatabaseNow, UtcTime

revision, down_revision, branch_labels, depends_on = "reports_0002", "reports_0001", None, None
oldest_code = "reports_0001"


def upgrade() -> None:
    op.create_table(
        "effects_report_links",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("uses_max", sa.Integer(), nullable=False),
        sa.Column("uses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["effects_report_runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_effects_report_links_run_id", "effects_report_links", ["run_id"], unique=False)
