"""Tables of failovers: which histories the database went through, and what workers could tell of lost commits."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, MetaData, Table, Text, UniqueConstraint

from effects.store.schema.columns import Identity, UtcTime, int_column, now_column

FIRST, BY_NAME, BY_HEARTBEAT = "first", "name", "heartbeat"  # by what a history was noticed
RECORDED, UNKNOWN, REPEATED, ORPHAN = FATES = ("recorded", "unknown", "repeated", "orphan")


def failover_checks() -> list[CheckConstraint]:
    """What a row of `effects_failovers` must be."""
    return [CheckConstraint("sign IN ('first', 'name', 'heartbeat')", name="ck_effects_failovers_sign")]


def evidence_checks() -> list[CheckConstraint]:
    """What a row of `effects_evidence` must be."""
    fates = ", ".join(f"'{fate}'" for fate in FATES)
    return [CheckConstraint(f"fate IN ({fates})", name="ck_effects_evidence_fate")]


def failover_tables(metadata: MetaData) -> list[Table]:
    failovers = Table(
        "effects_failovers",
        metadata,
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("history", Text),  # system identifier and timeline; NULL where the database has no such names
        Column("sign", Text, nullable=False),  # what it was noticed by; the first row is no failover
        Column("noticed_by", Text, nullable=False),
        now_column("noticed_at"),
        int_column("workers"),  # that were alive then
        int_column("compared"),  # workers that have compared what they remember
        int_column("recorded"),  # of what they remember: outcomes that were lost, and are written back
        int_column("unknowns"),  # releases without an outcome
        int_column("orphans"),  # effects of jobs that the database does not know
        int_column("incomplete"),  # workers that may have forgotten more than they remember
        Column("resolved_at", UtcTime),  # a person has looked into it
        *failover_checks(),
    )
    evidence = Table(
        "effects_evidence",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("job_id", BigInteger, nullable=False),  # in the history that was lost
        Column("lease_token", BigInteger, nullable=False),  # likewise
        Column("job_type", Text, nullable=False),
        Column("key", Text),
        Column("worker", Text, nullable=False),
        Column("outcome", Text),  # NULL: released, and its end is not known
        Column("verdict", Text),
        Column("fate", Text, nullable=False),
        Column("failover_id", BigInteger, nullable=False),
        Column("happened_at", UtcTime),
        now_column("created_at"),
        UniqueConstraint("job_id", "lease_token", name="ux_effects_evidence_attempt"),
        *evidence_checks(),
        sqlite_autoincrement=True,
    )
    Index("ix_effects_evidence_key", evidence.c.key)
    return [failovers, evidence]
