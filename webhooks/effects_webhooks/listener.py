"""A receiver for people who try things out: verifies every request and hands it to a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from effects.extend import SignatureInvalid, content_length, parse_secret, verify

BODY_BYTES_MAX = 1024 * 1024
IDLE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Received:
    """One request and what it was answered with."""

    status: int  # 200 accepted, 400 malformed, 401 not verified, 413 too long, 503 failed on purpose
    message_id: str | None
    repeat: bool  # this id was accepted before
    reason: str | None  # why it was not accepted
    body: bytes


class Listener:
    """An HTTP server that accepts verified webhooks on every path.

    Args:
        secrets: `whsec_…`, one or more; a request must fit one of them.
        seen: called with every request, in its thread, before it is answered.
        fail_first: so many verified requests are answered 503, to show retries.

    It is made for loopback and tests, not for the open network.

    Raises:
        SecretInvalid: a secret is malformed.
        OSError: the port is taken.
    """

    def __init__(
        self,
        port: int,
        secrets: Sequence[str],
        seen: Callable[[Received], None],
        *,
        host: str = "127.0.0.1",
        fail_first: int = 0,
    ) -> None:
        for secret in secrets:
            parse_secret(secret)
        self._secrets = list(secrets)
        self._seen = seen
        self._failures_left = fail_first
        self._accepted: set[str] = set()
        self._lock = threading.Lock()
        self._server = _Server((host, port), _Handler)
        self._server.listener = self
        self.port = int(self._server.server_address[1])

    def serve(self) -> None:
        """Receive until `stop` is called from another thread, or the process is interrupted."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """End `serve`; returns when it has ended."""
        self._server.shutdown()

    def close(self) -> None:
        """Give the port back."""
        self._server.server_close()

    def take(self, headers: dict[str, str], body: bytes) -> Received:
        """Verify one request, decide its answer and report it."""
        with self._lock:
            received = self._judge(headers, body)
            self._seen(received)
        return received

    def _judge(self, headers: dict[str, str], body: bytes) -> Received:
        try:
            message_id = verify(self._secrets, headers, body)
        except SignatureInvalid as error:
            return Received(401, headers.get("webhook-id"), False, str(error), body)
        if self._failures_left > 0:
            self._failures_left -= 1
            return Received(503, message_id, False, "failed on purpose", body)
        repeat = message_id in self._accepted
        self._accepted.add(message_id)
        return Received(200, message_id, repeat, None, body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    listener: Listener

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle is no news here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    server: _Server

    def do_POST(self) -> None:
        length = content_length(self.headers.get("content-length", ""))
        if length is None:
            self._answer(400, close=True)
        elif length > BODY_BYTES_MAX:
            self._answer(413, close=True)
        else:
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._answer(self.server.listener.take(headers, body).status)

    def _answer(self, status: int, *, close: bool = False) -> None:
        self.close_connection = self.close_connection or close
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Nothing: what came is reported by `seen`."""
