"""One `send` under way: who has which verdict, who still waits, and what it all came to."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from effects_email.transport.base import Kind, OutgoingMessage, SendResult, Verdict
from effects_email.transport.progress import SendProgress
from effects_email.transport.smtp.client import Client
from effects_email.transport.smtp.transaction import Transaction, stuffed

# What a send came to as a whole: the first of these that any recipient has. Where nothing is unknown and someone was
# served it is *accepted*; else what leaves most open.
_RANK: tuple[Kind, ...] = (
    "unknown", "accepted", "config", "transport_down", "throttle", "retry", "refused_message", "refused_recipient",
)  # fmt: skip
# How servers name a message in their queue.
_QUEUE_ID = re.compile(
    r"queued as <?([\w.@-]{4,80})|\bid=([\w.-]{4,80})|^(?:2\.\d\.\d )?Ok:? ([\w.-]{8,80})", re.IGNORECASE
)
_NOT_REACHED = Verdict(
    kind="retry", code="not_reached", reason="the session ended before this recipient was named; nothing was sent"
)


class SendSession:
    """Args:
    release: records that the effect may now happen; called once, by the first transaction that comes to it.
    """

    def __init__(self, outgoing: OutgoingMessage, progress: SendProgress, release: Callable[[], None]) -> None:
        self.outgoing = outgoing
        self.progress = progress
        self.verdicts: dict[str, Verdict] = {}
        self._release = release
        self._released = False
        self._peer: str | None = None
        self._tls: str | None = None

    @cached_property
    def stuffed(self) -> bytes:
        """The message's bytes as they go over the wire."""
        return stuffed(self.outgoing.data)

    @property
    def waiting(self) -> list[str]:
        """Recipients without a verdict, each once."""
        return [recipient for recipient in dict.fromkeys(self.outgoing.recipients) if recipient not in self.verdicts]

    def release(self) -> None:
        if not self._released:
            self._release()
            self._released = True

    def note_peer(self, client: Client) -> None:
        self._peer, self._tls = client.peer, client.tls

    def refuse(self, verdicts: dict[str, Verdict]) -> bool:
        """Add our own verdicts, before contacting a server; return whether there were any."""
        self.verdicts.update(verdicts)
        return bool(verdicts)

    def give_up(self, verdict: Verdict) -> None:
        """Mark the rest as not served now."""
        for recipient in self.waiting:
            self.verdicts[recipient] = verdict

    def take_over(self, transaction: Transaction) -> None:
        """Its verdicts. If it says that no other transaction would fare better, they are everybody's."""
        self.verdicts.update(transaction.verdicts)
        kinds = {verdict.kind for verdict in transaction.verdicts.values()}
        if "accepted" in kinds or kinds == {"refused_recipient"}:
            return
        overall = _overall(transaction.verdicts)
        self.give_up(_NOT_REACHED if overall.kind == "unknown" else overall)

    def result(self) -> SendResult:
        verdict = _overall(self.verdicts)
        return SendResult(
            verdict=verdict,
            recipients={recipient: self.verdicts[recipient] for recipient in self.outgoing.recipients},
            provider_id=_queue_id(verdict),
            peer=self._peer,
            tls=self._tls,
            phases=self.progress.end(),
        )


def _overall(verdicts: dict[str, Verdict]) -> Verdict:
    return min(verdicts.values(), key=lambda verdict: _RANK.index(verdict.kind))


def _queue_id(verdict: Verdict) -> str | None:
    if verdict.kind != "accepted" or verdict.reply is None:
        return None
    queue_id = _QUEUE_ID.search(verdict.reply.text)
    return next((name for name in queue_id.groups() if name), None) if queue_id else None
