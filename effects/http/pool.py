"""Connections to one origin: the idle ones are kept for seconds, and what is in doubt is never used again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import httpcore

from effects.http.connection import Connection
from effects.http.messages import HttpRequest, HttpResponse
from effects.http.stream import DeadlineStream, Unasked

Kept = TypeVar("Kept", bound="Keepable")


class Keepable(Protocol):
    """A connection between two exchanges."""

    def is_quiet(self) -> bool:
        """Whether the peer has neither sent anything nor closed since the last exchange."""

    def close(self) -> None:
        """Give it up."""


class IdleConnections(Generic[Kept]):
    """The idle connections to one origin, the newest first out. Thread-safe.

    Args:
        most: so many are kept, the newest.
        seconds: for so long.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._entries: list[tuple[float, Kept]] = []  # until when, oldest first
        self._closed = False
        self._lock = threading.Lock()

    def take(self) -> Kept | None:
        """The newest that may be used; those that may not are closed."""
        while True:
            with self._lock:
                if not self._entries:
                    return None
                until, connection = self._entries.pop()
            if time.monotonic() < until and connection.is_quiet():
                return connection
            connection.close()

    def put(self, connection: Kept, *, reusable: bool) -> None:
        """An exchange on this connection is over: keep it, or close it; close what is kept for too long."""
        now = time.monotonic()
        with self._lock:
            keep = reusable and not self._closed
            leaving = self._leave([*self._entries, (now + self._seconds if keep else now, connection)], now)
        for idle in leaving:
            idle.close()

    def close_stale(self) -> None:
        """Close what is kept for too long."""
        with self._lock:
            leaving = self._leave(self._entries, time.monotonic())
        for idle in leaving:
            idle.close()

    def _leave(self, entries: list[tuple[float, Kept]], now: float) -> list[Kept]:
        """Keep the newest that may be kept; the others."""
        self._entries = [entry for entry in entries[-self._most :] if entry[0] > now]
        return [entry[1] for entry in entries if entry not in self._entries]

    def close(self) -> None:
        """Close them, and those in use when they are put back."""
        with self._lock:
            self._closed = True
            leaving, self._entries = self._entries, []
        for _, connection in leaving:
            connection.close()


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
        self._places = None if connections_max is None else threading.BoundedSemaphore(connections_max)
        self._idle: IdleConnections[Connection] = IdleConnections(idle_max, idle_seconds)

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
                self._idle.put(connection, reusable=reusable)

    def close(self) -> None:
        """Close idle connections, and those in use when they are given back."""
        self._idle.close()

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
            kept = self._idle.take()
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
