"""The tables of email."""

revision = "email_0001"
down_revision = None
branch_labels = ("email",)
depends_on = None


def upgrade() -> None:
    pass
