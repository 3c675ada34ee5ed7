"""Requests to one origin, over connections that are kept for seconds; what is in doubt is never used again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpcore

from effects.http.connection import Connection
from effects.http.idle import IdleConnections, Trial
from effects.http.messages import HttpRequest, HttpResponse
from effects.http.stream import DeadlineStream


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
            with Trial(connection, kept=kept is not None):
                return connection, connection.ask(request)
