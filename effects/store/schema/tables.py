"""All tables of the core."""

from __future__ import annotations

from sqlalchemy import MetaData, Table

from effects.store.schema.audit_tables import audit_tables
from effects.store.schema.failover_tables import failover_tables
from effects.store.schema.job_tables import job_tables
from effects.store.schema.limit_tables import limit_tables
from effects.store.schema.operator_tables import operator_tables
from effects.store.schema.schedule_tables import schedule_tables
from effects.store.schema.version_tables import version_tables
from effects.store.schema.web_tables import web_tables


def build_tables(metadata: MetaData) -> dict[str, Table]:
    """The core's tables in this MetaData, by their names without the prefix."""
    tables = [
        *job_tables(metadata),
        *limit_tables(metadata),
        *schedule_tables(metadata),
        *operator_tables(metadata),
        *audit_tables(metadata),
        *failover_tables(metadata),
        *web_tables(metadata),
        *version_tables(metadata),
    ]
    return {table.name.removeprefix("effects_"): table for table in tables}
