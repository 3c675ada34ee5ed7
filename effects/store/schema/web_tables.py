"""The table of the dashboard's sign-ins: links that admit a person once, and the sessions that they begin."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, MetaData, Table, Text

from effects.store.schema.columns import UtcTime, flag_column, now_column, seconds_column

LINK, SESSION = "link", "session"


def web_session_checks() -> list[CheckConstraint]:
    """What a row of `effects_web_sessions` must be."""
    table = "effects_web_sessions"
    return [
        CheckConstraint(f"kind IN ('{LINK}', '{SESSION}')", name=f"ck_{table}_kind"),
        CheckConstraint("role IN ('viewer', 'operator', 'admin')", name=f"ck_{table}_role"),
    ]


def web_tables(metadata: MetaData) -> list[Table]:
    sessions = Table(
        "effects_web_sessions",
        metadata,
        Column("id", Text, primary_key=True),  # SHA-256 of the secret, which only the person has
        Column("kind", Text, nullable=False),
        Column("person", Text, nullable=False),
        Column("role", Text, nullable=False),
        flag_column("personal"),
        seconds_column("session_seconds"),  # of a link: how long the session lasts that it begins
        now_column("created_at"),
        now_column("seen_at"),
        Column("ends_at", UtcTime, nullable=False),
        Column("ended_at", UtcTime),  # signed out, ended by an operator, or a link that was used
        *web_session_checks(),
    )
    Index("ix_effects_web_sessions_ends_at", sessions.c.ends_at)
    return [sessions]
