"""A peer that speaks no protocol: a test's own function is given each accepted socket."""

from __future__ import annotations

import array
import fcntl
import socket
import termios
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.support.waiting import wait_until

_POLL_SECONDS = 0.02


class RawPeer:
    """`with RawPeer(lambda connection: connection.sendall(b"…")) as peer: … peer.port, peer.accepted`.

    The function runs in a thread for each connection, which is closed after it. It may go on until
    `peer.over` is set; what it raises when the other side leaves is no news.
    """

    def __init__(self, behave: Callable[[socket.socket], object], *, host: str = "127.0.0.1") -> None:
        self.accepted = 0
        self.over = threading.Event()
        self._behave = behave
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64
        )
        self._listener.settimeout(_POLL_SECONDS)
        self._threads: list[threading.Thread] = []
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> RawPeer:
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(timeout=10)
        self._listener.close()

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.over.is_set():
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                self.accepted += 1
                self._start(lambda connection=connection: self._serve(connection))  # type: ignore[misc]

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        with connection, suppress(OSError):
            self._behave(connection)


def read_request(connection: socket.socket) -> bytes:
    """Head and body of one request with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or _ended()
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536) or _ended()
    return head + b"\r\n\r\n" + body


def await_arrival(connection: socket.socket, *, unread_bytes: int = 0) -> None:
    """Returns when the other side's kernel has what was sent; a `send` returns earlier.

    Args:
        unread_bytes: so many may still be on their way.
    """
    waiting = array.array("i", [0])

    def has_arrived() -> bool:
        fcntl.ioctl(connection, termios.TIOCOUTQ, waiting)
        return waiting[0] <= unread_bytes

    wait_until(has_arrived)


def _ended() -> bytes:
    raise ConnectionError("the request ended early")
