"""Sessions that are kept open between messages, for all threads of a process.

The one used last is taken first, so that the others grow old and are closed. A session serves 100 messages or 300 s;
idle for 5 s, it is closed; idle for more than 2 s, or left within a transaction, the server is asked before it is used.
One in which the server has sent more than it was asked for serves no more. Where all places are taken, a message that
waits for one may be announced on a session behind the message that is under way there (`Turn`).
After a fork the child has none: the parent continues with its own.

A message's use of a session is a turn: its envelope, alone or announced behind the message that is under way there.

    A: … body and dot, MAIL RCPT DATA of B │ answer to A ─▶ the session is B's
    B:                      release() ─────┘ answers to MAIL, RCPT, DATA ─▶ body and dot, MAIL RCPT DATA of C …

One round trip a message (RFC 2920, section 3.1). Only one thread at a time uses the session: that whose turn it is.
Before that it is checked whether any server, and whether this one, may be given the envelope.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from effects.extend.process import own_logger
from effects_email.transport.base import OutgoingMessage, Verdict
from effects_email.transport.smtp.client import Client
from effects_email.transport.smtp.server import SendProgress, Server

DATA = b"DATA\r\n"
ADDRESS_CHARS_MAX = 320
# Nothing that could end the command or the angle brackets; a quoted local part may hold blanks and brackets.
_ADDRESS = re.compile(r'(?:[^\x00-\x20\x7f<>"\\]+|"(?:[^\x00-\x1f\x7f"\\]|\\[\x20-\x7e])*")@[^\x00-\x20\x7f<>"\\]+')
PLAIN_SECONDS = 3600.0
HANG_UPS_MAX = 2  # in a row; once is what a server does that is stopped
_log = own_logger("effects.email")
QUICK_SECONDS = 1.0  # no message is announced behind others where the server took longer to answer the last one
TURN_SECONDS = 10.0  # the longest that one waits for the answer to the message before it
ASK_AFTER_SECONDS = 2.0
_REAPER_SECONDS = 0.5  # between two looks


@dataclass(frozen=True)
class Envelope:
    """A message for some of its recipients, 100 at most."""

    outgoing: OutgoingMessage
    recipients: tuple[str, ...]

    def mail(self, client: Client) -> bytes:
        """MAIL, with what the server offers."""
        outgoing = self.outgoing
        command = f"MAIL FROM:<{outgoing.sender}>"
        if client.offers_size:
            command += f" SIZE={len(outgoing.data)}"
        if client.offers_8bit and not outgoing.data.isascii():
            command += " BODY=8BITMIME"
        if outgoing.utf8:
            command += " SMTPUTF8"
        return command.encode() + b"\r\n"

    @staticmethod
    def rcpt(recipient: str) -> bytes:
        return f"RCPT TO:<{recipient}>\r\n".encode()

    def group(self, client: Client) -> bytes:
        """All of it in one write (RFC 2920)."""
        return b"".join([self.mail(client), *map(self.rcpt, self.recipients), DATA])

    def fits(self, client: Client) -> bool:
        """Whether this server may be given the message."""
        return not misfit(client, self.outgoing)


def malformed(outgoing: OutgoingMessage) -> dict[str, Verdict]:
    """Verdicts about addresses and bytes that no SMTP server may be given; empty where all is well."""
    if not (outgoing.sender == "" or _is_address(outgoing.sender)):
        return _all(outgoing, _refused("config", "bad_sender", "the sender's address is not valid in an envelope"))
    problems = {
        recipient: _refused("refused_recipient", "bad_address", "the address is not valid in an envelope")
        for recipient in outgoing.recipients
        if not _is_address(recipient)
    }
    newlines = outgoing.data.count(b"\r\n")
    if outgoing.data.count(b"\n") != newlines or outgoing.data.count(b"\r") != newlines:
        return _all(outgoing, _refused("refused_message", "bare_line_end", "a line does not end in CRLF"))
    return problems


def misfit(client: Client, outgoing: OutgoingMessage) -> dict[str, Verdict]:
    """Verdicts about what this server does not offer or allow; empty where all is well."""
    if client.size_max and len(outgoing.data) > client.size_max:
        reason = f"the message has {len(outgoing.data):,} bytes and the server takes {client.size_max:,}"
        return _all(outgoing, _refused("refused_message", "too_large", reason))
    if outgoing.utf8 and not client.offers_utf8:
        return _without_utf8(outgoing)
    if not client.offers_8bit and not outgoing.data.isascii():
        return _all(outgoing, _refused("refused_message", "no_8bitmime", "the server takes 7-bit messages only"))
    return {}


def _without_utf8(outgoing: OutgoingMessage) -> dict[str, Verdict]:
    """An address that is not ASCII has no other form: its domain is ASCII already, and no one may rewrite the rest."""
    reason = "the server does not offer SMTPUTF8, which the address needs"
    message = _refused("refused_message", "no_smtputf8", "the server does not offer SMTPUTF8, which the message needs")
    return {
        recipient: message if recipient.isascii() else _refused("refused_recipient", "no_smtputf8", reason)
        for recipient in outgoing.recipients
    }


def _is_address(text: str) -> bool:
    return len(text) <= ADDRESS_CHARS_MAX and _ADDRESS.fullmatch(text) is not None


def _refused(kind: str, code: str, reason: str) -> Verdict:
    return Verdict(kind=kind, code=code, reason=reason)  # type: ignore[arg-type]


def _all(outgoing: OutgoingMessage, verdict: Verdict) -> dict[str, Verdict]:
    return dict.fromkeys(outgoing.recipients, verdict)


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


class TurnState(Enum):
    """`ours`: the session is this message's. `behind`: it is the message's before it. `over`: neither any more."""

    BEHIND = "behind"
    OURS = "ours"
    OVER = "over"


class Turn:
    """Made by `SessionPool.take`, ended by `end`.

    Args:
        lock: the pool's.
        envelope: what may be announced behind another message; None: it wants its own session.
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


class SessionPool:
    """Thread-safe. At most `server.connections` sessions are open; who comes then waits for one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._order = CommandOrder(server.name)
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._free = self._server.connections
        self._waiting: list[Turn] = []  # for a place, the first come first
        self._idle: list[Client] = []
        self._reaper: threading.Thread | None = None

    def __len__(self) -> int:
        """Idle sessions."""
        return len(self._idle)

    def take(self, progress: SendProgress, envelope: Envelope | None = None, *, fresh: bool = False) -> Turn | None:
        """A turn on a session; None where all places are taken until too little time is left for a session. End it.

        Args:
            envelope: what may be announced behind another message, where all places are taken.
            fresh: a new session only, after another one's that came to nothing.

        Raises:
            OSError, smtplib.SMTPException, ValueError: no session; `progress.stage` tells how far it came.
        """
        turn = Turn(self._lock, envelope, self._order, find_next=self._find_next, leave=self._leave)
        if not self._admit(turn, max(0.0, progress.remaining_in_all())):
            return None
        if turn.behind:
            return turn
        if (turn.waited or fresh) and progress.is_late:  # that the server does not answer in time would be our doing
            self._free_place()
            return None
        try:
            turn.client = self._idle_one(progress, fresh=fresh) or Client(self._server, progress)
        except BaseException:
            self._free_place()
            raise
        return turn

    def _admit(self, turn: Turn, seconds: float) -> bool:
        """Wait for a place, or until another thread announces the message."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn.admitted, turn.waited = threading.Event(), True
            self._waiting.append(turn)
        turn.admitted.wait(seconds)
        with self._lock:
            if turn.admitted.is_set():
                return True
            self._waiting.remove(turn)
            return False

    def _free_place(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.pop(0).admitted.set()
            else:
                self._free += 1

    def _find_next(self, client: Client) -> Turn | None:
        """Who has waited longest, if it may be announced on this session, behind the message that is under way there.

        No one is passed over: that turn's session is then the next that comes free.
        """
        if client.messages + 1 >= self._server.messages_per_connection or self._is_old(client):
            return None
        with self._lock:
            envelope = self._waiting[0].envelope if self._waiting else None
            if envelope is None or not envelope.fits(client):
                return None
            turn = self._waiting.pop(0)
            turn.follow(client)
            return turn

    def _leave(self, client: Client, usable: bool) -> None:
        """A session comes back. One that is in no state for a QUIT is closed without."""
        try:
            if not usable:
                client.close()
                return
            client.messages += 1
            client.idle_since = time.monotonic()
            with self._lock:  # a worn one too: its QUIT is for later, when the outcome of its last message is recorded
                self._idle.append(client)
                self._watch()
        finally:
            self._free_place()

    def close(self) -> None:
        """Close what is idle. Sessions in use end when they are given back and grow old."""
        with self._lock:
            gone, self._idle = self._idle, []
        for client in gone:
            client.quit_quietly()

    def forget(self) -> None:
        """Close inherited sockets silently in a forked child: they are the parent's."""
        idle = self._idle
        self._begin()
        for client in idle:
            client.close()

    # -- which one -------------------------------------------------------------------------------------------

    def _idle_one(self, progress: SendProgress, *, fresh: bool) -> Client | None:
        while not fresh and (client := self._pop()) is not None:
            if not self._worn(client) and client.is_silent and self._serves(client, progress):
                client.progress = progress
                return client
            client.quit_quietly()
        return None

    def _serves(self, client: Client, progress: SendProgress) -> bool:
        idle_seconds = time.monotonic() - client.idle_since
        return (not client.dirty and idle_seconds <= ASK_AFTER_SECONDS) or client.still_there(progress)

    def _pop(self) -> Client | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _worn(self, client: Client) -> bool:
        return (
            client.messages >= self._server.messages_per_connection
            or self._is_old(client)
            or time.monotonic() - client.idle_since > self._server.idle_seconds
        )

    def _is_old(self, client: Client) -> bool:
        return time.monotonic() - client.opened_at > self._server.connection_seconds

    # -- the reaper ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """A thread that lives as long as there is something idle. Under the lock."""
        if self._reaper is None:
            self._reaper = threading.Thread(target=self._reap, name="effects-email-idle", daemon=True)
            self._reaper.start()

    def _reap(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_REAPER_SECONDS)
            with self._lock:
                gone = [client for client in self._idle if self._worn(client)]
                self._idle = [client for client in self._idle if client not in gone]
                if not self._idle:
                    self._reaper = None
            for client in gone:
                client.quit_quietly()
            if self._reaper is not threading.current_thread():
                return


_pools: weakref.WeakSet[SessionPool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
