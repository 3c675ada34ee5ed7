"""Join the transaction of a caller, who alone ends it; and hear of its commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from effects.errors import EnqueueError, SchemaMismatch, StoreUnavailable
from effects.kit.text.wording import described, with_article
from effects.store.db.faults import Fault, fault_of
from effects.store.notifier import Notifier
from effects.store.sessions.asynchronous import refuse_async, refuse_outside_greenlet
from effects.store.sessions.borrowed import (
    DjangoConnection,
    Psycopg2Connection,
    begins_no_transaction,
    borrowed,
    driver_of,
    is_of_django,
)
from effects.store.sessions.databases import CallersDatabase, describe_connection

if TYPE_CHECKING:
    import sqlite3

    import psycopg

    from effects.store.sessions.asynchronous import Alone

    AnySession: TypeAlias = (
        Alone
        | Session
        | scoped_session[Session]
        | Connection
        | sqlite3.Connection
        | psycopg.Connection[Any]
        | Psycopg2Connection
        | DjangoConnection
    )
else:
    AnySession = Any  # pyright reads no alias that is a text in several pieces

Notify: TypeAlias = Callable[[frozenset[str]], object]
_PENDING = "effects.after_commit"  # in the `info` of a session, or of a driver's connection
_COMMITTING = "effects.committing"


def session_of(session: Any) -> Any:
    """The session behind a registry of sessions; anything else as it is."""
    return session() if isinstance(session, scoped_session) else session


def engines_of(session: Any) -> list[Engine]:
    """The engines that a session may speak to, its default first; none for a driver's connection."""
    return [bind.engine for bind in _binds(session)]


def _binds(session: Any) -> list[Engine | Connection]:
    session = session_of(session)
    if isinstance(session, Connection):
        return [session]
    if not isinstance(session, Session):
        return []
    try:
        default = [session.get_bind()]
    except UnboundExecutionError:
        default = []
    # SQLAlchemy 2.0 has no public name for them.
    by_class: dict[Any, Engine | Connection] = getattr(session, "binds", getattr(session, "_Session__binds", {}))
    return default + [bind for bind in by_class.values() if bind not in default]


def joined(session: AnySession, database: CallersDatabase) -> AbstractContextManager[Connection]:
    """Give the connection of the caller's transaction, which is not ended here.

    Args:
        session: as the caller gave it.
        database: of the Effects; of a session's binds, the one that leads to it is used.

    Raises:
        EnqueueError: `session` has an unusable type, speaks to another database, or commits each statement by itself.
    """
    with suppress(StoreUnavailable):  # of the caller's own connections one is open, and knows the tables by their names
        database.store.locate()
    session = session_of(session)
    if not isinstance(session, Session | Connection) and (driver := driver_of(session)) is not None:
        return _borrowed(driver, database)
    connection = _connection(session, database)
    _check_database(connection, database)
    refuse_autocommit(connection)
    return nullcontext(connection)


@contextmanager
def _borrowed(driver: tuple[str, Any], database: CallersDatabase) -> Iterator[Connection]:
    with borrowed(*driver) as connection:
        _check_database(connection, database)
        yield connection


def _check_database(connection: Connection, database: CallersDatabase) -> None:
    if not database.is_reached_by(connection):
        raise EnqueueError(
            f"session speaks to {describe_connection(connection)}, and the Effects of this call to {database}: pass "
            "effects= with the one that was made for the session's database, as Effects(engine=…)"
        )


def _connection(session: Any, database: CallersDatabase) -> Connection:
    binds = _binds(session)
    for bind in binds:
        refuse_outside_greenlet(bind.engine, session)
    if isinstance(session, Session):
        return _connection_of_orm(session, binds, database)
    if isinstance(session, Connection):
        return session
    refuse_async(session)
    raise EnqueueError(
        f"session is {_described(session)}; pass a SQLAlchemy Session or Connection, a "
        "connection of sqlite3, psycopg or psycopg2, or Django's"
    )


def _described(session: Any) -> str:
    """With its module: many libraries have a Session."""
    kind = type(session)
    return described(session) if isinstance(session, type) else with_article(f"{kind.__module__}.{kind.__name__}")


def _connection_of_orm(session: Session, binds: Sequence[Engine | Connection], database: CallersDatabase) -> Connection:
    bind = next((bind for bind in binds if database.has_engine(bind.engine)), None)
    try:
        return session.connection() if bind is None else session.connection(bind_arguments={"bind": bind})
    except UnboundExecutionError:
        raise EnqueueError(
            f"session is bound to no engine of {database}: pass session.connection(bind_arguments=…), or bind it"
        ) from None


def refuse_autocommit(connection: Connection) -> None:
    """A job and its intent are several rows: a crash between two commits would leave one without the other."""
    if not connection.in_transaction():
        connection.begin()  # as the first statement would
    if commits_alone(connection):
        raise EnqueueError(
            "session is in AUTOCOMMIT: each statement would commit by itself, and a crash between two of them would "
            "lose the job; pass a Session or Connection that is in a transaction"
        )


def hint_after_commit(notifier: Notifier, session: AnySession, queues: Iterable[str]) -> bool:
    """Wake workers once the caller has committed, if they need it.

    Returns:
        Whether they will be; False where the session cannot tell of its commit, so that they find the jobs by polling.
    """
    names = frozenset(queues)
    committing = session_of(session)
    if isinstance(committing, Session | Connection):
        if notifier.enabled and names:
            after_commit(committing, notifier.send, names)
    elif is_of_django(committing) and committing.in_atomic_block:
        committing.on_commit(lambda: notifier.send(names), robust=True)
    else:
        return False
    return True


def commits_alone(connection: Connection) -> bool:
    """Whether each statement of a connection commits by itself."""
    pooled = connection.connection
    if connection.dialect.name == "sqlite":
        driver = pooled.driver_connection
        return begins_no_transaction(driver) and not getattr(driver, "in_transaction", True)
    return bool(getattr(pooled.dbapi_connection, "autocommit", False))


def refuse_missing_tables(error: Exception, database: CallersDatabase) -> None:
    """Name the command that creates or migrates the tables, and the database that lacks them.

    Raises:
        SchemaMismatch: the error says that a table of effects, or a column, is missing.
    """
    if fault_of(error) is Fault.SCHEMA:
        command = database.store.init_command()
        missing = "the tables of effects are missing, or of an older version"
        raise SchemaMismatch(f"{missing}, in {database}: run `{command}`") from None


def after_commit(committing: Session | Connection, notify: Notify, queues: frozenset[str]) -> None:
    """Call `notify` with these queues once the outermost transaction has committed; a rollback forgets it.

    After a Connection's commit: when it is closed, or begins its next transaction. However many calls of a transaction
    say the same, it is kept once.
    """
    if isinstance(committing, Connection):
        _watch(committing)
    committing.info.setdefault(_PENDING, {})[notify, queues] = None


def _watch(connection: Connection) -> None:
    for target, name, listener in (
        (connection.engine, "commit", _connection_commits),
        (connection.engine, "rollback", _connection_rolled_back),
        (connection.engine, "begin", _connection_begins),
        (connection.engine.pool, "checkin", _checked_in),
    ):
        if not event.contains(target, name, listener):
            event.listen(target, name, listener)


@event.listens_for(Session, "after_commit")
def _session_committed(session: Session) -> None:
    if _PENDING in session.info and not session.in_nested_transaction():
        for notify, queues in session.info.pop(_PENDING):
            notify(queues)


@event.listens_for(Session, "after_rollback")
def _session_rolled_back(session: Session) -> None:
    if not session.in_nested_transaction():  # after a savepoint's rollback the rest may still commit
        session.info.pop(_PENDING, None)


def _connection_commits(connection: Connection) -> None:
    if (pending := connection.info.pop(_PENDING, None)) is not None:
        connection.info[_COMMITTING] = pending


def _connection_rolled_back(connection: Connection) -> None:
    if not (connection.closed or connection.invalidated):
        connection.info.pop(_PENDING, None)


def _connection_begins(connection: Connection) -> None:
    if not connection.invalidated:
        _committed(connection.info)


def _checked_in(driver: object, record: Any) -> None:
    record.info.pop(_PENDING, None)  # closed without a commit
    _committed(record.info)


def _committed(info: dict[Any, Any]) -> None:
    for notify, queues in info.pop(_COMMITTING, ()):
        notify(queues)
