"""Hearing of a caller's commit: that of a Session or of a Connection of SQLAlchemy.

A Session tells of its commit. Of a Connection's, SQLAlchemy tells before it is sent; it is over once the connection
begins another transaction or is back in its pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

Notify: TypeAlias = Callable[[frozenset[str]], object]
_PENDING = "effects.after_commit"  # in the `info` of a session, or of a driver's connection
_COMMITTING = "effects.committing"


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
