"""The tables of reports."""

import sqlalchemy as sa
from alembic import op

from effects.extend.rows import DatabaseNow, Json, UtcTime, check_json

revision = "reports_0001"
down_revision = None
branch_labels = ("reports",)
depends_on = None


def upgrade() -> None:
    _ledger()
    _runs()
    _chunks()
    _links()
    _increments()
    _subscriptions()
    _buckets()


def _ledger() -> None:
    op.create_table(
        "effects_generated_reports",
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=True),
        sa.Column("filename", sa.Text(), nullable=True),
        sa.Column("content_type", sa.Text(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("downloads", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.Text(), server_default="intended", nullable=False),
        sa.Column("released_at", UtcTime(), nullable=True),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('intended', 'released', 'done', 'refused', 'unknown', 'abandoned')",
            name="ck_ledger_state",
        ),
        sa.PrimaryKeyConstraint("report", "key", "generation"),
        sa.UniqueConstraint("run_id"),
    )
    op.create_index("ix_effects_generated_reports_job_id", "effects_generated_reports", ["job_id"], unique=False)


def _runs() -> None:
    op.create_table(
        "effects_report_runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="requested", nullable=False),
        sa.Column("params", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("consistency", sa.Text(), nullable=False),
        sa.Column("notify", sa.Text(), nullable=True),
        sa.Column("notify_sealed", sa.LargeBinary(), nullable=True),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("columns", Json, nullable=True),
        sa.Column("as_of", UtcTime(), nullable=True),
        sa.Column("rows_total", sa.BigInteger(), nullable=True),
        sa.Column("total_kind", sa.Text(), server_default="unknown", nullable=False),
        sa.Column("bytes_max", sa.BigInteger(), nullable=True),
        sa.Column("keep_seconds", sa.Double(), nullable=True),
        sa.Column("repairs", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=True),
        sa.Column("snapshot_restarts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("progress_floor", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_text", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("planned_at", UtcTime(), nullable=True),
        sa.Column("assembling_at", UtcTime(), nullable=True),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("read_from", sa.Text(), nullable=True),
        sa.Column("read_position", sa.Text(), nullable=True),
        sa.Column("full_since", UtcTime(), nullable=True),
        sa.Column("packing", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('requested', 'planning', 'running', 'assembling', 'ready', 'failed', 'cancelling', "
            "'cancelled', 'expired')",
            name="ck_effects_report_runs_state",
        ),
        sa.CheckConstraint("total_kind IN ('exact', 'estimated', 'unknown')", name="ck_effects_report_runs_total_kind"),
        check_json("effects_report_runs", columns="array", params="object"),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with={"fillfactor": "80"},
    )
    for name in ("state", "report", "key"):
        columns = [name, "created_at", "id"]
        op.create_index(f"ix_effects_report_runs_{name}", "effects_report_runs", columns, unique=False)
    op.create_index("ix_effects_report_runs_created_at", "effects_report_runs", ["created_at", "id"], unique=False)


def _chunks() -> None:
    op.create_table(
        "effects_report_chunks",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("lo", Json, nullable=True),
        sa.Column("hi", Json, nullable=True),
        sa.Column("rows_planned", sa.BigInteger(), nullable=True),
        sa.Column("rows_before", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("rows_seen", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("rows_done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes_done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("part", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("route", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_text", sa.Text(), nullable=True),
        sa.Column("started_at", UtcTime(), nullable=True),
        sa.Column("finished_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("plain_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("plain_crc32", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("boot", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'done', 'failed', 'cancelled', 'split')",
            name="ck_effects_report_chunks_state",
        ),
        sa.ForeignKeyConstraint(["run_id"], ["effects_report_runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "ordinal"),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("ix_effects_report_chunks_job_id", "effects_report_chunks", ["job_id"], unique=False)


def _links() -> None:
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


def _increments() -> None:
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


def _subscriptions() -> None:
    op.create_table(
        "effects_report_subscriptions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("params", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("notice", Json, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("schedule", "recipient", name="uq_effects_report_subscriptions"),
        check_json("effects_report_subscriptions", params="object", notice="object"),
    )


def _buckets() -> None:
    op.create_table(
        "effects_report_buckets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.Column("updated_at", UtcTime(), server_default=DatabaseNow(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
