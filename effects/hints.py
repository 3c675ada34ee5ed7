"""Telling idle workers that something was committed: `NOTIFY` as a hint, never as the contract.

NOTIFY inside an enqueuing transaction takes a database-wide lock at commit. So the hint is sent after the
commit, from a thread of its own, and many commits within a few milliseconds share one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from effects.errors import StoreUnavailable
from effects.store.store import Store

INTERVAL_SECONDS = 0.01
PAYLOAD_BYTES_MAX = 7_900  # PostgreSQL takes 7,999
_PENDING = "effects.hints"
_log = logging.getLogger("effects.hints")


def channel(schema: str | None) -> str:
    """The NOTIFY channel of one set of tables."""
    return f"effects_{schema}" if schema else "effects"


def _notify(channel: str, queues: set[str]) -> str:
    """The command and not `pg_notify`: it is not planned. An empty list of queues means all."""
    payload = ",".join(sorted(queues)).replace("'", "''")
    return f"NOTIFY {channel}, '{payload if len(payload.encode()) < PAYLOAD_BYTES_MAX else ''}'"


class Hints:
    """Sends coalesced hints on PostgreSQL; on SQLite there is nothing to send: workers see the file change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channel = channel(store.schema)
        self._enabled = store.is_postgresql
        self._queues: set[str] = set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False

    def send(self, queues: Iterable[str]) -> None:
        """Hint soon, from another thread. Never blocks, never fails."""
        if not self._enabled or self._closed:
            return
        self._queues.update(queues)
        if self._thread is None or self._pid != os.getpid():
            self._start()
        self._wake.set()

    def after_commit(self, session: Session, queues: Iterable[str]) -> None:
        """Hint once the session's outermost transaction has committed; a rollback forgets it."""
        if self._enabled:
            pending: list[tuple[Hints, set[str]]] = session.info.setdefault(_PENDING, [])
            pending.append((self, set(queues)))

    def close(self) -> None:
        """Send what is waiting and end the thread."""
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(timeout=5)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="effects-hints", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            queues, self._queues = self._queues, set()
            if queues:
                self._notify(queues)
            pause.wait(INTERVAL_SECONDS)

    def _notify(self, queues: set[str]) -> None:
        try:
            with self._store.single() as connection:
                connection.execution_options(no_parameters=True).exec_driver_sql(_notify(self._channel, queues))
        except (SQLAlchemyError, StoreUnavailable) as error:
            _log.debug("hint not sent: %s", type(error).__name__)  # polling finds the jobs


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    if _PENDING in session.info and not session.in_nested_transaction():
        for hints, queues in session.info.pop(_PENDING):
            hints.send(queues)


@event.listens_for(Session, "after_rollback")
def _rolled_back(session: Session) -> None:
    if not session.in_nested_transaction():  # after a savepoint's the rest may still commit: a hint too many is none
        session.info.pop(_PENDING, None)
