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


class CodeAbandoned(BaseException):
    """The transaction in which this code of an app ran was overdue; another thread has gone on without it."""


class CodeTime:
    """The time that code of an app may take, from now on."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until


class Call:
    """A transaction under way.

    Attributes:
        driver: its connection, once it has one.
        code: what runs in it, if that is code of an app's, and `cut_code` ends its transaction.
        cut_at: when it was overdue (monotonic).
    """

    __slots__ = ("abandoned", "code", "cut_at", "cut_code", "driver", "seconds", "thread", "until")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.until = seconds, time.monotonic() + seconds
        self.thread = threading.current_thread()
        self.driver: Any = None
        self.code: Any = None
        self.cut_code: Callable[[], bool] | None = None
        self.cut_at: float | None = None
        self.abandoned = False


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

    @contextmanager
    def code(self, code: object, code_time: CodeTime, cut: Callable[[], bool]) -> Iterator[None]:
        """Meanwhile code of an app runs in this thread's transaction, at most so long.

        Args:
            code: what it is, for `cut_overdue` and `abandon`.
            cut: ends the transaction, from another thread; False if it could not yet.

        Raises:
            CodeAbandoned: it took so long that another thread has gone on without it.
        """
        call: Call | None = getattr(self._local, "call", None)
        if call is None:
            yield
            return
        whole = call.until
        call.code, call.cut_code, call.until = code, cut, min(whole, code_time.until)
        try:
            yield
        finally:
            with self._lock:
                call.code = call.cut_code = None
                call.until = whole
            if call.abandoned:
                raise CodeAbandoned

    @property
    def is_cut(self) -> bool:
        """Whether this thread's transaction was."""
        call: Call | None = getattr(self._local, "call", None)
        return call is not None and call.cut_at is not None

    def cut_overdue(self) -> list[Call]:
        """End the transactions that are past their time, by shutting their sockets. From any thread."""
        now = time.monotonic()
        cut = []
        with self._lock:  # connections are returned under this lock
            for call in [call for call in self._calls if now > call.until and call.driver is not None]:
                if call.cut_code is None:
                    shut(call.driver)
                elif not call.cut_code():
                    continue  # at the next look
                call.until, call.cut_at = float("inf"), now
                cut.append(call)
        return cut

    def abandon(self, seconds: float) -> list[Call]:
        """The calls whose code runs so long after it was cut. Where it ends after all, `code` raises CodeAbandoned."""
        before = time.monotonic() - seconds
        with self._lock:
            stuck = [
                call
                for call in self._calls
                if call.code is not None and not call.abandoned and call.cut_at is not None and call.cut_at < before
            ]
            for call in stuck:
                call.abandoned = True
        return stuck

    def _connected(self, driver: Any, record: object) -> None:
        self._used(driver)

    def _used(self, driver: Any) -> None:
        call: Call | None = getattr(self._local, "call", None)
        if (
            call is not None and call.code is None
        ):  # what it took to connect has its own bound: other hosts may have been asked first
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


def shut(driver: Any) -> None:
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
        self._released = threading.Condition(threading.Lock())
        self._holder: int | None = None
        self._times = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._released:
            if self._holder != thread and not self._released.wait_for(lambda: self._holder is None, self._seconds):
                raise StoreConflict(f"another thread of this process has been writing for {self._seconds:g} s")
            self._holder, self._times = thread, self._times + 1

    def __exit__(self, *error: object) -> None:
        with self._released:
            if self._holder == threading.get_ident():
                self._times -= 1
                if self._times == 0:
                    self._free()

    def free(self) -> None:
        """Let others have it although its holder does not return."""
        with self._released:
            self._free()

    def _free(self) -> None:
        self._holder, self._times = None, 0
        self._released.notify()
