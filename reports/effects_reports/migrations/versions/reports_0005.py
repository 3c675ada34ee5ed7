"""In whose memory a part may still be: after another boot its bytes are checked before they are joined."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "reports_0005", "reports_0004", None, None
oldest_code = "reports_0001"


def upgrade() -> None:
    op.add_column("effects_report_chunks", sa.Column("boot", sa.Text(), nullable=True))
