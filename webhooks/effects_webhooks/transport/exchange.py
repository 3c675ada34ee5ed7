"""One try, and what it says of its endpoint: the exchange with its phases, bounds and response, and the window.

A window is how many requests at a time an endpoint bears, as this process finds out by itself: one more after each
round of successes in which as many were in use, half after an answer or a timeout that says that it is too much.
"""

from __future__ import annotations

import ssl
import time
from collections import OrderedDict
from types import TracebackType
from typing import Self

from effects.extend.http import Exchange
from effects.extend.process import declare, lazy, own_logger, point

with lazy.modules(__name__):
    import httpcore

DEADLINE_SECONDS = 15.0
_HEAD_BYTES_MAX = 64 * 1024  # of one answer's head, with the interim answers before it
WIRE_BYTES_MAX = 256 * 1024  # of one answer, with the framing of its body
START = 4  # requests at a time
ENDPOINTS_MAX = 10_000
OVERLOADED = (429, 503)
TIMEOUTS = ("connect_timeout", "tls_timeout", "answer_timeout")
_log = own_logger("effects.webhooks")

declare(
    {
        "webhook.connected": "connection open, nothing of the request written",
        "webhook.written": "request written, nothing of the response read",
        "webhook.answered": "answer read, outcome not recorded",
    }
)


class WebhookExchange(Exchange):
    """Phases: resolve, connect, tls, write, answer (until the head has come), body."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, "resolve")
        self.secure = False  # over verified TLS
        self.answered_at = 0.0  # seconds since 1970, when the head had come

    def answered(self, status: int, head: list[tuple[bytes, bytes]]) -> None:
        super().answered(status, head)
        self.answered_at = time.time()
        self.enter("body")

    def writing(self) -> None:
        if self.phase != "write":
            point("webhook.connected")
            self.enter("write")

    def reading(self, bytes_max: int) -> int:
        """As many as there is room for.

        Raises:
            httpcore.ReadError: no time is left.
        """
        if self.phase == "write":
            point("webhook.written")
            self.enter("answer")
        room = (_HEAD_BYTES_MAX if self.phase == "answer" else WIRE_BYTES_MAX) - self.bytes_read
        if room <= 0:
            self.fail("answer_too_long", "no final answer within 64 KiB")
            raise httpcore.ReadError("too much")
        return min(bytes_max, room)

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        self.fail("tls_failed", f"TLS: {refused.verify_message if refused else 'handshake failed'}")


class _Window:
    """Of one endpoint. A round is as many successes as the window is wide."""

    __slots__ = ("halvings", "in_use", "most_in_use", "size", "successes")

    def __init__(self) -> None:
        self.size = START
        self.in_use = self.most_in_use = self.successes = self.halvings = 0

    def succeed(self) -> None:
        self.successes += 1
        if self.successes >= self.size:
            self._next_round(self.size + 1 if self.most_in_use >= self.size else self.size)

    def halve(self) -> None:
        self.halvings += 1
        self._next_round(max(1, self.size // 2))

    def _next_round(self, size: int) -> None:
        self.size, self.successes, self.most_in_use = size, 0, self.in_use


class Windows:
    """The windows of up to 10,000 endpoints, those that were not used for longest out.

    One thread, that of the event loop, changes them; any may read `size`.
    """

    def __init__(self) -> None:
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def size(self, endpoint_id: str) -> int:
        """How many requests at a time."""
        window = self._windows.get(endpoint_id)
        return START if window is None else window.size

    def use(self, endpoint_id: str) -> WindowUse:
        """A request to the endpoint, which begins here."""
        window = self._windows.get(endpoint_id)
        if window is None:
            window = self._windows[endpoint_id] = _Window()
            if len(self._windows) > ENDPOINTS_MAX:
                self._windows.popitem(last=False)
        self._windows.move_to_end(endpoint_id)
        return WindowUse(endpoint_id, window)


class WindowUse:
    """One request in a window; it leaves it at the end of `with`."""

    def __init__(self, endpoint_id: str, window: _Window) -> None:
        self._endpoint_id, self._window, self._halvings = endpoint_id, window, window.halvings
        window.in_use += 1
        window.most_in_use = max(window.most_in_use, window.in_use)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._window.in_use -= 1

    def ended(self, exchange: WebhookExchange) -> None:
        """Learn from what happened to it. What began before the window was halved says nothing about the half."""
        window = self._window
        if self._halvings != window.halvings:
            return
        if exchange.status in OVERLOADED or exchange.failure in TIMEOUTS:
            window.halve()
            _log.info("webhook.in_flight_halved", extra={"endpoint": self._endpoint_id, "in_flight": window.size})
        elif exchange.status is not None and 200 <= exchange.status <= 299:
            window.succeed()
