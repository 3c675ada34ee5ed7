"""Engines as effects needs them: SQLite in WAL with immediate transactions, PostgreSQL without prepared statements."""

from __future__ import annotations

import logging
import os
import sqlite3
import weakref
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.engine import make_url

from effects.errors import ConfigurationError

SQLITE_BUSY_SECONDS = 30.0
# At DEBUG, SQLAlchemy logs every row that it reads. Our engines have a logger of their own that does not, whatever
# the level of the others; to see the statements, set its level.
LOGGING_NAME = "effects"
logging.getLogger(f"sqlalchemy.engine.Engine.{LOGGING_NAME}").setLevel(logging.WARNING)
SQLITE_VERSION_MIN = (3, 38, 0)  # RETURNING (3.35) and the JSON operators (3.38)


def create_engine(database_url: str) -> Engine:
    """An engine for an app or for effects itself; disposed in a child process after a fork.

    SQLite: WAL, synchronous=FULL (an acknowledged commit survives a power cut), foreign keys on, writers
    wait up to 30 s, and every transaction begins IMMEDIATE, because a deferred one that turns into a writer
    fails at once with SQLITE_BUSY. PostgreSQL: psycopg 3, prepared statements off, so that a transaction
    pooler may stand between.

    Raises:
        ConfigurationError: the SQLite library is older than 3.38.
    """
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        engine = _sqlite_engine(url)
    else:
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        engine = _postgresql_engine(url)
    _dispose_after_fork(engine)
    return engine


def autocommit_twin(engine: Engine) -> Engine | None:
    """For one of our PostgreSQL engines, another on which every statement commits by itself; else None.

    Turning one connection into the other kind and back costs a claim by an idle worker more than the claim.
    """
    if engine.dialect.name != "postgresql":
        return None
    twin = _postgresql_engine(engine.url, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)
    _dispose_after_fork(twin)
    return twin


def _postgresql_engine(url: sa.URL, **options: Any) -> Engine:
    return sa.create_engine(
        url,
        connect_args={"prepare_threshold": None},
        pool_size=10,
        max_overflow=20,
        pool_use_lifo=True,
        hide_parameters=True,  # a payload must not reach a log by way of an error's text
        logging_name=LOGGING_NAME,
        **options,
    )


def _sqlite_engine(url: sa.URL) -> Engine:
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version}; effects needs 3.38 or later")
    engine = sa.create_engine(
        url,
        connect_args={"timeout": SQLITE_BUSY_SECONDS},
        pool_size=10,
        max_overflow=20,
        hide_parameters=True,
        logging_name=LOGGING_NAME,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, below
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        readonly = connection.get_execution_options().get("effects_readonly", False)
        connection.exec_driver_sql("BEGIN" if readonly else "BEGIN IMMEDIATE")

    return engine


def _dispose_after_fork(engine: Engine) -> None:
    """A child must not use its parent's sockets: it forgets them, unclosed, and connects anew."""
    known = weakref.ref(engine)

    def forget() -> None:
        if (inherited := known()) is not None:
            inherited.dispose(close=False)

    os.register_at_fork(after_in_child=forget)
