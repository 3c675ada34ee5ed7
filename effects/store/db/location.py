"""Find the schema of the tables once, where none is set: what a session sets as its search path later moves nothing.

An app that sets the search path for each tenant, a pooler that hands on what another client has set, a schema that a
role was given in front: each would lead the same statement to other tables, to jobs that no worker looks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from sqlalchemy import Connection, MetaData, Table, text

from effects.store.schema.tables import SUPPORT, build_tables

TableBuilder: TypeAlias = Callable[[MetaData], Mapping[str, Table]]

_FOUND_NAMES = {"ix": "ix_%(table_name)s_%(column_0_name)s"}  # as SQLAlchemy's own of a table without a schema
# What is written into a statement as it is; the dialect quotes a name where it must be.
_NAME = re.compile(r"[^\"'%:\\]+")


def find_schema(connection: Connection, *, own: bool) -> str | None:
    """The first schema of the search path that has our tables; None if none has, or its name could not be quoted.

    Args:
        connection: to PostgreSQL; nothing is set in its session.
        own: an engine of ours opened it: its search path is what the session began with, whatever a pooler's other
            clients have set in it since. That of an app's engine may have been set by a listener, and counts as it is.
    """
    path = "reset_val" if own else "setting"
    name = connection.execute(_FIND[path], {"table": SUPPORT}).scalar()
    return str(name) if name is not None and _NAME.fullmatch(name) else None


def _find(path: str) -> str:
    return f"""
    SELECT n.nspname FROM pg_catalog.pg_settings AS s
    CROSS JOIN unnest(string_to_array(s.{path}, ',')) WITH ORDINALITY AS part (word, place)
    CROSS JOIN LATERAL (SELECT CASE
        WHEN btrim(word) IN ('"$user"', '$user') THEN CAST(current_user AS text)
        WHEN btrim(word) LIKE '"%"' THEN replace(substr(btrim(word), 2, length(btrim(word)) - 2), '""', '"')
        ELSE lower(btrim(word)) END AS name) AS schema
    JOIN pg_catalog.pg_namespace AS n ON n.nspname = schema.name
    JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = :table AND c.relkind IN ('r', 'v')
    WHERE s.name = 'search_path' AND has_schema_privilege(n.oid, 'USAGE')
    ORDER BY place, n.oid LIMIT 1"""


_FIND = {path: text(_find(path)) for path in ("reset_val", "setting")}


@cache
def tables_of(
    schema: str | None, builders: tuple[TableBuilder, ...], *, is_found: bool = False
) -> tuple[MetaData, Mapping[str, Table]]:
    """The tables of the core and of these packages; the same for every Store, since nothing changes them.

    Args:
        is_found: whether they were made without naming the schema: then their indexes' names do not have it.
    """
    metadata = MetaData(schema=schema, naming_convention=_FOUND_NAMES if is_found else None)
    tables = dict(build_tables(metadata))
    for build in builders:
        tables.update(build(metadata))
    return metadata, MappingProxyType(tables)
