"""Which server a run's plan has read, and how far that was: a chunk reads no replica that is behind it."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "reports_0007", "reports_0006", None, None
oldest_code = "reports_0001"


def upgrade() -> None:
    op.add_column("effects_report_runs", sa.Column("read_from", sa.Text(), nullable=True))
    op.add_column("effects_report_runs", sa.Column("read_position", sa.Text(), nullable=True))
