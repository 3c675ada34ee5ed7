"""Connections between two requests: kept for seconds, the newest used first, and none that is in doubt."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from effects.kit.http.messages import Unasked


class Keepable(Protocol):
    """A connection between two exchanges."""

    def is_quiet(self) -> bool:
        """Whether the peer has neither sent anything nor closed since the last exchange."""

    def close(self) -> None:
        """Give it up."""


Kept = TypeVar("Kept", bound=Keepable)


class IdleTotal:
    """A bound of the idle connections to all origins together: those that are idle for longest are closed. Thread-safe.

    Args:
        most: so many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._owners: OrderedDict[Keepable, IdleConnections[Keepable]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, connection: Keepable, owner: IdleConnections[Keepable]) -> None:
        """It is idle from now on."""
        with self._lock:
            self._owners[connection] = owner
            oldest = self._owners.popitem(last=False) if len(self._owners) > self._most else None
        if oldest is not None:
            oldest[1].discard(oldest[0])

    def remove(self, connection: Keepable) -> None:
        """It is idle no longer."""
        with self._lock:
            self._owners.pop(connection, None)


class IdleConnections(Generic[Kept]):
    """The idle connections to one origin, the newest first out. Thread-safe.

    Args:
        most: so many are kept, the newest.
        seconds: for so long.
        total: which they share with those to other origins.
    """

    def __init__(self, most: int, seconds: float, total: IdleTotal | None = None) -> None:
        self._most, self._seconds, self._total = most, seconds, total
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
            if self._total is not None:
                self._total.remove(connection)
            if time.monotonic() < until and connection.is_quiet():
                return connection
            connection.close()

    def put(self, connection: Kept, *, reusable: bool) -> None:
        """An exchange on this connection is over: keep it, or close it; close what is kept for too long."""
        now = time.monotonic()
        with self._lock:
            keep = reusable and not self._closed
            if keep:
                self._entries.append((now + self._seconds, connection))
            leaving = self._take_out(now)
        self._close(leaving if keep else [*leaving, connection])
        if self._total is not None and keep and connection not in leaving:
            self._total.add(connection, self)  # type: ignore[arg-type]

    def discard(self, connection: Kept) -> None:
        """Close this one, where it is still idle."""
        with self._lock:
            leaving = [entry[1] for entry in self._entries if entry[1] is connection]
            self._entries = [entry for entry in self._entries if entry[1] is not connection]
        self._close(leaving)

    def close_stale(self) -> None:
        """Close what is kept for too long."""
        with self._lock:
            leaving = self._take_out(time.monotonic())
        self._close(leaving)

    def close(self) -> None:
        """Close them, and those in use when they are put back."""
        with self._lock:
            self._closed = True
            leaving, self._entries = [entry[1] for entry in self._entries], []
        self._close(leaving)

    def _take_out(self, now: float) -> list[Kept]:
        """The oldest, which are too many or kept for too long."""
        count = max(0, len(self._entries) - self._most)
        while count < len(self._entries) and self._entries[count][0] <= now:
            count += 1
        leaving = [connection for _, connection in self._entries[:count]]
        del self._entries[:count]
        return leaving

    def _close(self, leaving: list[Kept]) -> None:
        for connection in leaving:
            if self._total is not None:
                self._total.remove(connection)
            connection.close()


class Trial:
    """A request on a connection: `with` closes it after any error.

    Args:
        kept: it was idle. What had come on it unasked is then no error: another connection is to be tried.
    """

    def __init__(self, connection: Keepable, *, kept: bool) -> None:
        self._connection, self._kept = connection, kept

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        self._connection.close()
        return self._kept and isinstance(error, Unasked)
