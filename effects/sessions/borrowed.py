"""A driver's connection as one of SQLAlchemy, for as long as one call takes; its owner notices nothing.

Nothing here commits, rolls back or closes it, and no setting of it is altered when it goes back.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool


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
        from effects.sessions.psycopg_cursor import PlainCursor  # noqa: PLC0415 - an app on SQLite needs no psycopg

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
