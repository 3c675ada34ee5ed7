"""Engines as effects needs them: SQLite in WAL with immediate transactions, PostgreSQL with or without a pooler.

The files of a SQLite database are private from their first moment on. PostgreSQL's dialect sends no statements for what
it must know: the login has told it.
"""

from __future__ import annotations

import logging
import sqlite3
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, QueuePool, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.pool import ConnectionPoolEntry

from effects.errors import ConfigurationError, WorkerCannotContinue
from effects.kit.process import PRIVATE_MODE, after_fork_in_child, create_private
from effects.store.db.urls import database_url as parse_url

SQLITE_BUSY_SECONDS = 30.0
SQLITE_SWITCH_SECONDS = 0.005  # between two tries to switch to WAL
# At DEBUG, SQLAlchemy logs every row that it reads. Our engines use a separate logger that does not, whatever
# the level of the others; to see the statements, set its level.
LOGGING_NAME = "effects"
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
    "extra_float_digits": "1",  # with fewer, a time is read back as another one
    "jit": "off",  # where statistics are missing, a statement of milliseconds would be compiled for a fifth of a second
    # A prepared statement keeps its plan. One that was made while a table was empty reads it from end to end, and
    # would do so with a million rows, until the table is analyzed.
    "enable_seqscan": "off",
    # What counts live jobs (the sample of a minute, a worker's start) must not take the server's cores from the claims
    # and from the app: beside a million jobs, three processes for a quarter of a second.
    "max_parallel_workers_per_gather": "0",
}
HAS_DEFAULTS = "effects_has_defaults"  # in the `info` of a connection whose session has them
_LOCAL = "effects_local_settings"  # in the `info` of any other: what each transaction of ours there sets for itself
_UTF8 = ("UTF8", "UTF-8")  # as the server says it, and as some poolers do
PREPARE_AFTER = 5  # executions, of which each had a plan for its own parameters
_COMPANIONS = ("", "-wal", "-shm", "-journal")
logging.getLogger(f"sqlalchemy.engine.Engine.{LOGGING_NAME}").setLevel(logging.WARNING)
# A pool's logger has its class's name: that of ours says nothing at INFO, as SQLAlchemy's says nothing by default.
logging.getLogger(f"{__name__}.ConnectionPool").setLevel(logging.WARNING)
registry.register("postgresql.effects", "effects.store.db.engine", "LoginDialect")


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


def local_settings(connection: Connection) -> str:
    """What a transaction of ours must set, whatever a role or a database sets for its sessions; often nothing.

    Read once for each connection of the driver. Nothing else that can be set so changes what we write, read or decide.

    Raises:
        ConfigurationError: the database cannot hold every text.
    """
    info = connection.info
    if HAS_DEFAULTS in info:
        return ""
    if _LOCAL not in info:
        driver: Any = connection.connection.driver_connection
        _refuse_other_encodings(driver)
        digits = int(str(connection.exec_driver_sql("SHOW extra_float_digits").scalar()))
        settings = {"client_encoding": "'UTF8'"} if _status(driver, "client_encoding") not in _UTF8 else {}
        settings |= {"extra_float_digits": "1"} if digits < 1 else {}
        info[_LOCAL] = "; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items())
    return str(info[_LOCAL])


def _status(driver: Any, name: str) -> str:
    """What the server has reported at the login or since, without a statement; of another driver, what is needed."""
    info = getattr(driver, "info", None)
    return (getattr(info, "parameter_status", lambda name: None)(name) or _UTF8[0]).upper()


def _refuse_other_encodings(driver: Any) -> None:
    if (encoding := _status(driver, "server_encoding")) not in _UTF8:
        raise ConfigurationError(
            f"the database {driver.info.dbname!r} has the encoding {encoding}, which cannot hold every text: effects "
            "needs UTF8. Create another (CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8') and restore a dump of "
            "this one into it"
        )


def _begin_session(driver: Any, record: ConnectionPoolEntry) -> None:
    """Set the session's defaults, and prepare statements from then on; neither behind a pooler."""
    try:
        _refuse_other_encodings(driver)
    except ConfigurationError:
        driver.close()  # no pool has it yet
        raise
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
        connect_args={"prepare_threshold": None, "client_encoding": "utf8", **timeouts},
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
    after_fork_in_child(engine, partial(Engine.dispose, close=False))


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

    The engine still works; each use then opens its own connection.
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


class LoginDialect(PGDialect_psycopg):
    """SQLAlchemy's own for psycopg, without its statements at the first connection of a process.

    What it leaves unknown, the default schema and isolation level, is for reflection and for other isolation levels.
    """

    supports_statement_cache = True

    def _get_server_version_info(self, connection: Connection) -> tuple[int, int]:
        major, minor = divmod(_info(connection).server_version, 10_000)
        return major, minor

    def _get_default_schema_name(self, connection: Connection) -> str:
        raise NotImplementedError  # SQLAlchemy's word for "not known"

    def get_default_isolation_level(self, dbapi_conn: Any) -> NoReturn:
        raise NotImplementedError

    def _set_backslash_escapes(self, connection: Connection) -> None:
        self._backslash_escapes = _info(connection).parameter_status("standard_conforming_strings") == "off"


def _info(connection: Connection) -> Any:
    driver: Any = connection.connection.driver_connection
    return driver.info


def create_database_file(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Create the file of a new database with mode 0600, before SQLite would with the umask's.

    The write-ahead log and its index get the mode of the file from SQLite. A file that exists is left as it is; of a
    link, the target is created. For SQLAlchemy's event `do_connect`.
    """
    file = _file_of(str(arguments[0]), is_uri=bool(options.get("uri")))
    if file is not None:
        with suppress(OSError):  # it exists, or cannot be created: SQLite reports that
            create_private(file.resolve()).close()


def _file_of(name: str, *, is_uri: bool) -> Path | None:
    """The file that this name opens; None for a database in memory, and for one that is opened to be read."""
    if is_uri and name.startswith("file:"):
        url = urlsplit(name)
        if parse_qs(url.query).get("mode", ["rwc"])[-1] != "rwc":  # the others create no file
            return None
        name = unquote(url.path)
    return None if name in ("", ":memory:") or name.startswith(":") else Path(name)


def wide_files(database: Path) -> dict[Path, int]:
    """The database's file and companions that others than the owner may open, with their modes."""
    modes: dict[Path, int] = {}
    for suffix in _COMPANIONS:
        file = database.with_name(database.name + suffix)
        with suppress(OSError):
            modes[file] = stat.S_IMODE(file.stat().st_mode)
    return {file: mode for file, mode in modes.items() if mode & ~PRIVATE_MODE & 0o777}


class DatabaseFile:
    """The file as it is when this is made; it must exist by then.

    A process that has a file open continues with it after it was deleted or replaced: alive, and
    alone with it. PostgreSQL has no such file.
    """

    def __init__(self, engine: Engine) -> None:
        self._path = _path_of(engine)
        self._identity = self._look()

    def check(self) -> None:
        """Compare it with the file at its path now.

        Raises:
            WorkerCannotContinue: it was deleted or replaced.
        """
        if self._path is None or (now := self._look()) == self._identity:
            return
        fate = "deleted" if now is None else "replaced by another"
        raise WorkerCannotContinue(
            f"the database file {self._path} was {fate} while this process had it open: what it reads and writes is "
            "the old one; start a fresh process"
        )

    def _look(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat() if self._path is not None else None
        except FileNotFoundError:
            return None
        return (status.st_dev, status.st_ino) if status is not None else None


def _path_of(engine: Engine) -> Path | None:
    """Absolute, since a process may change its directory; None where the database is in memory, or on a server."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name == ":memory:" or name.startswith("file:"):
        return None
    return Path(name).absolute()
