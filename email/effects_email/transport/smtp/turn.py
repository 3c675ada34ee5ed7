"""A message's use of a session: alone, or announced behind the message that is under way there.

    A: … body and dot, MAIL RCPT DATA of B │ answer to A ─▶ the session is B's
    B:                      release() ─────┘ answers to MAIL, RCPT, DATA ─▶ body and dot, MAIL RCPT DATA of C …

One round trip a message (RFC 2920, section 3.1). Only one thread at a time uses the session: that whose turn it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from effects_email.transport.progress import SendProgress
from effects_email.transport.smtp.client import Client
from effects_email.transport.smtp.envelope import Envelope

if TYPE_CHECKING:
    from effects_email.transport.smtp.order import CommandOrder

QUICK_SECONDS = 1.0  # no message is announced behind others where the server took longer to answer the last one
TURN_SECONDS = 10.0  # the longest that one waits for the answer to the message before it


class TurnState(Enum):
    """`ours`: the session is this message's. `behind`: it is the message's before it. `over`: neither any more."""

    BEHIND = "behind"
    OURS = "ours"
    OVER = "over"


class Turn:
    """Made by `SessionPool.take`, ended by `end`.

    Args:
        lock: the pool's.
        envelope: what may be announced behind another message; None: it wants a session of its own.
        find_next: takes one that waits for a session and may be announced behind this message, from the pool.
        leave: takes the session back: whether it may serve again.
    """

    client: Client
    admitted: threading.Event  # of one that waits: it has a place for a session, or is announced
    _decided: threading.Event  # of one that is announced: the message before it is answered

    def __init__(
        self,
        lock: threading.Lock,
        envelope: Envelope | None,
        order: CommandOrder,
        *,
        find_next: Callable[[Client], Turn | None],
        leave: Callable[[Client, bool], None],
    ) -> None:
        self.envelope = envelope
        self.order = order
        self.waited = False  # for a place
        self.behind = False  # announced by the message before it
        self._lock = lock
        self._find_next, self._leave = find_next, leave
        self._state = TurnState.OURS
        self._next: Turn | None = None

    @property
    def pipelined(self) -> bool:
        """Whether commands may be sent ahead of their answers."""
        return self.client.offers_pipelining and self.order.pipelined

    def follow(self, client: Client) -> None:
        """Be announced on this session. Under the lock."""
        self._decided = threading.Event()
        self.client, self.behind, self._state = client, True, TurnState.BEHIND
        self.admitted.set()

    def announce_next(self) -> bytes:
        """The envelope of a message that waits for a session, to be written with the end of this one; or nothing."""
        client = self.client
        if not self.pipelined or client.answer_seconds > QUICK_SECONDS:
            return b""
        self._next = self._find_next(client)
        return b"" if self._next is None or self._next.envelope is None else self._next.envelope.group(client)

    @property
    def has_next(self) -> bool:
        """Whether another message was announced behind this one."""
        return self._next is not None

    def comes(self, progress: SendProgress) -> bool:
        """Wait until the message before this one is answered; False if the session is lost, or it takes too long."""
        self._decided.wait(min(TURN_SECONDS, max(0.0, progress.remaining_in_all())))
        with self._lock:
            if self._state is not TurnState.OURS:
                self._state = TurnState.OVER
                return False
            self.client.progress = progress
            return True

    def end(self, *, usable: bool) -> None:
        """The message has its outcome: the session is that of the next, or goes back.

        Args:
            usable: whether the session may serve again.
        """
        with self._lock:
            if self._state is not TurnState.OURS:  # the message before this one closes it
                self._state = TurnState.OVER
                return
            self._state = TurnState.OVER
            if self._next is not None and self._next._take_over(usable):
                self.client.messages += 1
                return
        self._leave(self.client, usable and self._next is None)

    def _take_over(self, usable: bool) -> bool:
        """Under the lock."""
        if self._state is TurnState.BEHIND:
            self._state = TurnState.OURS if usable else TurnState.OVER
        self._decided.set()
        return self._state is TurnState.OURS
