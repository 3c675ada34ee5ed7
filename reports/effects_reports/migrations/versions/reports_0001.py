"""The tables of reports."""

revision = "reports_0001"
down_revision = None
branch_labels = ("reports",)
depends_on = None


def upgrade() -> None:
    pass
