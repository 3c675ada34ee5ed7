"""The SMTP transport: messages to one relay, over sessions that are kept open."""

from __future__ import annotations

import re
import smtplib
from collections.abc import Callable
from functools import cached_property

from msgspec.structs import replace

from effects_email.oauth.registration import TokenFailure, TokenUnavailable
from effects_email.transport.base import Kind, OutgoingMessage, SendResult, Verdict
from effects_email.transport.replies.codes import fault_of, system_reason
from effects_email.transport.replies.verdicts import reply_of, reply_text, verdict_of_fault, verdict_of_reply
from effects_email.transport.smtp.client import WIRE_ERRORS, Client
from effects_email.transport.smtp.pool import Envelope, SessionPool, Turn, malformed, misfit
from effects_email.transport.smtp.server import Login, LoginRenewed, SendProgress, Server, server_of
from effects_email.transport.smtp.transaction import AnnouncedTransaction, Transaction, stuffed
from effects_email.transport.url import TransportURL

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
RECIPIENTS_MAX = 100  # of one transaction: what every server must take (RFC 5321, section 4.5.3.1.8)
TLS_FAILURES_MAX = 3  # handshakes that fail in a row before it counts as a matter of configuration
_ALL_BUSY = Verdict(
    kind="throttle", code="no_free_connection", reason="all connections to the server are in use", after_seconds=5.0
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


def open_url(url: TransportURL) -> SmtpTransport:
    """For `open_transport`."""
    return SmtpTransport(server_of(url))


class SmtpTransport:
    """Sends to one SMTP server. Thread-safe.

    The result's own verdict is *unknown* if any recipient's is, else *accepted* if any was served, else the one that
    leaves most open. More than 100 recipients, and those for whom the server says that they are too many at once, are
    served by further transactions of the same `send`. A session that was kept open and turns out to be dead, or whose
    login the server no longer takes, is replaced, once; nothing has been sent by then. While all connections are in
    use, a message is announced behind another one on theirs, where the server offers PIPELINING; if that comes to
    nothing, it has a new one.
    """

    key_lifetime_seconds = None
    rate_per_second = None
    traceable = False

    def __init__(self, server: Server) -> None:
        self.name = server.name
        self._server = server
        self._pool = SessionPool(server)
        self._tls_failures = 0

    @property
    def host(self) -> str:
        """The server's name."""
        return self._server.host

    @property
    def login(self) -> Login | None:
        """How it logs in."""
        return self._server.login

    def __repr__(self) -> str:
        return f"SmtpTransport({self.name!r}, {self._server.host}:{self._server.port}, {self._server.security})"

    def send(self, outgoing: OutgoingMessage, *, release: Callable[[], None], seconds: float) -> SendResult:
        """See `Transport`. Waits at most 15 s for a connection, 30 s for any answer and 10 minutes for the last one,
        all of it within `seconds`, of which half, or all but a minute, stay reserved for that last one.
        """
        sending = SendSession(outgoing, SendProgress(seconds, self._server.timeouts), release)
        sending.refuse(malformed(outgoing))
        while sending.waiting:
            transaction = self._transact(sending)
            if transaction is not None:
                sending.take_over(transaction)
        return sending.result()

    def ask(self, outgoing: OutgoingMessage) -> bool | None:
        """SMTP has no such question."""
        return None

    def close(self) -> None:
        self._pool.close()

    def _transact(self, sending: SendSession, *, fresh: bool = False) -> Transaction | None:
        """Open a transaction for the waiting recipients; None without a session, and then all have their verdict."""
        envelope = Envelope(sending.outgoing, tuple(sending.waiting[:RECIPIENTS_MAX]))
        turn = self._turn(sending, None if fresh else envelope)
        if turn is None:
            return None
        client = turn.client
        if not turn.behind and sending.refuse(misfit(client, sending.outgoing)):
            turn.end(usable=True)
            return None
        reused = turn.behind or client.messages > 0
        transaction = (AnnouncedTransaction if turn.behind else Transaction)(
            turn, envelope, sending.stuffed, sending.progress
        )
        try:
            transaction.run(sending.release)
        except BaseException:
            turn.end(usable=False)
            raise
        logged_out = transaction.logged_out and self.login is not None
        turn.end(usable=transaction.usable and not logged_out)
        if not fresh and (logged_out or (transaction.stale and reused)):
            return self._transact(sending, fresh=True)
        return transaction

    def _turn(self, sending: SendSession, envelope: Envelope | None) -> Turn | None:
        """A turn on a session; on a new one for a message that may not be announced behind another."""
        progress = sending.progress
        try:
            turn = self._taken(progress, envelope)
        except TokenUnavailable as error:
            sending.give_up(_without_token(error.failure))
            return None
        except WIRE_ERRORS as error:
            sending.give_up(self._no_session(progress, error))
            return None
        if turn is None:
            sending.give_up(_ALL_BUSY)
            return None
        self._tls_failures = 0
        sending.note_peer(turn.client)
        return turn

    def _taken(self, progress: SendProgress, envelope: Envelope | None) -> Turn | None:
        """Of the pool; a second time where the first one's token was refused, and there is another by now."""
        try:
            return self._pool.take(progress, envelope, fresh=envelope is None)
        except LoginRenewed:
            return self._pool.take(progress, envelope, fresh=envelope is None)

    def _no_session(self, progress: SendProgress, error: Exception) -> Verdict:
        if isinstance(error, smtplib.SMTPResponseException):
            said = error.smtp_error
            text = said.decode("utf-8", errors="backslashreplace") if isinstance(said, bytes) else str(said)
            reply = reply_of(progress.stage, error.smtp_code, text)
            words = " ".join((reply_text(reply) or "").split())
            return self._placed(verdict_of_reply(reply), f"{error.smtp_code} {words}".rstrip())
        fault = fault_of(error)
        verdict = self._placed(verdict_of_fault(progress.stage, fault), system_reason(error))
        if fault == "tls_failed":
            self._tls_failures += 1
            if self._tls_failures >= TLS_FAILURES_MAX:
                reason = "the TLS handshake failed three times in a row"
                return self._placed(replace(verdict, kind="config", reason=reason), system_reason(error))
        return verdict

    def _placed(self, verdict: Verdict, cause: str | None) -> Verdict:
        """The verdict with the place, and with what the system or the server said of it."""
        place = f"{verdict.reason} ({self._server.host}:{self._server.port})"
        return replace(verdict, reason=place if cause is None else f"{place}: {cause}")


def _without_token(failure: TokenFailure) -> Verdict:
    kind: Kind = "transport_down" if failure.kind == "unavailable" else "config"
    return Verdict(kind=kind, code=failure.code, reason=failure.reason, after_seconds=failure.after_seconds)
