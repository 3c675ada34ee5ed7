"""Connections to one origin: the idle ones are kept for seconds, and what is in doubt is never used again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpcore

from effects.http.connection import Connection, HttpRequest, HttpResponse
from effects.http.stream import DeadlineStream, Unasked


class Pool:
    """Requests to one origin. Thread-safe; no redirects, no proxy, no retries, HTTP/1.1.

    Args:
        connect: opens a connection, within the deadline of this thread's exchange.
        idle_max: so many idle connections are kept, the newest.
        idle_seconds: for so long. Many servers close after 5: a request must not meet a connection that is going.
        connections_max: so many requests at a time; default no limit.
    """

    def __init__(
        self,
        connect: Callable[[], DeadlineStream],
        *,
        idle_max: int,
        idle_seconds: float,
        connections_max: int | None = None,
    ) -> None:
        self._connect = connect
        self._idle_max = idle_max
        self._idle_seconds = idle_seconds
        self._places = None if connections_max is None else threading.BoundedSemaphore(connections_max)
        self._idle: list[tuple[float, Connection]] = []  # until when, oldest first
        self._closed = False
        self._lock = threading.Lock()

    @contextmanager
    def ask(self, request: HttpRequest, *, seconds: float) -> Iterator[HttpResponse]:
        """Send a request; its answer, whose body is read within the block or not at all.

        Args:
            seconds: how long to wait for one of `connections_max`. Everything else has the exchange's deadline.

        Raises:
            httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError: there is no answer. `Unasked` of
                these, where a fresh connection brought something before the request: nothing was written.
        """
        with self._place(seconds):
            connection, answer = self._begin(request)
            reusable = False
            try:
                yield answer
                reusable = connection.finish()
            finally:
                self._give_back(connection, reusable=reusable)

    def close(self) -> None:
        """Close idle connections, and those in use when they are given back."""
        with self._lock:
            self._closed = True
            leaving, self._idle = self._idle, []
        for _, connection in leaving:
            connection.close()

    @contextmanager
    def _place(self, seconds: float) -> Iterator[None]:
        if self._places is not None and not self._places.acquire(timeout=max(0.0, seconds)):
            raise httpcore.PoolTimeout("every connection is in use")
        try:
            yield
        finally:
            if self._places is not None:
                self._places.release()

    def _begin(self, request: HttpRequest) -> tuple[Connection, HttpResponse]:
        while True:
            kept = self._take()
            connection = kept or Connection(self._connect())
            try:
                return connection, connection.ask(request)
            except Unasked:
                connection.close()
                if kept is None:
                    raise
            except BaseException:
                connection.close()
                raise

    def _take(self) -> Connection | None:
        """The newest idle connection that may be used; those that may not are closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                until, connection = self._idle.pop()
            if time.monotonic() < until and connection.is_quiet():
                return connection
            connection.close()

    def _give_back(self, connection: Connection, *, reusable: bool) -> None:
        now = time.monotonic()
        with self._lock:
            kept = [*self._idle, (now + self._idle_seconds if reusable and not self._closed else now, connection)]
            self._idle = [entry for entry in kept[-self._idle_max :] if entry[0] > now]
            leaving = [entry for entry in kept if entry not in self._idle]
        for _, idle in leaving:
            idle.close()
