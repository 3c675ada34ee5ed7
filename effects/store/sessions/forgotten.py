"""A call without `session=` in the middle of the caller's own transaction: forgotten, in all likelihood.

A transaction counts if it is on the engine of the Effects (on SQLite on any engine, to its file), is still open, has
written (or a Session holds objects that it will write), and did so in the thread or task that makes the call, in the
same context. Where a context was only copied, as to a thread of a pool or its own task, the call is another's.
"""

from __future__ import annotations

import re
import warnings
import weakref
from contextvars import ContextVar
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from effects.errors import SessionForgotten
from effects.store.sessions.asynchronous import Owner, call_site, current_owner
from effects.store.sessions.databases import CallersDatabase
from effects.store.sessions.joining import commits_alone

_MISSING = "session= is missing, and this thread has an open transaction that writes to the same database"
_CURE = "pass session=, or session=effects.ALONE if its effect must happen whatever becomes of that transaction"
_ENDED = "effects.transactions_ended"  # in the `info` of a driver's connection: how many it has seen
_OF_OURS = "effects_store"
WRITES = re.compile(
    r"\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|COPY|CREATE|ALTER|DROP|TRUNCATE|BEGIN\s+(?:IMMEDIATE|EXCLUSIVE)"
    r"|WITH\b.*\b(?:INSERT|UPDATE|DELETE|MERGE))\b",
    re.IGNORECASE | re.DOTALL,
)
_writings: ContextVar[tuple[_Writing, ...]] = ContextVar("effects_writings", default=())
_sessions: ContextVar[tuple[tuple[weakref.ref[Session], Owner], ...]] = ContextVar("effects_sessions", default=())


class SessionForgottenWarning(UserWarning):
    """session= is missing inside a transaction of the caller's own that has written; see EFFECTS_SESSIONS."""


class _Writing(NamedTuple):
    """A transaction that has written, or has locked SQLite's file to write."""

    connection: weakref.ref[Connection]
    ended: int  # transactions of the driver's connection before this one
    owner: Owner


def watch(engine: Engine) -> None:
    """Notice which transactions of this engine write; at each statement, without one of our own.

    On SQLite those of every engine: whichever has written has locked the file.
    """
    target = Engine if engine.dialect.name == "sqlite" else engine
    for name, listener in (("after_cursor_execute", _executed), ("commit", _ended), ("rollback", _ended)):
        if not event.contains(target, name, listener):
            event.listen(target, name, listener)


def check_not_forgotten(database: CallersDatabase, sessions: str) -> None:
    """Warn, or refuse, if the caller has a transaction of this database's engine under way that has written.

    Args:
        sessions: the setting: `warn`, `required` or `off`.

    Raises:
        SessionForgotten: so it is, and the setting is `required`, or it is SQLite, whose file the caller has locked.
    """
    writings, with_changes = _writings.get(), _sessions.get()
    if not writings and not with_changes:
        return
    owner = current_owner()
    has_written = any(_is_open(writing, owner, database) for writing in writings)
    if has_written and not database.store.is_postgresql:
        raise SessionForgotten("the database is locked by this thread's own transaction: pass session=")
    if sessions == "off" or not (
        has_written or any(_has_changes(session(), database) for session, theirs in with_changes if theirs == owner)
    ):
        return
    if sessions == "required":
        raise SessionForgotten(f"{_MISSING}. This call wrote nothing: {_CURE}")
    site = call_site()
    warnings.warn_explicit(
        f"{_MISSING}: the effect happens even if that is rolled back; {_CURE}",
        SessionForgottenWarning, site.file, site.line, module=site.module, registry=site.registry,
    )  # fmt: skip


def _executed(
    connection: Connection, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool
) -> None:
    if _OF_OURS not in context.execution_options and _writes(context, statement):
        note_writing(connection)


def _writes(context: Any, statement: str) -> bool:
    if context.isinsert or context.isupdate or context.isdelete:
        return True
    is_expression = context.compiled is not None and not context.is_text and not context.isddl
    return not is_expression and WRITES.match(statement) is not None


def note_writing(connection: Connection) -> None:
    """The transaction of a caller's connection has written."""
    writings = _writings.get()
    for writing in writings:
        if writing.connection() is connection and writing.ended == connection.info.get(_ENDED, 0):
            return
    writing = _Writing(weakref.ref(connection), connection.info.get(_ENDED, 0), current_owner())
    _writings.set((*(earlier for earlier in writings if _is_under_way(earlier)), writing))


def _ended(connection: Connection) -> None:
    if connection.closed or connection.invalidated:
        return  # no transaction of it is under way, and its info would need a new connection
    connection.info[_ENDED] = connection.info.get(_ENDED, 0) + 1


def _is_under_way(writing: _Writing) -> bool:
    connection = writing.connection()
    if connection is None or connection.closed or connection.invalidated or not connection.in_transaction():
        return False
    return bool(connection.info.get(_ENDED, 0) == writing.ended)


def _is_open(writing: _Writing, owner: Owner, database: CallersDatabase) -> bool:
    connection = writing.connection()
    return (
        connection is not None
        and writing.owner == owner
        and _is_under_way(writing)
        and (database.has_engine(connection.engine) or database.has_file(connection.engine.url))
        and not commits_alone(connection)
        and _has_begun(connection)
    )


def _has_begun(connection: Connection) -> bool:
    """On SQLite, Python begins no transaction before a CREATE TABLE, whatever SQLAlchemy's books say."""
    driver: Any = connection.connection.driver_connection
    return connection.dialect.name != "sqlite" or bool(driver.in_transaction)


def _has_changes(session: Session | None, database: CallersDatabase) -> bool:
    """Whether a session holds objects that it will write to this database."""
    if session is None or not session.in_transaction() or not (session.new or session.dirty or session.deleted):
        return False
    try:
        return database.has_engine(session.get_bind().engine)
    except UnboundExecutionError:
        return False


@event.listens_for(Session, "after_transaction_create")
def _begun(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        under_way = (pair for pair in _sessions.get() if (begun := pair[0]()) is not None and begun.in_transaction())
        others = [pair for pair in under_way if pair[0]() is not session]
        _sessions.set((*others, (weakref.ref(session), current_owner())))
