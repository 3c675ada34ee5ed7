"""The database of a test, and the app's own Effects put on it.

It is a temporary SQLite file, or one that the test names and that is called a test's.
"""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
from psycopg import ConnectionInfo
from psycopg.adapt import AdaptersMap
from sqlalchemy import URL, Connection, Engine, NullPool, Pool, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from effects.app.effects import Effects
from effects.errors import ConfigurationError
from effects.keys.encryption import KeyRing, generate_key
from effects.kit.files import open_storage
from effects.kit.process import private_file
from effects.settings import Settings
from effects.store.db.engine import close_for_good
from effects.store.db.engine import create_engine as own_engine
from effects.store.db.location import TableBuilder
from effects.store.db.store import Store
from effects.store.db.urls import file_of
from effects.store.migrations import migrate
from effects.store.notifier import Notifier
from effects.store.sessions.borrowed import driver_of
from effects.store.sessions.databases import CallersDatabase, living
from effects.store.sessions.joining import AnySession

OWN = "own"  # the word for the app's own database


def choose_database(database: str | None, own: URL, folder: Path, builders: tuple[TableBuilder, ...]) -> URL:
    """The URL of the database to use.

    Args:
        database: None for a temporary one, `own`, or a URL.
        own: what the app itself is set up for.
        folder: where a temporary one is made.
        builders: whose tables a temporary one has.

    Raises:
        ConfigurationError: the database is not called a test's.
    """
    if database is None:
        path = folder / "effects.db"
        with private_file(path) as file:
            file.write(_empty_file(builders))
        return make_url(f"sqlite:///{path}")
    url = own if database == OWN else make_url(Settings(database_url=database).database_url)
    check_name(url.database)
    return url


def check_name(name: str | None) -> None:
    """Refuse a database that is not called a test's: the rows of effects in it are deleted, and its jobs are run.

    Raises:
        ConfigurationError: its name does not contain `test`.
    """
    if "test" not in Path(name or "").name.lower():
        raise ConfigurationError(
            f"the database {Path(name or '').name!r} is not called a test's. The toolkit empties the tables of effects "
            "and runs the jobs in it: give one whose name contains `test`, such as shop_test, or leave `database` out "
            "for a temporary one"
        )


@functools.cache
def _empty_file(builders: tuple[TableBuilder, ...]) -> bytes:
    """A SQLite database with all tables. Migrating one takes much longer than copying it."""
    with tempfile.TemporaryDirectory(prefix="effects-toolkit-") as folder:
        path = Path(folder) / "template.db"
        engine = own_engine(f"sqlite:///{path}")
        migrate.init(Store(engine, builders=builders))
        engine.dispose()
        plain = create_engine(f"sqlite:///{path}")
        with plain.connect() as connection:
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
        plain.dispose()
        return path.read_bytes()


def empty_tables(store: Store) -> None:
    """Create the tables that are missing, and delete every row of effects and its packages."""
    migrate.init(store)
    with store.begin() as connection:
        quote = connection.dialect.identifier_preparer.format_table
        names = [quote(table) for table in next(iter(store.tables.values())).metadata.sorted_tables]
        if store.is_postgresql:
            connection.execute(text(f"TRUNCATE {', '.join(names)} RESTART IDENTITY"))
        else:
            for name in reversed(names):
                connection.execute(text(f"DELETE FROM {name}"))


def restart_schedules(store: Store) -> None:
    """Let no schedule be due by a slot from before the test."""
    with store.begin() as connection:
        connection.execute(text(f"UPDATE {store.sql.job_definitions} SET last_slot = {store.sql.now}"))


_WAIT_SECONDS = 30.0


class SharedTransaction:
    """Hands out connections that are all the same one: what each takes for its transaction is a savepoint.

    Savepoints nest, so that threads take turns: a transaction of one thread waits for the end of another's.

    Args:
        connection: the test's own, in the transaction that it will roll back.

    Raises:
        ConfigurationError: it is not one of psycopg 3.
    """

    def __init__(self, connection: AnySession) -> None:
        driver = _driver(connection)
        if not isinstance(driver, psycopg.Connection):
            raise ConfigurationError(
                f"connection is one of {type(driver).__module__}; give one of psycopg 3, or of SQLAlchemy or Django by "
                "it. On SQLite leave it out: the temporary database is a test's own"
            )
        if driver.autocommit:
            raise ConfigurationError("connection commits each statement by itself; begin the test's transaction first")
        if driver.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            driver.execute("SELECT 1")  # psycopg begins with the first statement
        self.driver = driver
        self._turn = threading.Condition()
        self._open: list[tuple[_Shared, int]] = []  # with its thread, the innermost last
        self._number = 0

    def connect(self, dialect: object, record: object, arguments: list[Any], options: dict[str, Any]) -> Any:
        """For SQLAlchemy's event `do_connect`."""
        return _Shared(self, options.get("context"))

    @property
    def url(self) -> URL:
        """Of the test's database."""
        info = self.driver.info
        return URL.create("postgresql+psycopg", info.user, None, info.host, info.port, info.dbname)

    @property
    def is_open(self) -> bool:
        """Whether a transaction of the app has begun and has not ended."""
        return bool(self._open)

    def begin(self, connection: _Shared) -> str:
        """Begin a savepoint in this thread's turn, and return its name.

        Raises:
            TimeoutError: another thread's transaction did not end in 30 s.
        """
        own = threading.get_ident()
        with self._turn:
            if not self._turn.wait_for(lambda: not self._open or self._open[-1][1] == own, _WAIT_SECONDS):
                raise TimeoutError(f"another thread of this test has been in a transaction for {_WAIT_SECONDS:g} s")
            self._open.append((connection, own))
            self._number += 1
            name = f"effects_test_{self._number}"
        self.driver.execute(f"SAVEPOINT {name}".encode())
        return name

    def end(self, connection: _Shared, *statements: str) -> None:
        """End this connection's savepoint, and with it those within."""
        try:
            for statement in statements:
                self.driver.execute(statement.encode())
        finally:
            with self._turn:
                place = next(n for n, (opened, _) in enumerate(self._open) if opened is connection)
                for inner, _ in self._open[place:]:
                    inner.savepoint = None
                del self._open[place:]
                self._turn.notify_all()


def _driver(connection: Any) -> Any:
    if isinstance(connection, Session):
        connection = connection.connection()
    if isinstance(connection, Connection):
        return connection.connection.driver_connection
    lent = driver_of(connection)
    return connection if lent is None else lent[1]


class _NotDirect(ConnectionInfo):
    @property
    def backend_pid(self) -> int:
        """Another than the one that answers, as behind a pooler: no LISTEN, and no settings for a session."""
        return -1


class _Cursor(psycopg.Cursor[Any]):
    def execute(self, *arguments: Any, **options: Any) -> Any:
        with self._connection.statement():
            return super().execute(*arguments, **options)

    def executemany(self, *arguments: Any, **options: Any) -> None:
        with self._connection.statement():
            super().executemany(*arguments, **options)

    @contextmanager
    def copy(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        with self._connection.statement(), super().copy(*arguments, **options) as copying:
            yield copying

    @property
    def _connection(self) -> _Shared:
        connection: Any = self.connection
        assert isinstance(connection, _Shared)
        return connection


class _Shared(psycopg.Connection[Any]):
    """A connection to an app, on the libpq connection of the test."""

    def __init__(self, transaction: SharedTransaction, context: Any) -> None:
        super().__init__(transaction.driver.pgconn)
        self.lock = transaction.driver.lock
        self.cursor_factory = _Cursor
        self.prepare_threshold = None
        self.savepoint: str | None = None
        self._transaction = transaction
        self._alone = False
        if context is not None:
            self._adapters = AdaptersMap(context.adapters)

    @contextmanager
    def statement(self) -> Iterator[None]:
        """In this connection's transaction, or for itself where each commits by itself."""
        if self.savepoint is None:
            self.savepoint = self._transaction.begin(self)
        try:
            yield
        except BaseException:
            if self._alone:
                self.rollback()
            raise
        if self._alone:
            self.commit()

    def commit(self) -> None:
        if self.savepoint is not None:
            self._transaction.end(self, f"RELEASE {self.savepoint}")

    def rollback(self) -> None:
        if self.savepoint is not None:
            self._transaction.end(self, f"ROLLBACK TO {self.savepoint}", f"RELEASE {self.savepoint}")

    def close(self) -> None:
        self.rollback()

    def __del__(self, *_: Any) -> None:
        """The connection is the test's to close."""

    @property
    def info(self) -> ConnectionInfo:
        return _NotDirect(self.pgconn)

    @property
    def autocommit(self) -> bool:
        return self._alone

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._alone = value

    # A savepoint has the test's isolation, whatever it is asked for.
    isolation_level = read_only = deferrable = property(lambda _: None, lambda _, value: None)


_REDIRECTED = "_redirected"  # an attribute of an Effects that has a toolkit

Connect: TypeAlias = Callable[[Any, Any, list[Any], dict[str, Any]], Any]


@contextmanager
def redirected(
    app: Effects, url: URL, folder: Path, builders: tuple[TableBuilder, ...], connect: Connect | None = None
) -> Iterator[None]:
    """Let everything that holds `app`, or its engine, use this database, and a storage in `folder`.

    An engine of the app's own kind of database stays the engine that it is: its new connections go to the test's, so
    that sessions bound to it long before go there too. Where the test's is of another kind, `app.engine` is another
    engine meanwhile, and connections of the app's own are refused. So are those of every other Effects of the process,
    unless it has a toolkit too.

    Args:
        connect: opens the connections in place of the driver.

    Raises:
        ConfigurationError: from the app's own engine meanwhile, where it cannot be redirected.
    """
    before = dict(vars(app))
    shift_before = app.store.sql.shift_seconds
    with ExitStack() as stack:
        stack.callback(_restore, app, before, shift_before)
        others = [_engines(app_beside) for app_beside in living(Effects) if not _is_redirected(app_beside)]
        for engine in set().union(*others) - _engines(app):
            stack.enter_context(_connecting(engine, engine.url, _refuse_other))
        _redirect_engines(app, url, builders, stack, connect)
        is_within = _is_redirected(app)  # in another toolkit, whose rows this one may have to read
        storage_url = app.settings.storage_url if is_within else f"file:{folder / 'files'}"
        values: dict[str, Any] = {
            "settings": replace(
                app.settings,
                database_url=_setting(url) or app.settings.database_url,
                schema=app.store.schema,
                storage_url=storage_url,
            ),
            "storage": open_storage(storage_url),
            "notifier": Notifier(app.store),
            "database": CallersDatabase(app.store, app.database.engine),
            _REDIRECTED: True,
            "_states": {},
            "_adopted": [],
        }
        if not app.settings.keys and not is_within:
            values["keys"] = KeyRing(f"test={generate_key()},digest={generate_key()}")
        vars(app).update(values)
        if connect is not None:
            app.notifier.close()  # its thread would interfere with the savepoints, and nothing is committed anyway
        yield


def _setting(url: URL) -> str | None:
    """None for a database in memory, which a process of its own could not reach."""
    is_in_memory = url.get_backend_name() == "sqlite" and file_of(url) is None
    return None if is_in_memory else url.render_as_string(hide_password=False)


def _engines(app: Effects) -> set[Engine]:
    return {*app.store.engines, app.database.engine}


def _is_redirected(app: Effects) -> bool:
    return _REDIRECTED in vars(app)


def _restore(app: Effects, before: dict[str, Any], shift_seconds: float) -> None:
    app.notifier.close()
    for engine in vars(app)["_adopted"]:
        close_for_good(engine)
    vars(app).clear()
    vars(app).update(before)
    app.store.shift_clock(shift_seconds - app.store.sql.shift_seconds)


def _redirect_engines(
    app: Effects, url: URL, builders: tuple[TableBuilder, ...], stack: ExitStack, connect: Connect | None
) -> None:
    for engine in _engines(app):
        if engine.dialect.name == url.get_backend_name():
            stack.enter_context(_connecting(engine, url, connect or _to(engine, url)))
        else:
            stack.enter_context(_connecting(engine, engine.url, _refuse))
    if app.engine.dialect.name != url.get_backend_name():
        engine = own_engine(url.render_as_string(hide_password=False))
        if connect is not None:
            _listen_first(engine, connect)
        store = Store(engine, builders=builders)
        stack.callback(store.dispose)
        vars(app).update(engine=engine, store=store, database=CallersDatabase(store, engine))


@contextmanager
def _connecting(engine: Engine, url: URL, connect: Connect) -> Iterator[None]:
    """Open this engine's connections so, also those of engines derived from it; none of before is used meanwhile.

    A connection of async code belongs to the event loop that opened it, and a test has several: its own, that of an
    HTTP client, one for each drain. So an async engine keeps none meanwhile, and those that it had pooled are set
    aside unclosed: their loop may be at rest or closed. They are the engine's again afterwards.
    """
    own_url, own_pool = engine.url, engine.pool

    def listener(*arguments: Any) -> Any:  # one for each time, so that a toolkit within another removes its own
        return connect(*arguments)

    _listen_first(engine, listener)
    if engine.dialect.is_async:
        engine.pool = _unpooled(own_pool)
    else:
        engine.dispose()
    engine.url = url
    try:
        yield
    finally:
        engine.url = own_url
        event.remove(engine, "do_connect", listener)
        if engine.dialect.is_async:
            engine.pool = own_pool
        else:
            engine.dispose()


def _unpooled(pool: Pool) -> Pool:
    """A pool that keeps nothing, with the listeners of this one."""
    return NullPool(
        pool._creator, dialect=pool._dialect, reset_on_return=pool._reset_on_return, _dispatch=pool.dispatch
    )


def _listen_first(engine: Engine, connect: Connect) -> None:
    """Before others, such as one that creates the file; `insert=True` has no effect on this event."""
    event.listen(engine, "do_connect", connect)
    engine.dialect.dispatch.do_connect.listeners.rotate(1)


def _to(engine: Engine, url: URL) -> Connect:
    """Connect to `url` with all else that the engine was made with."""
    arguments, options = engine.dialect.create_connect_args(url)
    _, own = engine.dialect.create_connect_args(engine.url)

    def connect(dialect: Any, record: Any, positional: list[Any], values: dict[str, Any]) -> Any:
        kept = {name: value for name, value in values.items() if name not in own}
        return dialect.connect(*arguments, **{**kept, **options})

    return connect


def _refuse(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    raise ConfigurationError(
        f"this engine speaks to the app's own database ({dialect.name}), and the test's is another kind: bind the "
        "Session to `app.engine` when it is made, or give Toolkit(app, database=…) a test's database of this kind"
    )


def _refuse_other(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    raise ConfigurationError(
        "another Effects than the toolkit's was used in a test, and would have written to its own database: give it a "
        "toolkit too, as in `with Toolkit(app) as toolkit, Toolkit(other):`"
    )
