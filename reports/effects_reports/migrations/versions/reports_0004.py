"""How the parts of a run are compressed, frozen by its plan."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "reports_0004", "reports_0003", None, None
oldest_code = "reports_0001"


def upgrade() -> None:
    op.add_column("effects_report_runs", sa.Column("packing", sa.Text(), nullable=True))
