"""No wait without an end: how long a thread's transactions may wait for a lock, for an answer, and in all.

A server may stop answering without closing anything: it is frozen, its storage stalls, a firewall forgot us. Nothing on
our side ends such a wait. So a thread that works within bounds has each of its transactions watched, and another
thread shuts the socket of one that is overdue; the waiting call then fails as it does when a server dies.

A statement is never cancelled: a session that waits for its synchronous standby would answer a cancel with a COMMIT.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import Engine, event

from effects.errors import StoreConflict


class Bounds(NamedTuple):
    """How long a statement may wait for a lock, and a transaction may take."""

    lock_seconds: float
    seconds: float


class Call:
    """A transaction under way. `driver` is its connection, once it has one."""

    __slots__ = ("driver", "seconds", "until")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.until = seconds, time.monotonic() + seconds
        self.driver: Any = None


class Deadlines:
    """The bounds of each thread, and the transactions that are under way within them."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._calls: set[Call] = set()

    @contextmanager
    def within(self, bounds: Bounds | None) -> Iterator[None]:
        """Bound every transaction that this thread begins meanwhile; None: unbounded."""
        before = self.bounds
        self._local.bounds = bounds
        try:
            yield
        finally:
            self._local.bounds = before

    @property
    def bounds(self) -> Bounds | None:
        """Those of this thread."""
        return getattr(self._local, "bounds", None)

    def follow(self, engine: Engine) -> None:
        """Know the connections that this engine opens from their first query on, not only once they are handed out.

        And those that it pings before it hands them out (`pool_pre_ping`): of that SQLAlchemy has no event.
        """
        event.listen(engine, "connect", self._connected, insert=True)
        dialect: Any = engine.dialect
        if not isinstance(dialect.do_ping, _Ping):
            dialect.do_ping = _Ping(dialect.do_ping)
        dialect.do_ping.before.append(self._used)

    @contextmanager
    def call(self) -> Iterator[Call | None]:
        """A transaction of this thread, from before it has a connection to its end; None where it has no bounds."""
        bounds = self.bounds
        if bounds is None:
            yield None
            return
        before: Call | None = getattr(self._local, "call", None)
        self._local.call = call = Call(bounds.seconds)
        with self._lock:
            self._calls.add(call)
        try:
            yield call
        finally:
            self._local.call = before
            with self._lock:
                self._calls.discard(call)

    def cut_overdue(self) -> int:
        """Shut the sockets of transactions that are past their time; how many that were. From any thread."""
        now = time.monotonic()
        with self._lock:  # connections are returned under this lock
            overdue = [call for call in self._calls if now > call.until and call.driver is not None]
            for call in overdue:
                call.until = float("inf")
                _shut(call.driver)
        return len(overdue)

    def _connected(self, driver: Any, record: object) -> None:
        self._used(driver)

    def _used(self, driver: Any) -> None:
        call: Call | None = getattr(self._local, "call", None)
        if call is not None:  # what it took to connect has a bound of its own: other hosts may have been asked first
            call.until, call.driver = time.monotonic() + call.seconds, driver


class _Ping:
    """A dialect's `do_ping`, before which others learn of the connection."""

    def __init__(self, ping: Callable[[Any], bool]) -> None:
        self._ping = ping
        self.before: list[Callable[[Any], None]] = []

    def __call__(self, driver: Any) -> bool:
        for tell in self.before:
            tell(driver)
        return self._ping(driver)


def _shut(driver: Any) -> None:
    """End the conversation under the driver's feet. A SQLite connection has no socket, and waits for no server."""
    fileno = getattr(driver, "fileno", None)
    if fileno is not None:
        with suppress(Exception), socket.socket(fileno=os.dup(fileno())) as end:  # it may be closed by now
            end.shutdown(socket.SHUT_RDWR)


class BoundedLock:
    """A lock of one process that may be taken again by its holder, and is not waited for without an end.

    Raises:
        StoreConflict: at `with`: it was not released in time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            raise StoreConflict(f"another thread of this process has been writing for {self._seconds:g} s")

    def __exit__(self, *error: object) -> None:
        self._lock.release()
