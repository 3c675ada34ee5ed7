"""The columns. Times as in the core: `timestamptz` on PostgreSQL, milliseconds since 1970 on SQLite."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
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


def build_tables(metadata: MetaData) -> dict[str, Table]:
    """This package's tables in this MetaData, by their names without the prefix."""
    tables = [*_endpoint_tables(metadata), *_event_tables(metadata)]
    return {table.name.removeprefix("effects_"): table for table in tables}


def _tenant() -> Column[str]:
    # Empty for apps without tenants, never NULL: NULLs are all different to a unique index.
    return Column("tenant", Text, nullable=False, server_default="")


def _endpoint_tables(metadata: MetaData) -> list[Table]:
    endpoints = Table(
        "effects_webhook_endpoints",
        metadata,
        Column("id", Text, primary_key=True),
        _tenant(),
        Column("key", Text),  # the app's own name for it, unique within the tenant: see `ensure_endpoint`
        Column("url", Text, nullable=False),
        Column("patterns", Json, nullable=False, server_default=text("'[\"*\"]'")),
        Column("status", Text, nullable=False, server_default="active"),
        Column("reason", Text),
        Column("description", Text),
        Column("profile", Text, nullable=False, server_default="default"),
        Column("overrides", Json, nullable=False, server_default=text("'{}'")),  # status or class → retry class
        Column("ordering", Text, nullable=False, server_default="none"),
        Column("headers", LargeBinary),  # the partner's own, sealed: they may hold a token
        now_column("created_at"),
        now_column("updated_at"),
        CheckConstraint("status IN ('active', 'disabled')", name="ck_effects_webhook_endpoints_status"),
        CheckConstraint("ordering IN ('none', 'endpoint', 'key')", name="ck_effects_webhook_endpoints_ordering"),
        check_json("effects_webhook_endpoints", patterns="texts", overrides="object"),
    )
    Index("ix_effects_webhook_endpoints_tenant", endpoints.c.tenant, endpoints.c.status)
    Index(
        "ux_effects_webhook_endpoints_key", endpoints.c.tenant, endpoints.c.key, unique=True,
        sqlite_where=text("key IS NOT NULL"), postgresql_where=text("key IS NOT NULL"),
    )  # fmt: skip
    secrets = Table(
        "effects_webhook_secrets",
        metadata,
        Column("id", Text, primary_key=True),
        Column("endpoint_id", Text, ForeignKey(endpoints.c.id, ondelete="CASCADE"), nullable=False),
        Column("number", Integer, nullable=False),  # the order of an endpoint's secrets: clocks repeat themselves
        Column("sealed", LargeBinary, nullable=False),
        now_column("created_at"),
        Column("expires_at", UtcTime),  # sign with it until then; NULL is forever
        UniqueConstraint("endpoint_id", "number", name="uq_effects_webhook_secrets_number"),
    )
    # Written where something changes, not at every delivery: a healthy endpoint has no row, or one of zeros.
    health = Table(
        "effects_webhook_health",
        metadata,
        Column("endpoint_id", Text, ForeignKey(endpoints.c.id, ondelete="CASCADE"), primary_key=True),
        Column("failing_since", UtcTime),
        Column("failed_messages", Integer, nullable=False, server_default=text("0")),
        Column("noticed", Integer, nullable=False, server_default=text("0")),  # hours of the last notice
        Column("gone_at", UtcTime),  # of the first 410 since the last success
        Column("gone_event", Text),
        now_column("updated_at"),
    )
    return [endpoints, secrets, health]


def _event_tables(metadata: MetaData) -> list[Table]:
    events = Table(
        "effects_webhook_events",
        metadata,
        Column("id", Text, primary_key=True),
        _tenant(),
        Column("type", Text, nullable=False),
        Column("key", Text),
        Column("digest", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),  # the bytes that are signed and sent; never JSONB
        Column("ordering_key", Text),
        Column("occurred_at", UtcTime, nullable=False),
        now_column("created_at"),
    )
    Index("ix_effects_webhook_events_created_at", events.c.created_at)  # for retention; it only grows at its end
    Index("ix_effects_webhook_events_tenant", events.c.tenant, events.c.created_at, events.c.id)
    Index(
        "ux_effects_webhook_events_key", events.c.key, events.c.tenant, unique=True,
        sqlite_where=text("key IS NOT NULL"), postgresql_where=text("key IS NOT NULL"),
    )  # fmt: skip
    delivered = Table(
        "effects_delivered_webhooks",
        metadata,
        Column("event_id", Text, primary_key=True),
        Column("endpoint_id", Text, primary_key=True),
        Column("status_code", Integer),  # of the newest answer
        Column("tries", Integer, nullable=False, server_default=text("0")),
        *ledger_columns(),
        postgresql_with={"fillfactor": "70"},
    )
    Index("ix_effects_delivered_webhooks_endpoint", delivered.c.endpoint_id, delivered.c.job_id)
    return [events, delivered]
