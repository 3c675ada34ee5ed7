"""The tables of email."""

import sqlalchemy as sa
from alembic import op

from effects.extend.rows import DatabaseNow, Identity, UtcTime

revision = "email_0001"
down_revision = None
branch_labels = ("email",)
depends_on = None


def upgrade() -> None:
    _sent()
    _suppressions()
    _events()
    _refusals()
    _tokens()


def _sent() -> None:
    op.create_table(
        "effects_sent_emails",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("reply_code", sa.Integer(), nullable=True),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("provider_id", sa.Text(), nullable=True),
        sa.Column("held_in", sa.Text(), nullable=True),
        sa.Column("bytes_sha256", sa.Text(), nullable=True),
        sa.Column("first_released_at", UtcTime(), nullable=True),
        sa.Column("used_transport", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default="intended", nullable=False),
        sa.Column("released_at", UtcTime(), nullable=True),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=True),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column("template_version", sa.Text(), nullable=False),
        sa.Column("locale", sa.Text(), nullable=True),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("transport", sa.Text(), nullable=False),
        sa.Column("despite_suppression", sa.Text(), nullable=True),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("date", UtcTime(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint(
            "state IN ('intended', 'released', 'done', 'refused', 'unknown', 'abandoned')",
            name="ck_ledger_state",
        ),
        sa.PrimaryKeyConstraint("key"),
        postgresql_with={"fillfactor": "60"},
    )
    op.create_index("ix_effects_sent_emails_job_id", "effects_sent_emails", ["job_id"], unique=False)
    op.create_index(
        "ix_effects_sent_emails_recipient", "effects_sent_emails", ["recipient", "created_at", "job_id"], unique=False
    )
    op.create_index("ix_effects_sent_emails_created_at", "effects_sent_emails", ["created_at", "job_id"], unique=False)
    op.create_index("ix_effects_sent_emails_message_id", "effects_sent_emails", ["message_id"], unique=False)
    op.create_index(
        "ix_effects_sent_emails_event_id",
        "effects_sent_emails",
        ["event_id"],
        unique=False,
        sqlite_where=sa.text("event_id IS NOT NULL"),
        postgresql_where=sa.text("event_id IS NOT NULL"),
    )
    op.create_index(
        "ix_effects_sent_emails_kept",
        "effects_sent_emails",
        ["job_id"],
        unique=False,
        sqlite_where=sa.text("content IS NOT NULL OR sealed IS NOT NULL"),
        postgresql_where=sa.text("content IS NOT NULL OR sealed IS NOT NULL"),
    )
    op.create_table(
        "effects_email_recipients",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.CheckConstraint("kind IN ('to', 'cc', 'bcc')", name="ck_effects_email_recipients_kind"),
        sa.ForeignKeyConstraint(["key"], ["effects_sent_emails.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", "number"),
    )
    op.create_table(
        "effects_email_files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["key"], ["effects_sent_emails.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_effects_email_files_key", "effects_email_files", ["key"], unique=False)


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
    op.create_index(
        "ix_effects_email_suppressions_until",
        "effects_email_suppressions",
        ["until"],
        unique=False,
        sqlite_where=sa.text("until IS NOT NULL"),
        postgresql_where=sa.text("until IS NOT NULL"),
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
    op.create_table(
        "effects_email_reports_read",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "effects_email_signed_requests",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("token"),
    )
    op.create_index("ix_effects_email_soft_failures_day", "effects_email_soft_failures", ["day"], unique=False)


def _events() -> None:
    op.create_table(
        "effects_email_events",
        sa.Column("id", Identity, autoincrement=True, nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("provider_event_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("provider_id", sa.Text(), nullable=True),
        sa.Column("recipient", sa.Text(), nullable=True),
        sa.Column("at", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ux_effects_email_events_event", "effects_email_events", ["provider", "provider_event_id"], unique=True
    )
    op.create_index(
        "ix_effects_email_events_reference",
        "effects_email_events",
        ["reference"],
        unique=False,
        sqlite_where=sa.text("reference IS NOT NULL"),
        postgresql_where=sa.text("reference IS NOT NULL"),
    )


def _refusals() -> None:
    op.create_table(
        "effects_email_refusals",
        sa.Column("transport", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("refusal", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("recipients", sa.Text(), nullable=False),
        sa.Column("messages", sa.Integer(), nullable=False),
        sa.Column("began_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("overruled_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("transport"),
    )


def _tokens() -> None:
    op.create_table(
        "effects_email_tokens",
        sa.Column("transport", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("renew_at", UtcTime(), nullable=True),
        sa.Column("leased_until", UtcTime(), nullable=True),
        sa.Column("refused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("for_refused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("failure_kind", sa.Text(), nullable=True),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("access", sa.LargeBinary(), nullable=True),
        sa.Column("refresh", sa.LargeBinary(), nullable=True),
        sa.Column("previous", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("transport"),
    )
