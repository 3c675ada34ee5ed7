"""Know a caller's connection to the database of an Effects from one to another database, and which Effects it leads to.

The engine that an app brings is taken as it is, or replaced by one of ours to the same URL.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, text

from effects.errors import ConfigurationError
from effects.kit.text.wording import described
from effects.store.db.store import Store
from effects.store.db.urls import database_url, describe_database, file_of, hosts_of
from effects.store.sessions.borrowed import LentConnection

_IDENTITY = text(
    "SELECT oid, pg_postmaster_start_time() FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"
)
_constructed: weakref.WeakSet[HasDatabase] = weakref.WeakSet()
_DRIVERS = ("psycopg", "pysqlite")


class ServerDatabase(NamedTuple):
    """A PostgreSQL database as a URL or a driver names it: another name may be the same one."""

    hosts: frozenset[tuple[str, str]]
    name: str


class CallersDatabase:
    """The database of an Effects, as its callers reach it.

    Args:
        store: of the Effects.
        engine: the app's own, or that of the store; sessions on it need no comparison.
    """

    def __init__(self, store: Store, engine: Engine) -> None:
        self.store = store
        self.engine = engine
        self._proven: set[ServerDatabase] = set()  # asked for, and the same

    def __str__(self) -> str:
        return describe_database(self.store.engine.url)

    def has_engine(self, engine: Engine) -> bool:
        """Whether this engine's connections are those of the app's own one; options do not matter."""
        return engine.pool in (self.engine.pool, self.store.engine.pool)

    def has_file(self, url: URL) -> bool:
        """Whether an engine of this URL opens our SQLite file."""
        if self.store.is_postgresql or url.get_backend_name() != "sqlite":
            return False
        return _is_same_file(file_of(url), file_of(self.store.engine.url))

    def is_reached_by(self, connection: Connection) -> bool:
        """Whether a connection leads to this database: by its engine, its URL, and only then by a query."""
        if self.has_engine(connection.engine):
            return True
        if connection.dialect.name != self.store.engine.dialect.name:
            return False
        if not self.store.is_postgresql:
            theirs_file, own_file = _file(connection), _own_file(self.store)
            if theirs_file is None and own_file is None:  # in memory: it is its connection's own
                return self._is_carried_by(connection)
            return _is_same_file(theirs_file, own_file)
        theirs = _server_database(connection)
        if theirs is not None and (theirs in self._proven or _is_same(theirs, _named(self.store.engine.url))):
            return True
        return self._ask(connection, theirs)

    def _is_carried_by(self, connection: Connection) -> bool:
        """Whether our own statements go through the same connection of the driver."""
        with self.store.read() as own:
            return _driver(own) is _driver(connection)

    def _ask(self, connection: Connection, theirs: ServerDatabase | None) -> bool:
        with self.store.read() as own:
            expected = own.execute(_IDENTITY).one()
        same = tuple(connection.execute(_IDENTITY).one()) == tuple(expected)
        if same and theirs is not None:
            self._proven.add(theirs)
        return same


def describe_connection(connection: Connection) -> str:
    """Name the database of a connection to a person, without user and password."""
    if connection.dialect.name == "sqlite":
        return f"file {_file(connection) or '(in memory)'}"
    theirs = _server_database(connection)
    if theirs is None:
        return describe_database(connection.engine.url)
    hosts = ",".join(sorted(f"{host}:{port}" for host, port in theirs.hosts))
    return f"database {theirs.name} on {hosts}"


def _server_database(connection: Connection) -> ServerDatabase | None:
    """By the driver, who has resolved what a URL leaves out; else by the URL. None if neither names it in full."""
    info: Any = getattr(connection.connection.driver_connection, "info", None)
    if info is not None and getattr(info, "host", None) and getattr(info, "dbname", None):
        return ServerDatabase(frozenset({(info.host.lower(), str(info.port))}), info.dbname)
    url = connection.engine.url
    return _named(url) if url.database and hosts_of(url) else None


def _named(url: URL) -> ServerDatabase:
    default_port = os.environ.get("PGPORT") or "5432"
    hosts = frozenset((host, port or default_port) for host, port in hosts_of(url))
    return ServerDatabase(hosts, url.database or url.username or "")


def _is_same(theirs: ServerDatabase, ours: ServerDatabase) -> bool:
    return theirs.name == ours.name and not theirs.hosts.isdisjoint(ours.hosts)


def _driver(connection: Connection) -> object:
    driver = connection.connection.driver_connection
    return driver.driver if isinstance(driver, LentConnection) else driver


def _own_file(store: Store) -> Path | None:
    path = file_of(store.engine.url)
    if path is None:  # the URL of an engine that was made with its own function names nothing
        with store.read() as connection:
            path = _file(connection)
    return path


def _file(connection: Connection) -> Path | None:
    rows = connection.exec_driver_sql("PRAGMA database_list").all()
    return next((Path(row[2]) for row in rows if row[1] == "main" and row[2]), None)


def _is_same_file(theirs: Path | None, ours: Path | None) -> bool:
    if theirs is None or ours is None:
        return False
    return theirs == ours or (theirs.exists() and ours.exists() and theirs.samefile(ours))


class HasDatabase(Protocol):
    """An Effects, which imports this module."""

    database: CallersDatabase
    disposed: bool


App = TypeVar("App", bound=HasDatabase)


def register(app: HasDatabase) -> None:
    """Remember an Effects for as long as it lives."""
    _constructed.add(app)


def living(kind: type[App]) -> list[App]:
    """Each Effects that was not disposed of."""
    return [app for app in list(_constructed) if isinstance(app, kind) and not app.disposed]


def those_on(engine: Engine, kind: type[App]) -> list[App]:
    """Each Effects that was made for this engine and was not disposed of."""
    return [app for app in living(kind) if app.database.has_engine(engine)]


def callers_engine(engine: Any) -> Engine:
    """The engine that the app's sessions use: of an asynchronous one, the one inside.

    Raises:
        ConfigurationError: it is no engine of SQLAlchemy, or of another database.
    """
    asyncio = sys.modules.get("sqlalchemy.ext.asyncio")
    if asyncio is not None and isinstance(engine, asyncio.AsyncEngine):
        engine = engine.sync_engine
    if not isinstance(engine, Engine):
        raise ConfigurationError(f"engine is {described(engine)}; give sqlalchemy.create_engine(…), or a URL")
    if engine.dialect.name not in ("sqlite", "postgresql"):
        raise ConfigurationError(f"engine is for {engine.dialect.name}; effects works on sqlite and postgresql")
    return engine


def can_carry(engine: Engine) -> bool:
    """Whether our own statements can go through it; else they need an engine of ours to its URL."""
    return engine.driver in _DRIVERS and not engine.dialect.is_async


def url_of(engine: Engine) -> str | None:
    """Its URL as a setting; None where it names no database that others could reach, as one in memory."""
    text = engine.url.render_as_string(hide_password=False)
    try:
        database_url(text)
    except ConfigurationError:
        return None
    return text


def refuse_other_database(engine: Engine, named: str | None) -> None:
    """Refuse a variable that names another database than the app's engine: it would be left aside in silence.

    Compared by their URLs, without asking either; an engine that has its own function to connect names none.

    Raises:
        ConfigurationError: names both, without users and passwords, and what to do.
    """
    if not named:
        return
    variable, own = database_url(named), engine.url
    if variable.get_backend_name() == own.get_backend_name() and _may_be_same(variable, own):
        return
    raise ConfigurationError(
        f"EFFECTS_DATABASE_URL (or --database-url) names {describe_database(variable)}, and the app has a database of "
        f"its own, {describe_database(own)}: unset it, or let the app take its database from it"
    )


def _may_be_same(variable: URL, own: URL) -> bool:
    if own.get_backend_name() == "sqlite":
        return file_of(own) is None or _is_same_file(file_of(variable), file_of(own))
    theirs, ours = _named(variable), _named(own)
    here, there = (_machines(database) for database in (ours, theirs))
    return not ours.name or (theirs.name == ours.name and (not here or not there or not here.isdisjoint(there)))


def _machines(database: ServerDatabase) -> set[tuple[str, str]]:
    """Its hosts, with one name for this machine: a socket, and each name of the loopback."""
    return {
        ("localhost" if host.startswith("/") or host in ("localhost", "127.0.0.1", "::1") else host, port)
        for host, port in database.hosts
    }
