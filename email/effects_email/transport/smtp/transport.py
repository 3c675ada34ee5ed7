"""The SMTP transport: messages to one relay, over sessions that are kept open."""

from __future__ import annotations

import smtplib
from base64 import b64encode
from collections.abc import Callable

from msgspec.structs import replace

from effects.extend import redact
from effects_email.transport.base import OutgoingMessage, SendResult, Verdict
from effects_email.transport.progress import SendProgress
from effects_email.transport.replies.faults import fault_of, system_reason
from effects_email.transport.replies.verdicts import reply_of, reply_text, verdict_of_fault, verdict_of_reply
from effects_email.transport.smtp.announced import AnnouncedTransaction
from effects_email.transport.smtp.client import WIRE_ERRORS
from effects_email.transport.smtp.envelope import Envelope
from effects_email.transport.smtp.fit import malformed, misfit
from effects_email.transport.smtp.pool import SessionPool
from effects_email.transport.smtp.sending import SendSession
from effects_email.transport.smtp.server import Server, server_of
from effects_email.transport.smtp.transaction import Transaction
from effects_email.transport.smtp.turn import Turn
from effects_email.transport.url import TransportURL

RECIPIENTS_MAX = 100  # of one transaction: what every server must take (RFC 5321, section 4.5.3.1.8)
TLS_FAILURES_MAX = 3  # handshakes that fail in a row before it counts as a matter of configuration

_ALL_BUSY = Verdict(
    kind="throttle", code="no_free_connection", reason="all connections to the server are in use", after_seconds=5.0
)


def open_url(url: TransportURL) -> SmtpTransport:
    """For `open_transport`."""
    return SmtpTransport(server_of(url))


class SmtpTransport:
    """Sends to one SMTP server. Thread-safe.

    The result's own verdict is *unknown* if any recipient's is, else *accepted* if any was served, else the one that
    leaves most open. More than 100 recipients, and those for whom the server says that they are too many at once, are
    served by further transactions of the same `send`. A session that was kept open and turns out to be dead is
    replaced, once; nothing has been sent by then. While all connections are in use, a message is announced behind
    another one on theirs, where the server offers PIPELINING; if that comes to nothing, it has a new one.
    """

    key_lifetime_seconds = None
    rate_per_second = None
    traceable = False

    def __init__(self, server: Server) -> None:
        self.name = server.name
        self._server = server
        self._pool = SessionPool(server)
        self._tls_failures = 0

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
        turn.end(usable=transaction.usable)
        if transaction.stale and reused and not fresh:
            return self._transact(sending, fresh=True)
        return transaction

    def _turn(self, sending: SendSession, envelope: Envelope | None) -> Turn | None:
        """A turn on a session; on a new one for a message that may not be announced behind another."""
        progress = sending.progress
        try:
            turn = self._pool.take(progress, envelope, fresh=envelope is None)
        except WIRE_ERRORS as error:
            sending.give_up(self._no_session(progress, error))
            return None
        if turn is None:
            sending.give_up(_ALL_BUSY)
            return None
        self._tls_failures = 0
        sending.note_peer(turn.client)
        return turn

    def _no_session(self, progress: SendProgress, error: Exception) -> Verdict:
        if isinstance(error, smtplib.SMTPResponseException):
            said = error.smtp_error if isinstance(error.smtp_error, bytes) else str(error.smtp_error).encode()
            text = redact(said.decode("utf-8", errors="backslashreplace"), self._secrets())
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

    def _secrets(self) -> list[str]:
        """What a server may say again of what AUTH told it."""
        user, password = self._server.user, self._server.password
        if user is None or password is None:
            return []
        both = b64encode(f"\0{user}\0{password}".encode()).decode()
        return [both, b64encode(password.encode()).decode(), password]
