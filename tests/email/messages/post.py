"""A transport that does as it is told, one word a send, and keeps what it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable

from effects_email.transport.base import Kind, OutgoingMessage, Reply, SendResult, Suppress, Verdict


def verdict(kind: Kind, *, after: float | None = None, suppress: Suppress | None = None, text: str = "") -> Verdict:
    """A row of some table, applied."""
    code, reply = f"test_{kind}", Reply(stage="dot", code=250 if kind == "accepted" else 550, text=text)
    return Verdict(kind=kind, code=code, reason=f"it was {kind}", reply=reply, after_seconds=after, suppress=suppress)


class Post:
    """`moves`: the verdict of each send, the last repeated: one for all recipients, or one for each address.

    A word `lost` raises from behind the release, as a crash would.
    """

    name = "default"
    key_lifetime_seconds: float | None = None
    rate_per_second: int | None = None
    traceable = False

    def __init__(self, *moves: Verdict | dict[str, Verdict]) -> None:
        self.moves: list[Verdict | dict[str, Verdict]] = list(moves) or [verdict("accepted")]
        self.outgoing: list[OutgoingMessage] = []
        self.released: list[int] = []
        self.asked = 0
        self.knows: bool | None = None
        self.decide: Callable[[OutgoingMessage], dict[str, Verdict]] | None = None  # instead of `moves`
        self._lock = threading.Lock()

    def send(self, outgoing: OutgoingMessage, *, release: Callable[[], None], seconds: float) -> SendResult:
        with self._lock:
            turn = len(self.outgoing)
            self.outgoing.append(outgoing)
            move = self.decide(outgoing) if self.decide else self.moves[min(turn, len(self.moves) - 1)]
        assert seconds > 600, "the time after the dot is ten minutes"
        said = move if isinstance(move, dict) else dict.fromkeys(outgoing.recipients, move)
        if any(verdict.kind not in ("config", "transport_down") for verdict in said.values()):
            release()
            with self._lock:
                self.released.append(turn)
        verdicts = {address: said[address] for address in outgoing.recipients}
        return SendResult(
            verdict=next(iter(verdicts.values())), recipients=verdicts, peer="test", provider_id=f"id-{turn}"
        )

    def ask(self, outgoing: OutgoingMessage) -> bool | None:
        self.asked += 1
        return self.knows

    def close(self) -> None:
        """There is nothing to close."""

    @property
    def bytes(self) -> list[bytes]:
        return [outgoing.data for outgoing in self.outgoing]

    def sent_to(self) -> list[tuple[str, ...]]:
        return [outgoing.recipients for outgoing in self.outgoing]


class KeyedPost(Post):
    """It knows idempotency keys for a day."""

    key_lifetime_seconds = 86_400.0
    traceable = True
