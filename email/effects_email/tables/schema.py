"""The columns. Times as in the core: `timestamptz` on PostgreSQL, milliseconds since 1970 on SQLite."""

from __future__ import annotations

from sqlalchemy import MetaData, Table

from effects_email.tables.event_schema import event_table
from effects_email.tables.sent_schema import sent_tables
from effects_email.tables.suppression_schema import suppression_tables


def build_tables(metadata: MetaData) -> dict[str, Table]:
    """This package's tables in this MetaData, by their names without the prefix."""
    tables = [*sent_tables(metadata), *suppression_tables(metadata), event_table(metadata)]
    return {table.name.removeprefix("effects_"): table for table in tables}
