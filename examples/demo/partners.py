"""Partners on loopback: HTTP receivers that verify every signature twice and count what they get."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from effects.errors import ConfigurationError
from effects.keys.signing import generate_secret, verify

USERS = "user.*"
REFUSALS = 2  # how often the shaky partner answers 503 before it accepts an event


@dataclass
class Partner:
    """A receiver, and what it saw: `webhook-id` → tries, and → times accepted."""

    name: str
    pattern: str = "github.*"  # of the events that it wants
    refusals: int = 0
    endpoint_id: str = ""
    secret: str = field(default_factory=generate_secret, repr=False)
    port: int = 0
    tries: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    verified: int = 0  # requests whose signature both implementations found good
    refuted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_crm(self) -> bool:
        """Whether it is the shop's own customer database, which hears of users and not of GitHub."""
        return self.pattern == USERS

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.name}"

    @property
    def duplicates(self) -> int:
        """Deliveries accepted more than once."""
        return sum(times - 1 for times in self.accepted.values())

    def answer(self, headers: dict[str, str], body: bytes) -> int:
        """Verify, count, and say the status."""
        try:
            message_id = _verify_twice(self.secret, headers, body)
        except Exception:
            with self._lock:
                self.refuted += 1
            return 401
        with self._lock:
            self.verified += 1
            self.tries[message_id] += 1
            if self.tries[message_id] <= self.refusals:
                return 503
            self.accepted[message_id] += 1
            return 200


def _verify_twice(secret: str, headers: dict[str, str], body: bytes) -> str:
    """By our own `verify`, and by the reference library of the standard."""
    from standardwebhooks import Webhook  # noqa: PLC0415 - of the extra `demo`

    message_id = verify(secret, headers, body)
    Webhook(secret).verify(body, headers)
    return message_id


def require_reference_library() -> None:
    """Say early what the demo needs.

    Raises:
        ConfigurationError: the extra `demo` is not installed.
    """
    try:
        import standardwebhooks  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigurationError("the demo needs standardwebhooks: run `make demo`") from None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(self.server.partner.answer(headers, body))
        self.send_header("content-length", "0")
        self.send_header("retry-after", "0")  # a 503 speaks for this event alone: the endpoint need not rest
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server uses
        """The demo prints its own summary."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, partner: Partner) -> None:
        self.partner = partner
        super().__init__(("127.0.0.1", 0), _Handler)


@contextmanager
def partners() -> Iterator[list[Partner]]:
    """One that accepts, one that refuses twice first, one that is gone, and the CRM, which is gone too."""
    good, shaky, gone = Partner("good"), Partner("shaky", refusals=REFUSALS), Partner("gone")
    crm = Partner("crm", pattern=USERS)
    servers = []
    for partner in (good, shaky):
        server = _Server(partner)
        partner.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    with _nobody_listens() as gone.port, _nobody_listens() as crm.port:
        yield [good, shaky, gone, crm]
    for server in servers:
        with suppress(OSError):
            server.shutdown()
            server.server_close()


@contextmanager
def _nobody_listens() -> Iterator[int]:
    """A port that stays bound, so that no one else takes it, and refuses every connection."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
