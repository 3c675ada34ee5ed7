"""`effects webhooks listen`: a receiver for people who try things out.

It verifies every request and hands it to a function.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from effects import ConfigurationError
from effects.cli import cell, json_option
from effects.extend.process import Newest
from effects.extend.receivers import web_apps
from effects.extend.secrets import SignatureInvalid, signing, verify

BODY_BYTES_MAX = 1024 * 1024
_ACCEPTED_MAX = 10_000  # ids that are known, so that a repeat is told
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
            signing.parse_secret(secret)
        self._secrets = list(secrets)
        self._seen = seen
        self._failures_left = fail_first
        self._accepted = Newest[str, None](_ACCEPTED_MAX)
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
        self._accepted[message_id] = None
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
        length = web_apps.content_length(self.headers.get("content-length", ""))
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


SHOWN_CHARS = 200


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port to listen on. Default: a free one."
)
@click.option("--secret", "secrets", multiple=True, required=True, envvar="EFFECTS_WEBHOOK_SECRET", metavar="WHSEC",
              help="Secret to verify with. Repeatable. Default: EFFECTS_WEBHOOK_SECRET.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--fail-first",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Number of requests to answer with 503 first.",
)
@click.option("--full", is_flag=True, help="All of the data, not only its first 200 characters.")
@json_option
def listen(*, port: int, secrets: Sequence[str], host: str, fail_first: int, full: bool, as_json: bool) -> None:
    """Receive webhooks, verify and print them, until Ctrl-C.

    Answers 200, or 401 if the signature is invalid. With --json, one line per request.
    """

    def seen(received: Received) -> None:
        click.echo(_line(received) if as_json else _words(received, full=full))

    try:
        listener = Listener(port, secrets, seen, host=host, fail_first=fail_first)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    click.echo(f"listening on http://{host}:{listener.port}/ (Ctrl-C ends)", err=True)
    with closing(listener), suppress(KeyboardInterrupt):
        listener.serve()


def _line(received: Received) -> str:
    event = _event(received)
    return json.dumps(
        {"status": received.status, "id": received.message_id, "repeat": received.repeat, "reason": received.reason,
         "event": event}
    )  # fmt: skip


def _words(received: Received, *, full: bool) -> str:
    event = _event(received)
    name = event.get("type") if isinstance(event, dict) else None
    verdict = "verified" if received.status == 200 else f"answered {received.status}: {received.reason}"
    again = " (a repeat)" if received.repeat else ""
    data = json.dumps(event.get("data"), ensure_ascii=False) if isinstance(event, dict) else ""
    if not full and len(data) > SHOWN_CHARS:
        data = f"{data[:SHOWN_CHARS]}… (--full shows all {len(data):,} characters)"
    now = datetime.now(UTC).strftime("%H:%M:%S")
    parts = (now, received.message_id, name, f"{verdict}{again}", data if received.status == 200 else "")
    return "  ".join(cell(part) for part in parts).rstrip()


def _event(received: Received) -> Any:
    """The body's JSON, of verified requests only; what a stranger sent is not shown."""
    if received.status == 401:
        return None
    try:
        return json.loads(received.body)
    except ValueError:
        return None
