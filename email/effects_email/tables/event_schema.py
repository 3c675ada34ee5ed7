"""The columns of what providers said of messages. A recipient stands here as a digest."""

from __future__ import annotations

from sqlalchemy import Column, Index, MetaData, Table, Text, text

from effects.store.columns import Identity, UtcTime, now_column


def event_table(metadata: MetaData) -> Table:
    """One row an event, each once."""
    events = Table(
        "effects_email_events",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("provider", Text, nullable=False),
        Column("event_id", Text, nullable=False),  # the same on every repeat
        Column("kind", Text, nullable=False),
        Column("code", Text),  # the provider's own word
        Column("reference", Text),  # of the message, where it is one of ours
        Column("provider_id", Text),  # what the provider calls the message
        Column("recipient", Text),
        Column("at", UtcTime),  # by the provider's clock
        now_column("created_at"),
        sqlite_autoincrement=True,
    )
    Index("ux_effects_email_events_event", events.c.provider, events.c.event_id, unique=True)
    Index(
        "ix_effects_email_events_reference", events.c.reference, sqlite_where=text("reference IS NOT NULL"),
        postgresql_where=text("reference IS NOT NULL"),
    )  # fmt: skip
    return events
