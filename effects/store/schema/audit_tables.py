"""The table of the audit log."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, MetaData, Table, Text, text

from effects.store.schema.checks import TIMES, check_keys, check_range, check_types
from effects.store.schema.columns import Identity, Json, now_column

AUDIT_VIAS = ("cli", "web", "api", "schedule")  # through what an action came


def audit_checks() -> list[CheckConstraint]:
    """What a row of `effects_audit_log` must be."""
    table = "effects_audit_log"
    return [
        check_keys(table, "actor", "action", "subject_kind", "subject"),
        check_range(table, TIMES, "created_at"),
        check_types(table, texts=["tenant", "reason"]),
    ]


def audit_tables(metadata: MetaData) -> list[Table]:
    log = Table(
        "effects_audit_log",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("actor", Text, nullable=False),
        Column("via", Text, nullable=False),
        Column("action", Text, nullable=False),
        Column("subject_kind", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("tenant", Text),
        Column("reason", Text),
        Column("detail", Json, nullable=False, server_default=text("'{}'")),
        now_column("created_at"),
        CheckConstraint("via IN ('cli', 'web', 'api', 'schedule')", name="ck_effects_audit_log_via"),
        *audit_checks(),
        sqlite_autoincrement=True,
    )
    Index("ix_effects_audit_log_actor", log.c.actor, log.c.id)
    Index("ix_effects_audit_log_action", log.c.action, log.c.id)
    Index("ix_effects_audit_log_subject", log.c.subject_kind, log.c.subject, log.c.id)
    Index("ix_effects_audit_log_created_at", log.c.created_at)
    return [log]
