"""An address that leads to another server after a failover, as those of clouds do: what was connected hears no more."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.server_pair import PLAIN


class MovedAddress:
    """`with MovedAddress(port) as address: … address.url … address.move(port)`. Ports on loopback."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._wires: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/postgres?{PLAIN}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for wire in self._wires:
            for end in wire:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def move(self, port: int) -> None:
        """From now on it leads there. Connections that there are stay open, and nothing passes them any more."""
        with self._lock:
            self._target = port
            self._silent.update(end for wire in self._wires for end in wire)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                target = self._target
            try:
                server = socket.create_connection(("127.0.0.1", target), timeout=2.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._wires.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if source in self._silent:
                    continue
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
