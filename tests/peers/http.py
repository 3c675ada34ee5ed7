"""An HTTP receiver on a real socket: records every request as it came, answers as it is told."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from tests.peers.serving import Serving
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Request:
    """One request, byte for byte. Header names are lower case."""

    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True)
class Answer:
    """What to send back, once `wait` is set. `reset` sends nothing and cuts the connection with RST."""

    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = field(default_factory=dict)
    reset: bool = False
    wait: threading.Event | None = None


Script: TypeAlias = Callable[[Request], Answer | int] | Iterable[Answer | int]


class Receiver(Serving):
    """`with Receiver([503, 503, 200]) as receiver: … receiver.url … receiver.requests`.

    Args:
        script: answers in order, the last one from then on, or a callable that is given each request. A number
            is the answer of that status. Default 200.
        ssl_context: speak TLS with it.
        record_to: also write each request to this file, before it is answered, so that the record outlives
            whoever is killed; `read_record` reads it.
    """

    def __init__(
        self, script: Script = (200,), *, ssl_context: ssl.SSLContext | None = None, record_to: Path | None = None
    ) -> None:
        self.requests: list[Request] = []
        self.connections: list[socket.socket] = []  # all there ever were
        self.ssl_context = ssl_context
        self._script = script if callable(script) else list(script)
        self._record_to = record_to
        self._lock = threading.Lock()
        super().__init__(_Server(self))
        self.url = f"{'https' if ssl_context else 'http'}://127.0.0.1:{self.port}/webhooks"

    def bodies_by_id(self) -> dict[str, list[bytes]]:
        """webhook-id → the bodies received under it, in order."""
        bodies: dict[str, list[bytes]] = {}
        for request in list(self.requests):
            bodies.setdefault(request.message_id, []).append(request.body)
        return bodies

    def wait_for(self, count: int, *, seconds: float = 20.0) -> None:
        """Return once so many requests have come."""
        wait_until(lambda: len(self.requests) >= count, seconds=seconds)

    def take(self, request: Request) -> Answer:
        """Record a request and say what it is answered with."""
        with self._lock:
            self.requests.append(request)
            number = len(self.requests) - 1
            if self._record_to is not None:
                row = {**vars(request), "body": base64.b64encode(request.body).decode()}
                with self._record_to.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        script = self._script
        answer = script(request) if callable(script) else script[min(number, len(script) - 1)]
        return Answer(answer) if isinstance(answer, int) else answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for connection in self.connections:  # idle ones would hold their threads
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30
    server: _Server

    def setup(self) -> None:
        context = self.server.receiver.ssl_context
        if context is not None:  # here, in the connection's thread: a bad handshake harms no other
            self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()
        self.server.receiver.connections.append(self.connection)

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.connection.close()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.receiver.take(Request(self.path, headers, body, self.command))
        if answer.wait is not None:
            answer.wait.wait(30)
        if answer.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(answer.status)
        for name, value in {"content-length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST  # noqa: N815 - the library's name

    def log_message(self, *words: Any) -> None:
        """Nothing on standard error."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed, or refuses our certificate, is no news."""


def read_record(file: Path) -> list[Request]:
    """The requests of a `record_to` file; a last line that was cut short is left out."""
    rows = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [Request(row["path"], row["headers"], base64.b64decode(row["body"]), row["method"]) for row in rows]
