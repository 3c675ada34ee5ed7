"""The columns of suppressions. An address stands here as a digest; its text only sealed, or where no key is set."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, MetaData, Table, Text, text

from effects.store.columns import Identity, UtcTime, now_column


def suppression_tables(metadata: MetaData) -> list[Table]:
    """Who is not written to, who decided so, and the failures that add up."""
    return [_suppressions(metadata), _log(metadata), _soft_failures(metadata)]


def _suppressions(metadata: MetaData) -> Table:
    suppressions = Table(
        "effects_email_suppressions",
        metadata,
        Column("id", Text, primary_key=True),
        Column("digest", Text, nullable=False),
        Column("scope", Text, nullable=False, server_default="all"),  # or a category
        Column("reason", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("address", Text),  # only where EFFECTS_KEYS has no key to seal with
        Column("sealed", LargeBinary),
        Column("until", UtcTime),  # NULL is for ever
        Column("actor", Text, nullable=False),
        Column("why", Text),
        now_column("created_at"),
        now_column("updated_at"),
        CheckConstraint(
            "reason IN ('hard_bounce', 'complaint', 'unsubscribe', 'manual', 'soft_repeat')",
            name="ck_effects_email_suppressions_reason",
        ),
    )
    # One row a reason: a bounce that runs out does not take a complaint with it.
    Index(
        "ux_effects_email_suppressions_digest", suppressions.c.digest, suppressions.c.scope, suppressions.c.reason,
        unique=True,
    )  # fmt: skip
    Index(
        "ix_effects_email_suppressions_until", suppressions.c.until, sqlite_where=text("until IS NOT NULL"),
        postgresql_where=text("until IS NOT NULL"),
    )  # fmt: skip
    return suppressions


def _log(metadata: MetaData) -> Table:
    return Table(
        "effects_email_suppression_log",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("digest", Text, nullable=False, index=True),
        Column("action", Text, nullable=False),
        Column("scope", Text),
        Column("reason", Text),
        Column("actor", Text, nullable=False),
        Column("why", Text),
        now_column("created_at"),
        sqlite_autoincrement=True,
    )


def _soft_failures(metadata: MetaData) -> Table:
    return Table(
        "effects_email_soft_failures",
        metadata,
        Column("digest", Text, primary_key=True),
        Column("day", Integer, primary_key=True, autoincrement=False, index=True),  # since 1970, UTC
        Column("failures", Integer, nullable=False, server_default=text("0")),
    )
