"""Whether a server may be sent commands ahead of its answers, by how it took them so far."""

from __future__ import annotations

import logging
import threading
import time

PLAIN_SECONDS = 3600.0
HANG_UPS_MAX = 2  # in a row; once is what a server does that is stopped
_log = logging.getLogger("effects.email")


class CommandOrder:
    """Of one server, in one process. Thread-safe.

    A server that answers out of step is given each command by itself for an hour, and so is one that twice in a row
    closes the connection on a message which was announced behind another. The log names it: `email.plain_order`.
    """

    def __init__(self, transport: str) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._plain_until = float("-inf")  # monotonic
        self._hang_ups = 0

    @property
    def pipelined(self) -> bool:
        """Whether the server may be sent several commands in one write, where it offers that."""
        return time.monotonic() >= self._plain_until

    def in_step(self) -> None:
        """A message that was announced behind another was answered as it should be."""
        self._hang_ups = 0

    def out_of_step(self, reason: str) -> None:
        """Give each command by itself for an hour."""
        with self._lock:
            new = self.pipelined
            self._hang_ups = 0
            self._plain_until = time.monotonic() + PLAIN_SECONDS
        if new:
            _log.warning("email.plain_order", extra={"transport": self._transport, "reason": reason})

    def hung_up(self) -> None:
        """The server closed the connection on a message that was announced behind another."""
        with self._lock:
            self._hang_ups += 1
            refused = self._hang_ups >= HANG_UPS_MAX
        if refused:
            self.out_of_step("closed")
