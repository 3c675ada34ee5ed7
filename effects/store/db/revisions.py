"""Which revisions of the tables there are, and whether the database has them.

A revision is a file of its name, `core_0001.py`: the package's branch, and a number that grows. So the question that
every command asks is answered without Alembic, which takes longer to import than most commands take to run.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

from effects.entry_points import entry_points
from effects.errors import SchemaMismatch, StoreRejected
from effects.store.db.faults import Fault, fault_of
from effects.store.db.store import Store

VERSION_TABLE = "effects_schema_version"


def check(store: Store) -> None:
    """Refuse a database whose tables are of another version.

    Raises:
        SchemaMismatch: the tables are missing, older or newer; the message names the command to run.
    """
    applied = _applied(store)
    if not applied:
        raise SchemaMismatch(
            f"the database has no tables of effects: run `{store.init_command}` (it is {_name(store)})"
        )
    branches = _branches()
    _refuse_newer(applied, branches)
    if applied != newest(branches):
        raise SchemaMismatch(f"the database has the tables of an older version: run `{store.init_command}`")


def _applied(store: Store) -> set[str]:
    """The revisions of the database, by one statement where it has a table of them."""
    try:
        with store.read() as connection:
            return _versions(connection, store.schema)
    except StoreRejected as error:
        if fault_of(error) is not Fault.SCHEMA:
            raise
    with store.read() as connection:
        return _in_database(connection, store.schema)


def refuse_newer(connection: Connection, schema: str | None) -> None:
    """Refuse a database that a newer version has migrated, before anything is done to it.

    Raises:
        SchemaMismatch: it has revisions that this version does not know; names them.
    """
    _refuse_newer(_in_database(connection, schema), _branches())


def _refuse_newer(applied: set[str], branches: dict[str, list[str]]) -> None:
    if unknown := applied - all_names(branches):
        raise SchemaMismatch(
            f"the database is newer than this version of effects (revision {', '.join(sorted(unknown))}): "
            "upgrade the package on this host"
        )


def _name(store: Store) -> str:
    """Which database this is, without who connects and how."""
    url = store.engine.url
    if not store.is_postgresql:
        return str(Path(url.database or "").absolute())
    schema = f", schema {store.schema}" if store.schema else ""
    return f"{url.database} on {url.host or 'this host'}{schema}"


def newest(branches: dict[str, list[str]] | None = None) -> set[str]:
    """The last revision of each installed package."""
    return {revisions[-1] for revisions in (branches or _branches()).values()}


def all_names(branches: dict[str, list[str]] | None = None) -> set[str]:
    """Every revision of each installed package."""
    return {name for names in (branches or _branches()).values() for name in names}


def folders() -> list[Path]:
    """The `versions` folder of every installed package that brings tables."""
    entries = entry_points("effects.migrations")
    return [Path(importlib.import_module(entry.value).__path__[0]) / "versions" for entry in entries]


@functools.cache
def _branches() -> dict[str, list[str]]:
    """Branch → its revisions, oldest first. The folders are read once per process."""
    revisions: dict[str, list[str]] = {}
    for name in sorted(path.stem for folder in folders() for path in folder.glob("*_[0-9]*.py")):
        revisions.setdefault(name.rpartition("_")[0], []).append(name)
    return revisions


def _in_database(connection: Connection, schema: str | None) -> set[str]:
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return set()
    return _versions(connection, schema)


def _versions(connection: Connection, schema: str | None) -> set[str]:
    versions = table(VERSION_TABLE, column("version_num"), schema=schema)
    return set(connection.scalars(select(versions.c.version_num)))
