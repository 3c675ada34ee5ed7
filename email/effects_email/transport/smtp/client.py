"""A session with an SMTP server: smtplib's EHLO, STARTTLS and AUTH, over reads and writes that always end.

smtplib waits as long as a server drips and reads as many lines as one sends, and it gives every lost connection the
same exception. Here each wait is clipped to the try's deadline, a reply is bounded, and the stage is known.
"""

from __future__ import annotations

import re
import select
import smtplib
import socket
import ssl
import time
from contextlib import suppress
from typing import Any

from effects.extend import point, whole_number
from effects_email.transport.base import Reply, Stage
from effects_email.transport.progress import SendProgress
from effects_email.transport.replies.faults import Garbage
from effects_email.transport.replies.verdicts import reply_of
from effects_email.transport.smtp.connecting import connect, own_name
from effects_email.transport.smtp.server import Server

LINE_BYTES_MAX = 4096  # RFC 5321 has 512; real servers write more
_REPLY = re.compile(rb"[2-5][0-9]{2}(?:[ -]|\Z)")
LINES_MAX = 128
_RECEIVE_BYTES = 65536
_QUIT_SECONDS = 1.0
_UNDER_TLS = ("PLAIN", "LOGIN", "CRAM-MD5")
_IN_CLEAR = ("CRAM-MD5", "PLAIN", "LOGIN")
_NO_SUCH_MECHANISM = 504  # RFC 4954: offered, and not there after all
WIRE_ERRORS = (OSError, smtplib.SMTPException, ValueError)


class Client(smtplib.SMTP):
    """An open session: greeted, in TLS where that is asked for, logged in.

    `progress` is that of the message under way; whoever's turn it is sets it.

    Raises:
        OSError, smtplib.SMTPException, ValueError: there is no session; `progress.stage` tells how far it came.
    """

    def __init__(self, server: Server, progress: SendProgress) -> None:
        self.progress = progress
        self.messages = 0
        self.dirty = False  # a transaction may be open on the server's side: RSET before the next
        self.opened_at = self.idle_since = time.monotonic()
        self.answer_seconds = 0.0  # the server's last answer to a dot took so long
        self.sock: Any = None
        self.peer = ""
        self.tls: str | None = None
        self.offers_pipelining = self.offers_8bit = self.offers_utf8 = self.offers_size = False
        self.size_max = 0  # 0: the server names none
        self._server = server
        self._buffer = b""
        try:
            super().__init__(server.host, server.port, local_hostname="localhost")
            self._greet()
        except BaseException:
            self.close()
            raise

    # -- opening ---------------------------------------------------------------------------------------------

    def _get_socket(self, host: str, port: int, timeout: object) -> socket.socket:
        """What SMTP_SSL overrides as well. Tries each address of the name while there is time."""
        self.progress.enter("connect")
        sock = connect(host, port, self.progress)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = sock.getpeername()
        self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        if self._server.security == "tls":
            self.progress.enter("tls")
            sock.settimeout(self.progress.remaining())
            try:
                sock = self._server.tls.wrap_socket(sock, server_hostname=host)
            except BaseException:
                sock.close()
                raise
        self.progress.enter("banner")
        return sock

    def _greet(self) -> None:
        self.local_hostname = self._server.helo or own_name(self.sock)
        self._hello()
        if self._server.security == "starttls":
            self.progress.enter("starttls")
            self.starttls(context=self._server.tls)
            if self._buffer:  # sent in clear, to be taken for an answer under TLS
                raise Garbage("something came in clear after STARTTLS")
            self._hello()
        if isinstance(self.sock, ssl.SSLSocket):
            cipher = self.sock.cipher()
            self.tls = f"{self.sock.version()} {cipher[0] if cipher else ''}".strip()
        if self._server.user is not None and self._server.password is not None:
            self.progress.enter("auth")
            self._log_in(self._server.user, self._server.password)
        self._note_offers()

    def _log_in(self, user: str, password: str) -> None:
        """By one mechanism. smtplib's own `login` tries them all, and a wrong password counts three times."""
        offered = self.esmtp_features.get("auth", "").upper().split()
        known_mechanisms = _UNDER_TLS if self.in_tls else _IN_CLEAR
        mechanisms = [name for name in known_mechanisms if name in offered]
        if not mechanisms:
            raise smtplib.SMTPNotSupportedError("no mechanism that we know")
        self.user, self.password = user, password  # where smtplib's mechanisms look
        for mechanism in mechanisms:
            try:
                self.auth(mechanism, getattr(self, f"auth_{mechanism.lower().replace('-', '_')}"))
                break
            except smtplib.SMTPAuthenticationError as error:
                if error.smtp_code != _NO_SUCH_MECHANISM or mechanism == mechanisms[-1]:
                    raise
        del self.user, self.password

    def _hello(self) -> None:
        self.progress.enter("ehlo")
        code, text = self.ehlo()
        if code != 250:
            raise smtplib.SMTPHeloError(code, text)

    def _note_offers(self) -> None:
        self.offers_pipelining = self.has_extn("pipelining")
        self.offers_8bit = self.has_extn("8bitmime")
        self.offers_utf8 = self.has_extn("smtputf8")
        self.offers_size = self.has_extn("size")
        self.size_max = whole_number(self.esmtp_features.get("size", ""), 15) or 0

    # -- what smtplib calls ----------------------------------------------------------------------------------

    def send(self, s: Any) -> None:
        self.write(s.encode("ascii") if isinstance(s, str) else bytes(s))

    def getreply(self) -> tuple[int, bytes]:
        code, lines = self._reply()
        return code, b"\n".join(lines)

    # -- what our own driver calls ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send all of it within the stage's time."""
        if self.sock is None:
            raise smtplib.SMTPServerDisconnected("not connected")
        self.sock.settimeout(self.progress.remaining())
        self.sock.sendall(data)

    def read(self, stage: Stage) -> Reply:
        """The next reply, which is that of this stage."""
        self.progress.enter(stage)
        code, lines = self._reply()
        return reply_of(stage, code, _text(lines))

    @property
    def has_unread(self) -> bool:
        """Whether the server sent something unasked."""
        return bool(self._buffer)

    @property
    def is_silent(self) -> bool:
        """Whether nothing is unread, not in the socket either: a reply too many would be taken for the next one's."""
        if self._buffer or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return False
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return not poller.poll(0)

    @property
    def in_tls(self) -> bool:
        return self.tls is not None

    def command(self, text: bytes, stage: Stage) -> Reply:
        """One command and its reply."""
        code, lines = self._exchange(text, stage)
        return reply_of(stage, code, _text(lines))

    def _exchange(self, text: bytes, stage: Stage) -> tuple[int, list[bytes]]:
        self.progress.enter(stage)
        self.write(text)
        return self._reply()

    def begin_again(self) -> tuple[bool, int]:
        """Whether the next reply is that of an EHLO, and its code.

        EHLO ends a transaction as RSET does (RFC 5321, 4.1.4), and its reply can be no other command's: it lists
        PIPELINING. What a "250 ok" answers cannot be told while the rest may be on its way.
        """
        code, lines = self._exchange(f"EHLO {self.local_hostname}\r\n".encode("ascii"), "ehlo")
        return code == 250 and any(line.upper().strip() == b"PIPELINING" for line in lines), code

    def last_word(self, seconds: float) -> Reply | None:
        """The server's last reply before the connection broke, if any."""
        try:
            self.progress.allow(seconds)
            code, lines = self._reply()
        except WIRE_ERRORS:
            return None
        return reply_of("body", code, _text(lines))

    def still_there(self, progress: SendProgress) -> bool:
        """Ask the server whether the session still serves; RSET, where a transaction may be open."""
        self.progress = progress
        try:
            reply = self.command(b"RSET\r\n" if self.dirty else b"NOOP\r\n", "ehlo")
        except WIRE_ERRORS:
            return False
        self.dirty = False
        return reply.code == 250 and not self.has_unread

    def quit_quietly(self) -> None:
        """Say QUIT, wait for nothing, close. Whatever happens, no message depends on it any more."""
        with suppress(Exception):
            point("email.quit")
            self.sock.settimeout(_QUIT_SECONDS)
            self.sock.sendall(b"QUIT\r\n")
        with suppress(OSError):
            self.close()

    # -- lines -----------------------------------------------------------------------------------------------

    def _reply(self) -> tuple[int, list[bytes]]:
        """Code and the texts of all lines; RFC 5321, section 4.2.

        Raises:
            Garbage: no reply, or one of more than 128 lines or with a line of more than 4,096 bytes.
        """
        first = self._line()
        code, texts = _code(first), [first[4:]]
        line = first
        while line[3:4] == b"-":
            if len(texts) >= LINES_MAX:
                raise Garbage("a reply of too many lines")
            line = self._line()
            if _code(line) != code:
                raise Garbage("a reply with two codes")
            texts.append(line[4:])
        return code, texts

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > LINE_BYTES_MAX:
                raise Garbage("a line without an end")
            self.sock.settimeout(self.progress.remaining())
            chunk = self.sock.recv(_RECEIVE_BYTES)
            if not chunk:
                raise smtplib.SMTPServerDisconnected("closed")
            self._buffer += chunk
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        if len(line) > LINE_BYTES_MAX:
            raise Garbage("a line that is too long")
        return line.rstrip(b"\r")


def _code(line: bytes) -> int:
    if not _REPLY.match(line):
        raise Garbage("no reply code")
    return int(line[:3])


def _text(lines: list[bytes]) -> str:
    return b"\n".join(lines).decode("utf-8", errors="backslashreplace").strip()
