"""One PostgreSQL connection for all of a test, whose transaction the test rolls back at its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import ConnectionInfo
from psycopg.adapt import AdaptersMap
from sqlalchemy import URL, Connection
from sqlalchemy.orm import Session

from effects.errors import ConfigurationError
from effects.sessions.drivers import driver_of
from effects.sessions.joining import AnySession

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
