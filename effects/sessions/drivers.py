"""Connections of drivers, and Django's, as `session=`: recognised without importing any driver, and checked."""

from __future__ import annotations

import sqlite3
import sys
from typing import Any, Protocol

from effects.errors import EnqueueError

_IDLE, _ACTIVE, _FAILED = 0, 1, 3  # of libpq's PGTransactionStatusType, which both drivers report
_ALONE = (
    "session is in AUTOCOMMIT: each statement would commit by itself, and a crash between two of them would lose the "
    "job; "
)


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
