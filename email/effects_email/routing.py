"""The limit key of a message: its transport's, or that of its recipient's domain where an operator limits that.

    effects limits set email:default --create --rate 14/1s
    effects limits set email:default:example.com --create --parent email:default --rate 100/1m

A domain without such a row goes by its transport's key: keys stay few, however many domains an app writes to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from sqlalchemy import Connection

from effects import Effects
from effects.extend.process import Newest
from effects_email.tables import sent

LOOK_AGAIN_SECONDS = 10.0
TRANSPORTS_MAX = 1_000


def transport_key(transport: str) -> str:
    return f"email:{transport}"


def transport_of(limit_key: str) -> str | None:
    """The transport whose limit key this is, or that of a domain by it; None where it is no such key."""
    package, _, rest = limit_key.partition(":")
    return rest.partition(":")[0] if package == "email" else None


def domain_key(transport: str, domain: str) -> str:
    return f"email:{transport}:{domain}"


class LimitKeys:
    """Which domains have limits of their own; looked up at most every 10 seconds."""

    def __init__(self, app: Effects) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._known = Newest[str, tuple[float, frozenset[str]]](TRANSPORTS_MAX)

    def key(self, connection: Connection, transport: str, domain: str) -> str:
        """The limit key of a message to this domain by this transport."""
        limit_key = domain_key(transport, domain)
        return limit_key if limit_key in self._limited(connection, transport) else transport_key(transport)

    def _limited(self, connection: Connection, transport: str) -> Collection[str]:
        now = time.monotonic()
        with self._lock:
            looked_at, keys = self._known.get(transport, (float("-inf"), frozenset()))
        if now - looked_at > LOOK_AGAIN_SECONDS:
            keys = frozenset(sent.limited_keys(self._app.store, connection, [transport_key(transport)]))
            with self._lock:
                self._known[transport] = (now, keys)
        return keys
