"""A scripted SMTP server on a real socket: what it answers at each stage, and what it took.

    with SmtpPeer({"rcpt": "451 4.7.1 wait"}) as peer: … peer.url … peer.messages

A script maps a stage to what happens there: a reply's text (CRLF inside makes it several lines), raw bytes, or CUT,
RESET or STALL. A list is used up one by one, then the stage is normal again. The stages are banner, ehlo, helo,
starttls, auth, mail, rcpt, data, body (within the message: what follows an answer there is silence), dot, rset, noop
and quit; `rcpt ann@example.org` is that recipient alone.
"""

from __future__ import annotations

import base64
import hmac
import itertools
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self, TypeAlias

from tests.peers.raw import RawPeer


class Act(Enum):
    """What a server may do beside answering."""

    CUT = "close the connection"
    RESET = "break it"
    STALL = "answer nothing, and keep it open"


CUT, RESET, STALL = Act.CUT, Act.RESET, Act.STALL
Step: TypeAlias = "str | bytes | Act"
Script: TypeAlias = Mapping[str, "Step | Sequence[Step]"]

OFFERS = ("PIPELINING", "SIZE 10000000", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES")
_NORMAL = {
    "banner": "220 peer ready", "starttls": "220 2.0.0 go ahead", "auth": "235 2.7.0 welcome", "mail": "250 2.1.0 ok",
    "rcpt": "250 2.1.5 ok", "data": "354 go ahead", "rset": "250 2.0.0 ok", "noop": "250 2.0.0 ok",
    "quit": "221 2.0.0 bye", "helo": "250 peer",
}  # fmt: skip
TOKEN = "t" * 2000
_BODY_BYTES_READ = 100  # before a cut within the body


@dataclass(frozen=True)
class Received:
    """A message that came with its dot. `data` is without the dots that were doubled for the wire."""

    sender: str
    recipients: tuple[str, ...]
    data: bytes
    connection: int
    options: str  # of MAIL


class _Left(Exception):
    """The session is over."""


class SmtpPeer:
    """Counts: `messages` are those whose dot has come, whatever was answered; `commands` all that was said.

    Args:
        offers: of EHLO.
        tls: offered as STARTTLS; with `implicit`, spoken from the first byte.
        accounts: user → password; AUTH is then offered, by these `mechanisms`, and checked.
        accepts: whether an access token is good; AUTH is then offered by XOAUTH2 and OAUTHBEARER alone. So it is of a
            peer without accounts, which takes `TOKEN`, and those who do not log in.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        offers: Sequence[str] = OFFERS,
        tls: ssl.SSLContext | None = None,
        implicit: bool = False,
        accounts: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = ("PLAIN", "LOGIN"),
        accepts: Callable[[str], bool] | None = None,
    ) -> None:
        self.messages: list[Received] = []
        self.commands: list[str] = []
        self.reached: dict[str, threading.Event] = {}
        self.script: dict[str, Step | list[Step]] = {
            stage: step if isinstance(step, str | bytes | Act) else list(step) for stage, step in (script or {}).items()
        }
        self.offers, self.tls, self.implicit, self.accounts = tuple(offers), tls, implicit, dict(accounts or {})
        self.accepts = accepts or (None if accounts else TOKEN.__eq__)
        self.mechanisms = tuple(mechanisms) if self.accepts is None else ("XOAUTH2", "OAUTHBEARER")
        self.refusal = "535 5.7.8 no such account"  # of a login; `{response}` and `{token}` repeat what it was told
        self._lock = threading.Lock()
        self._sessions: list[_Session] = []
        self._numbers = itertools.count(1)  # of connections, whichever thread comes first
        self._raw = RawPeer(self._serve)

    def __enter__(self) -> Self:
        self._raw.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hang_up()
        self._raw.__exit__(*error)

    def hang_up(self) -> None:
        """Close every connection."""
        for session in list(self._sessions):
            session.hang_up()

    @property
    def port(self) -> int:
        return self._raw.port

    @property
    def url(self) -> str:
        return f"smtp://localhost:{self.port}"

    @property
    def connections(self) -> int:
        return self._raw.accepted

    @property
    def over(self) -> threading.Event:
        return self._raw.over

    def commands_of(self, verb: str) -> list[str]:
        """The commands that begin so."""
        return [command for command in self.commands if command.upper().startswith(verb)]

    def step(self, stage: str) -> Step | None:
        """What the script has for this stage now."""
        with self._lock:
            step = self.script.get(stage)
            if isinstance(step, list):
                return step.pop(0) if step else None
            return step

    def _serve(self, connection: socket.socket) -> None:
        session = _Session(self, connection, next(self._numbers))
        self._sessions.append(session)
        with suppress(_Left):
            try:
                session.run()
            finally:
                session.close()


class _Session:
    """One connection."""

    def __init__(self, peer: SmtpPeer, connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # three small answers in a row
        self._peer, self._number = peer, number
        self._wire: Any = connection
        self._buffer = b""
        self._sender: str | None = None
        self._options = ""
        self._recipients: list[str] = []

    def run(self) -> None:
        if self._peer.implicit:
            self._begin_tls()
        self._do("banner")
        while True:
            line = self._line().decode()
            self._peer.commands.append(line)
            self._command(line.split(" ", 1)[0].upper(), line)

    def hang_up(self) -> None:
        """From another thread; the session's own finds the end of the stream."""
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """TLS wraps the socket into another one, which must be closed here."""
        self._wire.close()

    def _command(self, verb: str, line: str) -> None:
        match verb:
            case "EHLO":
                self._sender, self._recipients = None, []
                self._do("ehlo", self._greeting())
            case "HELO":
                self._sender, self._recipients = None, []
                self._do("helo")
            case "STARTTLS":
                if self._do("starttls").startswith("220"):
                    self._begin_tls()
            case "AUTH":
                self._do("auth", self._login(line))
            case "MAIL":
                self._mail(line)
            case "RCPT":
                self._rcpt(line)
            case "DATA":
                self._data()
            case "RSET":
                self._sender, self._recipients = None, []
                self._do("rset")
            case "NOOP":
                self._do("noop")
            case "QUIT":
                self._do("quit")
                raise _Left
            case _:
                self._say("500 5.5.2 unknown command")

    def _mail(self, line: str) -> None:
        if self._sender is not None:
            self._say("503 5.5.1 nested MAIL")
            return
        sender, self._options = _path(line)
        if self._do("mail").startswith("2"):
            self._sender = sender

    def _rcpt(self, line: str) -> None:
        if self._sender is None:
            self._say("503 5.5.1 MAIL first")
            return
        address = _path(line)[0]
        step = self._peer.step(f"rcpt {address}")
        if (self._do("rcpt") if step is None else self._act(step)).startswith("2"):
            self._recipients.append(address)

    def _data(self) -> None:
        if self._sender is None:
            self._say("503 5.5.1 MAIL first")
        elif self._do("data", "354 go ahead" if self._recipients else "554 5.5.1 no recipients").startswith("354"):
            self._body()

    def _body(self) -> None:
        step = self._peer.step("body")
        if step is not None:
            while len(self._buffer) < _BODY_BYTES_READ:
                self._receive()
            self._act(step)
            self._wire.shutdown(socket.SHUT_WR)
            self._act(STALL)
        while not (ended := self._buffer.startswith(b".\r\n")) and b"\r\n.\r\n" not in self._buffer:
            self._receive()
        data, _, self._buffer = self._buffer.partition(b".\r\n" if ended else b"\r\n.\r\n")
        data = b"" if ended else (b"\r\n" + data + b"\r\n").replace(b"\r\n..", b"\r\n.")[2:]
        if self._sender is not None and self._recipients:
            self._peer.messages.append(
                Received(self._sender, tuple(self._recipients), data, self._number, self._options)
            )
        number = len(self._peer.messages)
        self._sender, self._recipients = None, []
        self._do("dot", f"250 2.0.0 Ok: queued as PEER{number:04d}")

    # -- what happens ----------------------------------------------------------------------------------------

    def _do(self, stage: str, normal: str | None = None) -> str:
        """What the script says for the stage, else what is normal; the reply that was given."""
        self._peer.reached.setdefault(stage, threading.Event()).set()
        step = self._peer.step(stage)
        return self._act(step if step is not None else normal or _NORMAL[stage])

    def _act(self, step: Step) -> str:
        if isinstance(step, str):
            self._say(step)
            return step
        if isinstance(step, bytes):
            self._wire.sendall(step)
            return step.decode("latin-1")
        if step is STALL:
            self._peer.over.wait(60)
        elif step is RESET:
            self._wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._wire.close()
        raise _Left

    def _greeting(self) -> str:
        offers = ["peer", *self._peer.offers]
        secure = isinstance(self._wire, ssl.SSLSocket)
        if self._peer.tls is not None and not secure:
            offers.append("STARTTLS")
        if self._peer.accounts or self._peer.accepts is not None:
            offers.append(f"AUTH {' '.join(self._peer.mechanisms)}")
        return "\r\n".join([*(f"250-{offer}" for offer in offers[:-1]), f"250 {offers[-1]}"])

    def _login(self, line: str) -> str:
        _, mechanism, *initial = line.split(" ")
        if mechanism.upper() not in self._peer.mechanisms:
            return "504 5.5.4 no such mechanism"
        match mechanism.upper():
            case "PLAIN":
                _, user, password = _decoded(*(initial or [self._asked("")])).split("\0")
                authenticated = self._peer.accounts.get(user) == password
            case "LOGIN":
                user = _decoded(*(initial or [self._asked("Username:")]))
                authenticated = self._peer.accounts.get(user) == _decoded(self._asked("Password:"))
            case "XOAUTH2" | "OAUTHBEARER":
                response = (initial or [self._asked("")])[0]
                if not self._has_token(mechanism.upper(), _decoded(response)):
                    token = _decoded(response).split("Bearer ")[1].rstrip("\1")
                    return self._peer.refusal.format(response=response, token=token)
                authenticated = True
            case _:
                user, _, digest = _decoded(self._asked("<1@peer>")).partition(" ")
                secret = self._peer.accounts.get(user, "").encode()
                authenticated = hmac.new(secret, b"<1@peer>", "md5").hexdigest() == digest
        return "235 2.7.0 welcome" if authenticated else self._peer.refusal

    def _has_token(self, mechanism: str, response: str) -> bool:
        """A refusal is a challenge first, which is answered before there is a reply (RFC 7628, section 3.2.2)."""
        assert self._peer.accepts is not None
        *names, token, last, end = response.split("\1")
        assert (last, end, token[:12]) == ("", "", "auth=Bearer "), response
        assert names[0].startswith("user=" if mechanism == "XOAUTH2" else "n,a="), response
        accepted = self._peer.accepts(token.removeprefix("auth=Bearer "))
        if not accepted:
            said = _decoded(self._asked('{"status":"invalid_token","schemes":"bearer","scope":"mail"}'))
            assert said == ("" if mechanism == "XOAUTH2" else "\1")
        return accepted

    def _asked(self, challenge: str) -> str:
        self._say(f"334 {base64.b64encode(challenge.encode()).decode()}")
        return self._line().decode()

    def _begin_tls(self) -> None:
        assert self._peer.tls is not None
        try:
            self._wire = self._peer.tls.wrap_socket(self._wire, server_side=True)
        except (ssl.SSLError, OSError):
            raise _Left from None

    # -- the wire --------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._wire.sendall(text.encode() + b"\r\n")

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._receive()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _receive(self) -> None:
        chunk = self._wire.recv(65536)
        if not chunk:
            raise _Left
        self._buffer += chunk


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def _path(line: str) -> tuple[str, str]:
    """The address and the options of MAIL or RCPT."""
    inner, _, options = line.partition("<")[2].rpartition(">")
    return inner, options.strip()
