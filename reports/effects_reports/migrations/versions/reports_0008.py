"""Buckets that files are delivered into."""

import sqlalchemy as sa
from alembic import op

from effects.extend import DatabaseNow, UtcTime

revision, down_revision, branch_labels, depends_on = "reports_0008", "reports_0007", None, None
oldest_code = "reports_0001"


def upgrade() -> None:
    op.create_table(
        "effects_report_buckets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
