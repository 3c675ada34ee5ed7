"""A driver's connection, or Django's, as one of SQLAlchemy, for as long as one call takes; its owner notices nothing.

Nothing here commits, rolls back or closes it, and no setting of it is altered when it goes back. It is recognised
without importing any driver.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from effects.errors import EnqueueError

_IDLE, _ACTIVE, _FAILED = 0, 1, 3  # of libpq's PGTransactionStatusType, which both drivers report
_ALONE = (
    "session is in AUTOCOMMIT: each statement would commit by itself, and a crash between two of them would lose the "
    "job; "
)


class LentConnection:
    """What SQLAlchemy holds: the caller's connection without the power to end its transaction.

    Args:
        driver: the caller's connection.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """A cursor that gives tuples, whatever the connection was set to give."""
        raise NotImplementedError

    def commit(self) -> None:
        """Leave it to the caller."""

    def rollback(self) -> None:
        """Leave it to the caller."""

    def close(self) -> None:
        """Leave it to the caller."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


class _LentSqlite(LentConnection):
    def cursor(self, *arguments: Any, **options: Any) -> Any:
        return sqlite3.Cursor(self.driver)


class _LentPsycopg(LentConnection):
    def cursor(self, *arguments: Any, **options: Any) -> Any:
        from effects.store.sessions.psycopg_cursor import PlainCursor  # noqa: PLC0415 - an app on SQLite needs no psycopg

        return PlainCursor(self.driver)


class _LentPsycopg2(LentConnection):
    def cursor(self, *arguments: Any, **options: Any) -> Any:
        return self.driver.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)


_KINDS: dict[str, type[LentConnection]] = {
    "sqlite+pysqlite": _LentSqlite,
    "postgresql+psycopg": _LentPsycopg,
    "postgresql+psycopg2": _LentPsycopg2,
}


@contextmanager
def borrowed(driver_name: str, driver: Any) -> Iterator[Connection]:
    """Yield the caller's connection as one of SQLAlchemy.

    Args:
        driver_name: as in a URL of SQLAlchemy, such as `postgresql+psycopg`.
        driver: the caller's connection, in a transaction or about to begin one.
    """
    engine = _engine(driver_name)
    lent = _KINDS[driver_name](driver)
    pool = NullPool(lambda: lent, dialect=engine.dialect, reset_on_return=None)
    with _plain_texts(driver), Connection(engine, pool.connect()) as connection:
        connection.begin()  # of SQLAlchemy's books; the driver hears nothing of it
        yield connection


@cache
def _engine(driver_name: str) -> Engine:
    """An engine for its dialect and its cache of compiled statements. It never opens a connection."""
    url = make_url(f"{driver_name}://")
    kind: Any = url.get_dialect()
    dialect = kind(dbapi=kind.import_dbapi())
    return sa.Engine(NullPool(_no_connection, dialect=dialect), dialect, url, hide_parameters=True)


def _no_connection() -> Any:
    raise AssertionError("each call brings its connection")


@contextmanager
def _plain_texts(driver: Any) -> Iterator[None]:
    """A factory of texts is the connection's on SQLite: ours for as long as the call takes."""
    if not isinstance(driver, sqlite3.Connection):
        yield
        return
    before, driver.text_factory = driver.text_factory, str
    try:
        yield
    finally:
        driver.text_factory = before


class Psycopg2Connection(Protocol):
    """A connection of psycopg2."""

    autocommit: bool

    def get_transaction_status(self) -> int:
        """The state of its transaction."""


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`."""

    vendor: str
    in_atomic_block: bool
    needs_rollback: bool

    def ensure_connection(self) -> None:
        """Open the driver's connection."""

    def on_commit(self, func: Any, robust: bool = False) -> None:
        """Call a function once the outermost block has committed."""


def is_of_django(session: Any) -> bool:
    """Whether this is a connection of Django: by its parts, since Django may not be installed."""
    parts = ("vendor", "in_atomic_block", "ensure_connection", "on_commit", "settings_dict")
    return "django.db" in sys.modules and all(hasattr(session, part) for part in parts)


def driver_of(session: Any) -> tuple[str, Any] | None:
    """Name the SQLAlchemy driver of a connection, and return the connection; None if it is of no driver known here.

    Raises:
        EnqueueError: no transaction that ends with the caller's is under way in it, or could be.
    """
    if is_of_django(session):
        return _driver_of_django(session)
    if isinstance(session, sqlite3.Connection):
        return "sqlite+pysqlite", _checked_sqlite(session)
    psycopg, psycopg2 = sys.modules.get("psycopg"), sys.modules.get("psycopg2.extensions")
    if psycopg is not None and isinstance(session, psycopg.Connection):
        return "postgresql+psycopg", _checked_psycopg(session)
    if psycopg2 is not None and isinstance(session, psycopg2.connection):
        return "postgresql+psycopg2", _checked_psycopg2(session)
    return None


def _driver_of_django(session: Any) -> tuple[str, Any]:
    if session.needs_rollback:
        raise EnqueueError(
            "session is in an atomic block that has failed: it will be rolled back, and nothing more fits"
        )
    if not session.in_atomic_block and session.get_autocommit():
        raise EnqueueError(f"{_ALONE}call this inside `with transaction.atomic():`")
    session.ensure_connection()
    driver = driver_of(session.connection)
    if driver is None:
        raise EnqueueError(
            f"session is Django's connection to {session.vendor}; effects works on sqlite and postgresql"
        )
    return driver


def _checked_psycopg(driver: Any) -> Any:
    _refuse_closed(driver.closed)
    if driver.pgconn.pipeline_status:
        raise EnqueueError("session is in pipeline mode, which cannot answer one statement at a time: leave it first")
    _check_status(
        int(driver.info.transaction_status), autocommit=driver.autocommit, begin="with connection.transaction():"
    )
    return driver


def _checked_psycopg2(driver: Any) -> Any:
    _refuse_closed(driver.closed)
    _check_status(driver.get_transaction_status(), autocommit=driver.autocommit, begin="connection.autocommit = False")
    return driver


def _check_status(status: int, *, autocommit: bool, begin: str) -> None:
    if status == _FAILED:
        raise EnqueueError("the transaction of session has failed: roll it back, or back to a savepoint, first")
    if status == _ACTIVE:
        raise EnqueueError("session carries out a statement (a stream or a COPY): let that end first")
    if status == _IDLE and autocommit:
        raise EnqueueError(f"{_ALONE}begin a transaction with `{begin}`")


def _checked_sqlite(driver: sqlite3.Connection) -> sqlite3.Connection:
    try:
        sqlite3.Cursor(driver)  # refused by a connection of another thread
        is_open = driver.in_transaction
    except sqlite3.ProgrammingError as error:  # closed, or of another thread
        raise EnqueueError(f"session cannot be used: {error}") from error
    if not is_open and begins_no_transaction(driver):
        raise EnqueueError(f"{_ALONE}begin a transaction with `connection.execute('BEGIN')`")
    return driver


def begins_no_transaction(driver: Any) -> bool:
    """Whether Python leaves BEGIN to the app on this connection of sqlite3 or aiosqlite."""
    own = getattr(driver, "_conn", driver)  # aiosqlite passes on the isolation level alone
    return getattr(own, "isolation_level", "") is None or getattr(own, "autocommit", None) is True  # from Python 3.12


def _refuse_closed(closed: Any) -> None:
    if closed:
        raise EnqueueError("session is a closed connection")
