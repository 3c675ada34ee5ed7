"""Engines as effects needs them: SQLite in WAL with immediate transactions, PostgreSQL with or without a pooler."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, QueuePool, event
from sqlalchemy.dialects import registry
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.pool import ConnectionPoolEntry

from effects.errors import ConfigurationError
from effects.store.db.files import create_database_file
from effects.store.db.urls import database_url as parse_url

SQLITE_BUSY_SECONDS = 30.0
SQLITE_SWITCH_SECONDS = 0.005  # between two tries to switch to WAL
# At DEBUG, SQLAlchemy logs every row that it reads. Our engines use a separate logger that does not, whatever
# the level of the others; to see the statements, set its level.
LOGGING_NAME = "effects"
logging.getLogger(f"sqlalchemy.engine.Engine.{LOGGING_NAME}").setLevel(logging.WARNING)
# A pool's logger has its class's name: that of ours says nothing at INFO, as SQLAlchemy's says nothing by default.
logging.getLogger(f"{__name__}.ConnectionPool").setLevel(logging.WARNING)
SQLITE_VERSION_MIN = (3, 38, 0)  # RETURNING (3.35) and the JSON operators (3.38)
# libpq's own have no end: a dead host is noticed after a quarter of an hour. A value of the URL goes before these.
CONNECTION_TIMEOUTS = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
}
LOCK_SECONDS = 2.0  # no statement of ours waits longer for a lock
# No transaction of a worker's waits longer for its worker. A host that lost its power, or a network that lost the
# connection, closes nothing: the server would keep the transaction, and its locks, for the two hours of its keepalive.
IDLE_SECONDS = 10.0
SESSION_DEFAULTS = {
    "lock_timeout": f"{LOCK_SECONDS:g}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS:g}s",
    "statement_timeout": "0",  # it could turn the wait for a synchronous standby into a COMMIT
    "default_transaction_isolation": "read committed",
    "jit": "off",  # where statistics are missing, a statement of milliseconds would be compiled for a fifth of a second
    # A prepared statement keeps its plan. One that was made while a table was empty reads it from end to end, and
    # would do so with a million rows, until the table is analyzed.
    "enable_seqscan": "off",
    # What counts live jobs (the sample of a minute, a worker's start) must not take the server's cores from the claims
    # and from the app: beside a million jobs, three processes for a quarter of a second.
    "max_parallel_workers_per_gather": "0",
}
HAS_DEFAULTS = "effects_has_defaults"  # in the `info` of a connection whose session has them
PREPARE_AFTER = 5  # executions, of which each had a plan for its own parameters
registry.register("postgresql.effects", "effects.store.db.dialect", "LoginDialect")


def create_engine(database_url: str) -> Engine:
    """An engine for an app or for effects itself; disposed in a child process after a fork.

    SQLite: a new file has mode 0600 regardless of the umask; WAL, synchronous=FULL (an acknowledged commit survives a
    power cut), foreign keys on, writers wait up to 30 s, and every transaction begins IMMEDIATE, because a deferred one
    that turns into a writer fails at once with SQLITE_BUSY. PostgreSQL: psycopg 3, READ COMMITTED, prepared statements
    off, so that a transaction pooler may stand between; a host that is gone is noticed after 5 to 11 s
    (`CONNECTION_TIMEOUTS`, unless the URL sets its own).

    Raises:
        ConfigurationError: it is no URL of a database that effects can use, or the SQLite library is older than 3.38.
    """
    url = parse_url(database_url)
    if url.get_backend_name() == "sqlite":
        engine = _sqlite_engine(url)
    else:
        engine = _postgresql_engine(url, isolation_level="READ COMMITTED")
    _dispose_after_fork(engine)
    return engine


def engine_beside(engine: Engine) -> Engine:
    """Another with connections of its own, which are made as those of an app's engine for PostgreSQL are: by the same
    `creator`, with the same `connect_args`, and told to the same listeners.
    """
    beside = sa.create_engine(engine.url, pool=engine.pool.recreate(), hide_parameters=True, logging_name=LOGGING_NAME)
    _dispose_after_fork(beside)
    return beside


def autocommit_engine(engine: Engine) -> Engine | None:
    """For one of our PostgreSQL engines, another on which every statement commits by itself; else None.

    Turning one connection into the other kind and back costs a claim by an idle worker more than the claim. Where no
    pooler is between, statements that come again are prepared: parsing and planning took half of a small claim's time.
    """
    if engine.dialect.name != "postgresql":
        return None
    autocommit = _postgresql_engine(
        engine.url.set(drivername="postgresql+effects"),
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
        use_native_hstore=False,  # which would look up the type
    )
    event.listen(autocommit, "connect", _begin_session)
    _dispose_after_fork(autocommit)
    return autocommit


def _begin_session(driver: Any, record: ConnectionPoolEntry) -> None:
    """Set the session's defaults, and prepare statements from then on; neither behind a pooler."""
    if set_for_session(driver, SESSION_DEFAULTS):
        driver.prepare_threshold = PREPARE_AFTER
        record.info[HAS_DEFAULTS] = True


def set_for_session(driver: Any, settings: Mapping[str, str]) -> bool:
    """Set these once per connection, by one statement, on a psycopg connection in autocommit.

    False behind a pooler, where others would share the session: there another process answers than the one of the
    login, and nothing is set.
    """
    calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    answer = driver.execute(f"SELECT {calls} WHERE pg_backend_pid() = {driver.info.backend_pid}").fetchone()
    return answer is not None


def _postgresql_engine(url: sa.URL, *, isolation_level: IsolationLevel, **options: Any) -> Engine:
    timeouts = {name: value for name, value in CONNECTION_TIMEOUTS.items() if name not in url.query}
    engine = sa.create_engine(
        url,
        connect_args={"prepare_threshold": None, **timeouts},
        isolation_level=isolation_level,
        poolclass=ConnectionPool,
        pool_size=10,
        max_overflow=20,
        pool_use_lifo=True,
        hide_parameters=True,  # a payload must not reach a log by way of an error's text
        logging_name=LOGGING_NAME,
        **options,
    )
    memory = HostMemory()
    event.listen(engine, "do_connect", memory.order)
    event.listen(engine, "connect", memory.remember)
    return engine


def _sqlite_engine(url: sa.URL) -> Engine:
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version}; effects needs 3.38 or later")
    engine = sa.create_engine(
        url,
        connect_args={"timeout": SQLITE_BUSY_SECONDS},
        poolclass=ConnectionPool,
        pool_size=10,
        max_overflow=20,
        hide_parameters=True,
        logging_name=LOGGING_NAME,
    )

    event.listen(engine, "do_connect", create_database_file)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, below
        use_wal(connection)
        for pragma in ("synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        readonly = connection.get_execution_options().get("effects_readonly", False)
        connection.exec_driver_sql("BEGIN" if readonly else "BEGIN IMMEDIATE")

    return engine


def use_wal(connection: sqlite3.Connection, seconds: float = SQLITE_BUSY_SECONDS) -> None:
    """Switch the file to WAL, waiting for others: SQLite refuses this at once while another connection switches.

    Raises:
        sqlite3.OperationalError: another connection was in the way for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(SQLITE_SWITCH_SECONDS)


def _dispose_after_fork(engine: Engine) -> None:
    """Drop inherited connections, unclosed: a child must not use its parent's sockets."""
    engine_ref = weakref.ref(engine)

    def forget() -> None:
        if (inherited := engine_ref()) is not None:
            inherited.dispose(close=False)

    os.register_at_fork(after_in_child=forget)


def pooler_between(driver: Any) -> bool:
    """Ask on a psycopg connection: a pooler names another process at the login than the one that answers.

    False for a driver that does not report the address it logged in to.
    """
    info = getattr(driver, "info", None)
    if info is None:
        return False
    cursor = driver.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    answering = cursor.fetchone()[0]
    cursor.close()
    return bool(info.backend_pid != answering)


class ConnectionPool(QueuePool):
    """As SQLAlchemy's, except that after `dispose` a connection is closed when it comes back.

    SQLAlchemy's own keeps it. But an engine that was disposed of has a new pool, no one holds the old one, and the
    connection stays open until the garbage collector finds it.
    """

    _disposed = False

    def dispose(self) -> None:
        """Close the connections that are not in use; the others when they come back."""
        self._disposed = True  # before the pool is emptied: whoever returns a connection later looks here
        super().dispose()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        super()._do_return_conn(record)
        if self._disposed:
            super().dispose()


def close_for_good(engine: Engine) -> None:
    """Dispose of an engine that is not used again: a thread that still runs leaves no connection open in it.

    The engine still works; each use then opens a connection of its own.
    """
    engine.dispose()
    engine.pool.dispose()  # the new one, which keeps nothing either


class HostMemory:
    """Which of a URL's hosts an engine asks first: that of its newest connection, then the others in their order.

    The client library begins with the first for each connection. While that hangs, or is an address where no one
    answers, each connection would wait for `connect_timeout` before it reached the next.
    """

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None

    def order(self, dialect: object, record: object, arguments: list[Any], parameters: dict[str, Any]) -> None:
        hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
        last = self._last
        if len(hosts) < 2 or last is None:
            return
        pairs = list(zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=True))
        pairs.sort(key=lambda pair: (pair[0], pair[1] or last[1]) != last)  # stable: the others stay in their order
        parameters["host"], parameters["port"] = (",".join(part) for part in zip(*pairs, strict=True))

    def remember(self, driver: Any, record: object) -> None:
        info = getattr(driver, "info", None)
        if info is not None:
            self._last = (str(info.host), str(info.port))
