"""The columns. Times as in the core: `timestamptz` on PostgreSQL, milliseconds since 1970 on SQLite."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from effects.extend.rows import Json, UtcTime, check_json, ledger_columns, now_column

RUN_STATES = (
    "requested", "planning", "running", "assembling", "ready", "failed", "cancelling", "cancelled", "expired",
)  # fmt: skip
CHUNK_STATES = ("pending", "running", "done", "failed", "cancelled", "split")


def build_tables(metadata: MetaData) -> dict[str, Table]:
    """This package's tables in this MetaData, by their names without the prefix."""
    runs = _runs(metadata)
    tables = [_generated(metadata), runs, _chunks(metadata, runs), _links(metadata, runs)]
    tables += [_watermarks(metadata), _increments(metadata, runs), _subscriptions(metadata), _buckets(metadata)]
    return {table.name.removeprefix("effects_"): table for table in tables}


def _one_of(states: tuple[str, ...]) -> str:
    return f"state IN ({', '.join(repr(state) for state in states)})"


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def _generated(metadata: MetaData) -> Table:
    """The ledger: one row a generation of a key. The newest generation is the one that a repeated request finds."""
    return Table(
        "effects_generated_reports",
        metadata,
        Column("report", Text, primary_key=True),
        Column("key", Text, primary_key=True),
        Column("generation", Integer, primary_key=True, autoincrement=False),
        Column("run_id", Text, nullable=False, unique=True),
        Column("artifact", Text),  # the object's name in the storage, once it is ready and until it has expired
        Column("filename", Text),
        Column("content_type", Text),
        Column("rows", BigInteger),
        Column("bytes", BigInteger),
        Column("sha256", Text),
        _count("downloads"),
        *ledger_columns(),
    )


def _runs(metadata: MetaData) -> Table:
    runs = Table(
        "effects_report_runs",
        metadata,
        Column("id", Text, primary_key=True),
        Column("report", Text, nullable=False),
        Column("key", Text, nullable=False),
        Column("state", Text, nullable=False, server_default="requested"),
        Column("params", Json, nullable=False, server_default=text("'{}'")),
        Column("format", Text, nullable=False),
        Column("dialect", Text, nullable=False),
        Column("consistency", Text, nullable=False),
        Column("notify", Text),  # its notices, as JSON; NULL without notices, or
        Column("notify_sealed", LargeBinary),  # if a job type has sensitive fields: the same, sealed
        Column("prefix", Text, nullable=False),  # of all its objects; 80 random bits, not guessable
        Column("round", Integer, nullable=False, server_default=text("1")),  # rises when its jobs are made again
        # Frozen by the plan.
        Column("version", Integer),
        Column("columns", Json),
        Column("as_of", UtcTime),
        Column("rows_total", BigInteger),
        Column("total_kind", Text, nullable=False, server_default="unknown"),
        Column("bytes_max", BigInteger),
        Column("keep_seconds", Double),
        Column(
            "repairs", Integer, nullable=False, server_default=text("0")
        ),  # times that parts were missing or altered
        # The exported snapshot, or the copy, that all chunks read.
        Column("snapshot", Text),
        Column("snapshot_restarts", Integer, nullable=False, server_default=text("0")),
        Column("progress_floor", Double, nullable=False, server_default=text("0")),  # what was shown is not taken back
        Column("error_code", Text),
        Column("error_text", Text),
        now_column("created_at"),
        Column("planned_at", UtcTime),
        Column("assembling_at", UtcTime),
        Column("ended_at", UtcTime),
        Column("expires_at", UtcTime),
        now_column("updated_at"),
        Column("read_from", Text),  # primary or replica, that the plan has read; NULL without a replica
        Column("read_position", Text),  # how far that was
        Column("full_since", UtcTime),  # the storage has had no room for it since; NULL while it has
        Column("packing", Text),  # frozen by the plan: codec and level; NULL where the format alone decides
        CheckConstraint(_one_of(RUN_STATES), name="ck_effects_report_runs_state"),
        CheckConstraint("total_kind IN ('exact', 'estimated', 'unknown')", name="ck_effects_report_runs_total_kind"),
        check_json("effects_report_runs", columns="array", params="object"),
        postgresql_with={"fillfactor": "80"},
    )
    for name in ("state", "report", "key"):  # of the lists, newest first
        Index(f"ix_effects_report_runs_{name}", runs.c[name], runs.c.created_at, runs.c.id)
    Index("ix_effects_report_runs_created_at", runs.c.created_at, runs.c.id)
    return runs


def _chunks(metadata: MetaData, runs: Table) -> Table:
    return Table(
        "effects_report_chunks",
        metadata,
        Column("run_id", Text, ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
        Column("ordinal", Text, primary_key=True),  # 00007; the halves of a split one 00007.1 and 00007.2
        Column("state", Text, nullable=False, server_default="pending"),
        Column("lo", Json),  # keys above this, NULL from the first
        Column("hi", Json),  # up to and with this, NULL to the last
        Column("rows_planned", BigInteger),
        _count("rows_before"),  # of its sheet, as far as was known when the chunk was made
        _count("rows_seen"),  # of any attempt so far; what progress is made of
        _count("rows_done"),
        _count("bytes_done"),
        Column("attempt", Integer, nullable=False, server_default=text("0")),
        Column("job_id", BigInteger, nullable=False, index=True),
        Column("token", BigInteger, nullable=False, server_default=text("0")),  # the lease of the attempt that owns it
        Column("part", Text),
        Column("sha256", Text),
        Column("route", Text),
        Column("error_code", Text),
        Column("error_text", Text),
        Column("started_at", UtcTime),
        Column("finished_at", UtcTime),
        now_column("updated_at"),
        _count("plain_bytes"),  # of what a part of a gzip file holds, for the trailer of the file
        _count("plain_crc32"),
        Column("boot", Text),  # of the machine that may still hold the part in memory; NULL: its bytes are checked
        CheckConstraint(_one_of(CHUNK_STATES), name="ck_effects_report_chunks_state"),
        postgresql_with={"fillfactor": "70"},
    )


def _links(metadata: MetaData, runs: Table) -> Table:
    """Links whose downloads are counted."""
    return Table(
        "effects_report_links",
        metadata,
        Column("id", Text, primary_key=True),
        Column("run_id", Text, ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False, index=True),
        Column("uses_max", Integer, nullable=False),
        Column("uses", Integer, nullable=False, server_default=text("0")),
        Column("used_at", UtcTime),
        now_column("created_at"),
    )


def _watermarks(metadata: MetaData) -> Table:
    """How far an incremental report with its params has come, and which run may advance it."""
    return Table(
        "effects_report_watermarks",
        metadata,
        Column("series", Text, primary_key=True),
        Column("report", Text, nullable=False),
        Column("position", BigInteger),  # of transactions, on SQLite of rows; NULL before the first run
        Column("run_id", Text),
        now_column("created_at"),
        now_column("updated_at"),
    )


def _increments(metadata: MetaData, runs: Table) -> Table:
    """What a run of an incremental report covers: from `lo` on, up to `hi`, frozen by its plan."""
    return Table(
        "effects_report_increments",
        metadata,
        Column("run_id", Text, ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
        Column("series", Text, nullable=False),
        Column("dialect", Text, nullable=False),
        Column("lo", BigInteger),
        Column("hi", BigInteger, nullable=False),
    )


def _subscriptions(metadata: MetaData) -> Table:
    """Who gets which report, when and how."""
    return Table(
        "effects_report_subscriptions",
        metadata,
        Column("id", Text, primary_key=True),
        Column("schedule", Text, nullable=False),  # shared by those of one report, params, format and slots
        Column("report", Text, nullable=False),
        Column("params", Json, nullable=False, server_default="{}"),
        Column("format", Text, nullable=False),
        Column("cron", Text, nullable=False),
        Column("zone", Text, nullable=False),
        Column("notice", Json, nullable=False, server_default="{}"),  # without the recipient
        Column("recipient", Text, nullable=False),  # the digest of the address
        Column("sealed", LargeBinary, nullable=False),  # the address
        Column("paused", Boolean, nullable=False, server_default=text("false")),
        now_column("created_at"),
        now_column("updated_at"),
        UniqueConstraint("schedule", "recipient", name="uq_effects_report_subscriptions"),
        check_json("effects_report_subscriptions", params="object", notice="object"),
    )


def _buckets(metadata: MetaData) -> Table:
    """Buckets of others, and what opens them."""
    return Table(
        "effects_report_buckets",
        metadata,
        Column("name", Text, primary_key=True),
        Column("url", Text, nullable=False),
        Column("sealed", LargeBinary, nullable=False),  # the credentials
        now_column("created_at"),
        now_column("updated_at"),
    )
