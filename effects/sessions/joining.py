"""Join the transaction of a caller, who alone ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from effects.errors import EnqueueError, SchemaMismatch, StoreRejected
from effects.store.db.faults import Fault, fault_of

AnySession: TypeAlias = Session | Connection


def connection_of(session: AnySession, engine: Engine) -> Connection:
    """Return the connection of the caller's transaction, which begins here at the latest.

    Args:
        session: as the caller gave it.
        engine: of the Effects; the session must speak to the same kind of database.

    Raises:
        EnqueueError: `session` has an unusable type, or commits each statement by itself.
    """
    if isinstance(session, Session):
        connection = session.connection()
    elif isinstance(session, Connection):
        connection = session
    else:
        raise EnqueueError(
            f"session is a {type(session).__name__}; pass a SQLAlchemy Session or Connection (in async code: "
            "await session.run_sync(lambda s: enqueue(…, session=s)))"
        )
    if connection.dialect.name != engine.dialect.name:
        raise EnqueueError(
            f"session speaks to {connection.dialect.name} and effects is set up for {engine.dialect.name}"
        )
    refuse_autocommit(connection)
    return connection


def refuse_autocommit(connection: Connection) -> None:
    """A job and its intent are several rows: a crash between two commits would leave one without the other."""
    if not connection.in_transaction():
        connection.begin()  # as the first statement would
    driver, adapter = connection.connection.driver_connection, connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":  # without an isolation level Python begins no transaction; an app may
        alone = getattr(driver, "isolation_level", "") is None and not getattr(driver, "in_transaction", True)
    else:
        alone = bool(getattr(adapter, "autocommit", False))
    if alone:
        raise EnqueueError(
            "session is in AUTOCOMMIT: each statement would commit by itself, and a crash between two of them lose the "
            "job; pass a Session or Connection that is in a transaction"
        )


@contextmanager
def schema_errors() -> Iterator[None]:
    """Name the command that creates missing tables.

    Raises:
        SchemaMismatch: the database has no tables of effects.
    """
    try:
        yield
    except (DBAPIError, StoreRejected) as error:
        if fault_of(error) is Fault.SCHEMA:
            raise SchemaMismatch("the database has no tables of effects: run `effects init`") from error
        raise
