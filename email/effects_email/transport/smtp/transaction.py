"""One mail transaction, driven command by command, so that the stage of every failure is known.

    MAIL · RCPT … · DATA ─▶ release() ─▶ 354? ─▶ body ─▶ dot ─▶ answer
    one write, where the server offers PIPELINING (RFC 2920): two round trips a message instead of four; one, where the
    envelope goes with the dot of the message before it (`turn`, `AnnouncedTransaction`)

The point of no return is marked while the server thinks about DATA, so that the mark's commit hides behind the round
trip. Until the last piece of the body is handed over, which holds the dot, the server cannot have a whole message and
must not take half a one (RFC 5321, section 4.1.1.4); from then on silence means *unknown*.
"""

from __future__ import annotations

from collections.abc import Callable

from effects.extend.process import declare, point
from effects_email.transport.base import Reply, Verdict
from effects_email.transport.replies.codes import FaultCode, Garbage, fault_of
from effects_email.transport.replies.verdicts import share, too_many_recipients, verdict_of_fault, verdict_of_reply
from effects_email.transport.smtp.client import WIRE_ERRORS
from effects_email.transport.smtp.pool import DATA, Envelope, Turn
from effects_email.transport.smtp.server import SendProgress

_PIECE_BYTES = 256 * 1024  # each has the stage's time
_LAST_BYTES_MAX = 16 * 1024  # with the dot; one TLS record
_LATE_WORD_SECONDS = 1.0
_END = b".\r\n"
OUT_OF_STEP = (500, 501, 502, 503, 504, 555)
_LOGGED_OUT = (530, 535)
# As which Postfix and Exim refuse commands that came before they were asked for.
_TOO_EARLY = 554

declare(
    {
        "email.connected": "a session, the message not announced",
        "email.enveloped": "MAIL, RCPT and DATA written, nothing marked",
        "email.released": "marked, the answer to DATA not read",
        "email.data": "354 read, nothing of the body written",
        "email.body": "the body written but for its last piece",
        "email.dot": "the dot written, no response read",
        "email.answered": "the response read, nothing recorded",
        "email.behind": "announced behind another message, nothing marked",
        "email.quit": "a session is about to be left",
    }
)


class Transaction:
    """One run of MAIL to the dot for some recipients of a message.

    After `run`: `verdicts` has those recipients about whom something is known, `left` those who are to be served by
    another transaction. `usable` says whether the session may serve again; `logged_out` that the server no longer takes
    its login, as when an access token has ended since.
    """

    def __init__(self, turn: Turn, envelope: Envelope, stuffed: bytes, progress: SendProgress) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.left: list[str] = []
        self.usable = True
        self.logged_out = False
        self._dead = False
        self._turn, self._client, self._progress = turn, turn.client, progress
        self._envelope = envelope
        self._recipients = envelope.recipients
        self._stuffed = stuffed
        self._pipelined = turn.pipelined
        self._taken: list[str] = []  # recipients with a 2xx
        self._going_ahead = False  # 354 was read, and nothing behind it
        self._dot_handed_over = False

    def run(self, release: Callable[[], None]) -> None:
        """Raises only what `release` raises; then nothing of the body was sent, and the session must be closed."""
        point("email.connected")
        if self._guarded(self._open):
            point("email.enveloped")
            self._release(release)
            point("email.released")
            self._guarded(self._finish)

    @property
    def stale(self) -> bool:
        """The session was dead or out of step before this transaction began: another one may do better."""
        odd = (verdict.reply is not None and verdict.reply.code in OUT_OF_STEP for verdict in self.verdicts.values())
        return self._dead or (bool(self.verdicts) and all(odd))

    def _guarded(self, step: Callable[[], bool]) -> bool:
        try:
            return step()
        except WIRE_ERRORS as error:
            self._broken(error)
            return False

    def _release(self, release: Callable[[], None]) -> None:
        self._progress.note("release")
        release()
        self._progress.note(None)

    # -- the envelope ----------------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Up to and with DATA; True if its answer is to be waited for."""
        client = self._client
        client.dirty = True
        self._progress.enter("mail")
        if self._pipelined:
            client.write(self._envelope.group(client))
            return True
        if not self._judge_mail(client.command(self._envelope.mail(client), "mail")):
            return False
        for recipient in self._recipients:
            if not self._judge_rcpt(recipient, client.command(self._envelope.rcpt(recipient), "rcpt")):
                return False
        if not self._taken:
            return False
        self._progress.enter("data")
        client.write(DATA)
        return True

    def _judge_mail(self, reply: Reply) -> bool:
        verdict = self._judged(reply)
        if verdict.kind == "accepted":
            return True
        self._dead = reply.code == 421
        self.logged_out = reply.code in _LOGGED_OUT
        self._settle(verdict)
        return False

    def _judge_rcpt(self, recipient: str, reply: Reply) -> bool:
        """False if the session is over."""
        if too_many_recipients(reply, len(self._taken)):
            self.left.append(recipient)
            return True
        verdict = self._judged(reply)
        if verdict.kind == "accepted":
            self._taken.append(recipient)
        else:
            self.verdicts[recipient] = verdict
        if reply.code == 421:
            self._settle(verdict)
        return reply.code != 421

    def _judged(self, reply: Reply) -> Verdict:
        if reply.code == 421:
            self.usable = False
        return verdict_of_reply(reply)

    # -- the answers, the body, the dot ----------------------------------------------------------------------

    def _finish(self) -> bool:
        client = self._client
        if self._pipelined and not self._read_envelope():
            return False
        reply = client.read("data")
        if reply.code != 354:
            return self._no_body(reply)
        if client.has_unread:
            raise Garbage("an answer before there was a question")
        self._going_ahead = True
        if not self._taken:
            return self._lone_dot()
        point("email.data")
        if not self._write_body():
            return False
        point("email.dot")
        self._answered(client.read("dot"))
        return True

    def _read_envelope(self) -> bool:
        client = self._client
        mail = client.read("mail")
        going = self._judge_mail(mail)
        if mail.code == 421:
            return False
        for recipient in self._recipients:
            reply = client.read("rcpt")
            if going and not self._judge_rcpt(recipient, reply):
                return False
        return True

    def _no_body(self, reply: Reply) -> bool:
        """DATA was refused. Where no recipient is left that is no news, and their own verdicts hold."""
        verdict = self._judged(reply)
        if reply.code is not None and reply.code < 400:
            raise Garbage("an invalid answer to DATA")
        self._share(verdict)
        return False

    def _lone_dot(self) -> bool:
        """The server waits for a body although it took no recipient: an empty one ends the transaction (RFC 2920)."""
        self._progress.enter("data")
        self._client.write(_END)
        self._judged(self._client.read("data"))
        return False

    def _write_body(self) -> bool:
        """The body and the dot; False if the server refused it half-way."""
        client, stuffed = self._client, self._stuffed
        self._progress.enter("body")
        last = max(0, len(stuffed) - _LAST_BYTES_MAX)
        try:
            for start in range(0, last, _PIECE_BYTES):
                self._progress.enter("body")
                client.write(stuffed[start : min(start + _PIECE_BYTES, last)])
            point("email.body")
            self._hand_over_dot(stuffed[last:] + _END)
        except OSError as error:
            if self._dot_handed_over or not self._late_word():
                raise error
            return False
        return True

    def _hand_over_dot(self, piece: bytes) -> None:
        """The last piece, and with it the next message's envelope. An error is *before the dot* only where the kernel
        cannot have it; one behind the dot is the next message's.
        """
        client, sock = self._client, self._client.sock
        body_bytes, handed = len(piece) - len(_END), 0
        written = piece + self._turn.announce_next()
        try:
            while handed < len(written):
                sock.settimeout(self._progress.remaining())
                self._dot_handed_over = client.in_tls or handed > body_bytes
                handed += sock.send(written[handed:] if handed else written)
        except OSError:
            self.usable = False
            if handed < len(piece):
                raise
        self._dot_handed_over = True
        self._progress.enter("dot")

    def _late_word(self) -> bool:
        """The connection broke within the body. A server that refuses a message half-way replies, then closes."""
        self.usable = False
        reply = self._client.last_word(_LATE_WORD_SECONDS)
        if reply is None or reply.code is None or reply.code < 400:
            return False
        self._taken += self.left
        self.left = []
        self._share(verdict_of_reply(reply))
        return True

    def _answered(self, reply: Reply) -> None:
        self._client.answer_seconds = self._progress.in_phase()
        verdict = self._judged(reply)
        point("email.answered")
        if verdict.kind == "unknown":
            self.usable = False
        self._client.dirty = not self.usable or verdict.kind != "accepted"
        self._share(verdict)

    # -- ends ------------------------------------------------------------------------------------------------

    def _share(self, verdict: Verdict) -> None:
        """One answer for all recipients that were taken."""
        self.verdicts |= share(verdict, self._taken)
        self._taken = []

    def _settle(self, verdict: Verdict) -> None:
        """Set one verdict for all recipients without one."""
        for recipient in self._recipients:
            if recipient not in self.verdicts:
                self.verdicts[recipient] = verdict
        self.left, self._taken = [], []

    def _broken(self, error: Exception) -> None:
        self.usable = False
        if self._dot_handed_over:
            self._progress.stage = "dot"
        stage = self._progress.stage
        fault = fault_of(error)
        self._note_order(fault)
        self._dead = stage == "mail" and fault == "closed"
        verdict = verdict_of_fault(stage, fault)
        if self._dot_handed_over:
            for recipient in self._taken:
                self.verdicts[recipient] = verdict
            self._taken = []
        else:
            self._settle(verdict)

    def _note_order(self, fault: FaultCode) -> None:
        """What it says of a server that was sent commands ahead of its answers."""
        order = self._turn.order
        if self._dot_handed_over and self._turn.has_next:
            if fault == "closed":
                order.hung_up()
            else:
                order.out_of_step(fault)
        elif self._pipelined and not self._dot_handed_over and fault == "garbage":
            order.out_of_step(fault)


def stuffed(data: bytes) -> bytes:
    """The data as it goes over the wire: a leading dot doubled (RFC 5321, section 4.5.2), ended by CRLF."""
    out = data.replace(b"\r\n.", b"\r\n..")
    if out.startswith(b"."):
        out = b"." + out
    return out if out.endswith(b"\r\n") else out + b"\r\n"


class AnnouncedTransaction(Transaction):
    """`run` marks the message while the one before it is answered, then goes on with the answers to its envelope.

    They are believed only once it is seen that they are its own: a reply too many, or one that is missing, would be
    another's. 354 in its place shows it, else the answer to an EHLO. Nothing has been sent until then,
    so that all else leaves no verdict: `stale` is true, and the message is to have another session.
    """

    def run(self, release: Callable[[], None]) -> None:
        point("email.behind")
        self._release(release)
        point("email.released")
        self._progress.note("envelope")
        if not self._turn.comes(self._progress):
            self._void()
            return
        self._client.dirty = True
        self._guarded(self._finish)
        if self._going_ahead or self._guarded(self._is_in_step):
            self._turn.order.in_step()

    def _is_in_step(self) -> bool:
        """Whether the envelope's refusal is what the server says of it; else nothing is known of it."""
        if not self.usable:  # it is closing, or broken
            self._void()
            return False
        codes = {verdict.reply.code for verdict in self.verdicts.values() if verdict.reply is not None}
        begun, code = self._client.begin_again()
        if begun and codes.isdisjoint((*OUT_OF_STEP, _TOO_EARLY)) and self._client.is_silent:
            self._client.dirty = False
            return True
        if code != 421:
            self._turn.order.out_of_step("refused")
        self._void()
        return False

    def _broken(self, error: Exception) -> None:
        if self._going_ahead:
            super()._broken(error)
            return
        if fault_of(error) == "closed":
            self._turn.order.hung_up()
        else:
            self._turn.order.out_of_step(fault_of(error))
        self._void()

    def _void(self) -> None:
        self.verdicts, self.left, self._taken = {}, [], []
        self.usable = False
        self._dead = True
