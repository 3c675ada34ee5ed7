"""A proxy in front of a mail server that cuts the first connection after so many bytes, and keeps what passed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class CutProxy:
    """`with CutProxy(server.port, up=100) as proxy: … proxy.url …`

    Args:
        up, down: bytes of the first connection that pass to the server, and to the client; None: all. What would be
            next ends it, once the server has had the time to see what passed.
    """

    def __init__(self, port: int, *, up: int | None = None, down: int | None = None) -> None:
        self._target, self._up, self._down = port, up, down
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.settimeout(0.02)
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self.to_server: list[bytes] = []  # what came in one piece each, of all connections
        self.to_client: list[bytes] = []

    @property
    def url(self) -> str:
        return f"smtp://localhost:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for sock in (client, server):
                    sock.settimeout(None)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._sockets.append(sock)
                first, self.connections = self.connections == 0, self.connections + 1
                self._start(self._pump, client, server, self._up if first else None, self.to_server)
                self._start(self._pump, server, client, self._down if first else None, self.to_client)

    def _pump(self, source: socket.socket, sink: socket.socket, left: int | None, passed: list[bytes]) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                piece = data if left is None else data[:left]
                passed.append(piece)
                sink.sendall(piece)
                if left is not None:
                    left -= len(piece)
                    if len(piece) < len(data):
                        break
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        if left is not None:
            with suppress(OSError):
                source.shutdown(socket.SHUT_RDWR)
