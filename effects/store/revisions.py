"""Which revisions of the tables there are, and whether the database has them.

A revision is a file of its name, `core_0001.py`: the package's branch, and a number that grows. So the question that
every command asks is answered without Alembic, which takes longer to import than most commands take to run.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

from effects.errors import SchemaMismatch
from effects.store.store import Store

VERSION_TABLE = "effects_schema_version"


def check(store: Store) -> None:
    """Refuse a database whose tables this version does not know.

    Raises:
        SchemaMismatch: there are none, they are older, or they are newer; says what to run.
    """
    with store.read() as connection:
        found = _in_database(connection, store.schema)
    if not found:
        raise SchemaMismatch("the database has no tables of effects: run `effects init`")
    branches = _branches()
    if unknown := found - {name for revisions in branches.values() for name in revisions}:
        raise SchemaMismatch(
            f"the database is newer than this version of effects (revision {', '.join(sorted(unknown))}): "
            "upgrade the package on this host"
        )
    if found != newest(branches):
        raise SchemaMismatch("the database has the tables of an older version: run `effects init`")


def newest(branches: dict[str, list[str]] | None = None) -> set[str]:
    """The last revision of each installed package."""
    return {revisions[-1] for revisions in (branches or _branches()).values()}


def folders() -> list[Path]:
    """The `versions` folder of every installed package that brings tables."""
    entries = sorted(entry_points(group="effects.migrations"), key=lambda entry: entry.name)
    return [Path(str(importlib.import_module(entry.value).__file__)).parent / "versions" for entry in entries]


def _branches() -> dict[str, list[str]]:
    """Branch → its revisions, oldest first."""
    found: dict[str, list[str]] = {}
    for name in sorted(path.stem for folder in folders() for path in folder.glob("*_[0-9]*.py")):
        found.setdefault(name.rpartition("_")[0], []).append(name)
    return found


def _in_database(connection: Connection, schema: str | None) -> set[str]:
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return set()
    versions = table(VERSION_TABLE, column("version_num"), schema=schema)
    return set(connection.scalars(select(versions.c.version_num)))
