"""The table of which code works with which revision of the tables."""

from __future__ import annotations

from sqlalchemy import Column, MetaData, Table, Text

SUPPORT = "effects_schema_support"


def version_tables(metadata: MetaData) -> list[Table]:
    support = Table(
        SUPPORT,
        metadata,
        Column("revision", Text, primary_key=True),  # that was applied
        Column("oldest_code", Text, nullable=False),  # the newest revision of the oldest code that works with it
    )
    return [support]
