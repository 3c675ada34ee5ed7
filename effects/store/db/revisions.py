"""Which revisions of the tables there are, and whether the database has them.

A revision is a file of its name, `core_0001.py`: the package's branch, and a number that grows. So the question that
every command asks is answered without Alembic, which takes longer to import than most commands take to run.

Code works with its own tables, and with those of later releases as long as these say so: `effects_schema_support`
names for each revision the oldest code that works with it. Code never works with older tables than its own.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection, Mapping
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table, text

from effects.errors import SchemaMismatch, StoreRejected
from effects.kit.importing import entry_points
from effects.kit.text.unsafe import whole_number
from effects.store.db.faults import Fault, fault_of
from effects.store.db.store import Store
from effects.store.schema.tables import SUPPORT

VERSION_TABLE = "effects_schema_version"


def check(store: Store) -> list[str]:
    """Refuse a database whose tables this version cannot work with.

    Returns:
        Revisions that it does not know and works with: a newer version has migrated the database. Mostly none.

    Raises:
        SchemaMismatch: the tables are missing, older, or newer than this version works with; the message names the
            command to run.
    """
    applied = _applied(store)
    if not applied:
        objection = unusable_schema(store)
        cure = f", and {objection}" if objection else f": run `{store.init_command()}` (it is {_name(store)})"
        raise SchemaMismatch(f"the database has no tables of effects{cure}")
    newer: list[str] = []
    if applied - all_names():
        with store.read() as connection:
            newer = newer_ones(connection, store.located)
    if is_behind(applied):
        raise SchemaMismatch(f"the database has the tables of an older version: run `{store.init_command()}`")
    return newer


def unusable_schema(store: Store) -> str | None:
    """Why no tables can be created in the schema, and how to mend it; None if they can."""
    if not store.is_postgresql:
        return None
    with store.read() as connection:
        schema = connection.execute(_SCHEMA, {"schema": store.located}).one()
    if schema.name is None:
        return (
            f"the search path ({schema.path}) names no schema that exists and that the role {schema.role} may use: "
            "name one by EFFECTS_SCHEMA, or by ALTER ROLE … SET search_path"
        )
    if not schema.exists and not schema.may_add:
        cure = f"CREATE SCHEMA {schema.name} AUTHORIZATION {schema.role}"
        return f"the schema {schema.name} does not exist, and the role {schema.role} may not create it: {cure}"
    if schema.exists and not schema.may_create:
        cure = f"GRANT USAGE, CREATE ON SCHEMA {schema.name} TO {schema.role}"
        return f"the role {schema.role} may create no tables in the schema {schema.name}: {cure}"
    return None


_SCHEMA = text("""
    SELECT given.name, current_user AS role, current_setting('search_path') AS path, n.oid IS NOT NULL AS exists,
        has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') AS may_create,
        has_database_privilege(current_database(), 'CREATE') AS may_add
    FROM (SELECT COALESCE(CAST(:schema AS text), current_schema()) AS name) AS given
    LEFT JOIN pg_namespace AS n ON n.nspname = given.name""")


def is_behind(applied: Collection[str]) -> bool:
    """Whether a revision that this version knows is still to be applied."""
    reached = {branch_of(name): name for name in applied}
    return any(
        branch not in reached or (reached[branch] in names and reached[branch] != names[-1])
        for branch, names in _branches().items()
    )


def _applied(store: Store) -> set[str]:
    """The revisions of the database, by one statement where it has a table of them."""
    try:
        with store.read() as connection:
            return _versions(connection, store.located)
    except StoreRejected as error:
        if fault_of(error) is not Fault.SCHEMA:
            raise
    with store.read() as connection:
        return _in_database(connection, store.located)


def newer_ones(connection: Connection, schema: str | None) -> list[str]:
    """List the revisions that this version does not know and works with; those of packages that are not here, too.

    Raises:
        SchemaMismatch: one of them says that it needs newer code, or says nothing; names it.
    """
    unknown = sorted(_in_database(connection, schema) - all_names())
    if not unknown:
        return []
    support = _support(connection, schema)
    refused = [name for name in unknown if not _works_with(name, support)]
    if refused:
        raise SchemaMismatch(
            f"the database is newer than this version of effects (revision {', '.join(refused)}): "
            "upgrade the package on this host"
        )
    return unknown


def _works_with(revision: str, support: Mapping[str, str]) -> bool:
    """What any revision of its package has taken away, the later ones have not brought back."""
    branch = branch_of(revision)
    names = _branches().get(branch)
    oldest = max((number_of(code) for name, code in support.items() if branch_of(name) == branch), default=0)
    return revision in support and (names is None or number_of(names[-1]) >= oldest)


def branch_of(revision: str) -> str:
    """The package of a revision: `core` of `core_0001`."""
    return revision.rpartition("_")[0]


def number_of(revision: str) -> int:
    """Its place among those of its package; 0 where its name is not of this form."""
    return whole_number(revision.rpartition("_")[2]) or 0


def _name(store: Store) -> str:
    """Which database this is, without who connects and how."""
    url = store.engine.url
    if not store.is_postgresql:
        return str(Path(url.database or "").absolute())
    schema = f", schema {store.schema}" if store.schema else ""
    return f"{url.database} on {url.host or 'this host'}{schema}"


def newest() -> set[str]:
    """The last revision of each installed package."""
    return {names[-1] for names in _branches().values()}


def all_names() -> set[str]:
    """Every revision of each installed package."""
    return {name for names in _branches().values() for name in names}


def folders() -> list[Path]:
    """The `versions` folder of every installed package that brings tables."""
    entries = entry_points("effects.migrations")
    return [Path(importlib.import_module(entry.value).__path__[0]) / "versions" for entry in entries]


@functools.cache
def _branches() -> dict[str, list[str]]:
    """Branch → its revisions, oldest first. The folders are read once per process."""
    revisions: dict[str, list[str]] = {}
    for name in sorted(path.stem for folder in folders() for path in folder.glob("*_[0-9]*.py")):
        revisions.setdefault(branch_of(name), []).append(name)
    return revisions


def _in_database(connection: Connection, schema: str | None) -> set[str]:
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return set()
    return _versions(connection, schema)


def _versions(connection: Connection, schema: str | None) -> set[str]:
    versions = table(VERSION_TABLE, column("version_num"), schema=schema)
    return set(connection.scalars(select(versions.c.version_num)))


def _support(connection: Connection, schema: str | None) -> dict[str, str]:
    """Revision → the newest revision of the oldest code that works with it."""
    if not inspect(connection).has_table(SUPPORT, schema=schema):
        return {}
    support = table(SUPPORT, column("revision"), column("oldest_code"), schema=schema)
    return {row.revision: row.oldest_code for row in connection.execute(select(support))}
