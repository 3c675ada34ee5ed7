"""The transport of the newest try: with failover it need not be the message's own."""

import sqlalchemy as sa
from alembic import op

revision = "email_0002"
down_revision = "email_0001"
branch_labels = None
depends_on = None
oldest_code = "email_0001"


def upgrade() -> None:
    op.add_column("effects_sent_emails", sa.Column("used_transport", sa.Text(), nullable=True))
