"""A proxy in front of a mail server that loses the response to the final dot: accepted, but the client cannot know."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_END = b"\r\n.\r\n"


class SmtpProxy:
    """`with SmtpProxy(server.port, lose=…) as proxy: … proxy.url …`; `lost` counts the answers that were withheld.

    Args:
        lose: asked after each dot; True loses the answer and ends the connection.
        wait: called before an answer to a dot is passed on, to make room for a kill.
    """

    def __init__(self, port: int, *, lose: Callable[[], bool], wait: Callable[[], None] = lambda: None) -> None:
        self._target = port
        self._lose, self._wait = lose, wait
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.settimeout(0.05)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._wires: list[_Wire] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.port = int(self._listener.getsockname()[1])
        self.lost = 0

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()
        for wire in self._wires:
            wire.close()
            wire.join()

    def _accept(self) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                client.settimeout(None)
                wire = _Wire(client, socket.create_connection(("127.0.0.1", self._target)), self.verdict)
                self._wires.append(wire)
                wire.start()

    def verdict(self) -> bool:
        """After a dot: whether its answer is lost."""
        self._wait()
        with self._lock:
            lost = self._lose()
            self.lost += lost
            return lost


class _Wire:
    """One client's connection, and ours to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket, lost: Callable[[], bool]) -> None:
        self._client, self._server, self._lost = client, server, lost
        self._body: bytes | None = None  # the tail of the message under way
        self._ended = False  # its dot has come
        self._threads = [
            threading.Thread(target=self._run, args=(pump,), daemon=True) for pump in (self._up, self._down)
        ]
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(10)
        for sock in (self._client, self._server):
            sock.close()

    def close(self) -> None:
        for sock in (self._client, self._server):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _run(self, pump: Callable[[], None]) -> None:
        with suppress(OSError):
            pump()
        self.close()

    def _up(self) -> None:
        while data := self._client.recv(65536):
            if self._body is not None:
                tail = self._body + data
                if _END in tail:
                    self._body, self._ended = None, True
                else:
                    self._body = tail[-len(_END) :]
            self._server.sendall(data)

    def _down(self) -> None:
        while data := self._server.recv(65536):
            if self._ended:
                self._ended = False
                if self._lost():
                    return
            if b"354" in data:
                self._body = b"\r\n"
            self._client.sendall(data)
