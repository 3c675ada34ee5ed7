"""A session with an SMTP server: smtplib's EHLO and STARTTLS, over reads and writes that always end.

smtplib waits as long as a server drips and reads as many lines as one sends, and it gives every lost connection the
same exception. Here each wait is clipped to the try's deadline, a reply is bounded, and the stage is known.
"""

from __future__ import annotations

import queue
import re
import select
import smtplib
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from effects.extend.http import check_network, is_address
from effects.extend.process import point
from effects.extend.text import redact, whole_number
from effects_email.transport.base import Reply, Stage
from effects_email.transport.replies.codes import Garbage
from effects_email.transport.replies.verdicts import reply_of
from effects_email.transport.smtp.server import Credentials, Login, LoginRenewed, SendProgress, Server, log_in

LINE_BYTES_MAX = 4096  # RFC 5321 has 512; real servers write more
_REPLY = re.compile(rb"[2-5][0-9]{2}(?:[ -]|\Z)")
LINES_MAX = 128
_RECEIVE_BYTES = 65536
_QUIT_SECONDS = 1.0
_NO_EHLO = (500, 501, 502, 504)  # RFC 5321, section 4.1.4; a 550 or 554 refuses us, not the command
WIRE_ERRORS = (OSError, smtplib.SMTPException, ValueError)


def own_name(sock: socket.socket) -> str:
    """What to call ourselves: this machine's name, if it has a domain, else its address as a literal of RFC 5321.

    No lookup: asking the resolver for our own name can take minutes.
    """
    name = socket.gethostname()
    if "." in name.strip("."):
        return name
    address = sock.getsockname()[0].partition("%")[0]
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"


def connect(host: str, port: int, progress: SendProgress) -> socket.socket:
    """To the first address of the host that answers. Each may take its share of the time that is left, so that those
    behind one that is silent (IPv6 that leads nowhere, say) are tried as well.

    Raises:
        OSError: none did, or the stage's time is over.
        NetworkRefused: a test admits no connection to this host.
    """
    check_network(host)
    failure: OSError | None = None
    addresses = _addresses(host, port, progress)
    for number, (family, address) in enumerate(addresses):
        try:
            return _connected(family, address, progress.remaining() / (len(addresses) - number))
        except OSError as error:
            failure = error
    raise failure or socket.gaierror("no address")


def _connected(family: int, address: Any, seconds: float) -> socket.socket:
    """OSError also where this machine has no such family: a kernel without IPv6."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _addresses(host: str, port: int, progress: SendProgress) -> list[tuple[int, Any]]:
    """In the resolver's order. It is asked in its own thread, because it knows no deadline."""
    if is_address(host):
        return [(answer[0], answer[4]) for answer in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else socket.gaierror("no host name"))

    threading.Thread(target=ask, name="effects-email-resolve", daemon=True).start()
    try:
        resolved = answers.get(timeout=progress.remaining())
    except queue.Empty:
        raise socket.gaierror("no answer from the resolver in time") from None
    if isinstance(resolved, OSError):
        raise resolved
    return [(answer[0], answer[4]) for answer in resolved]


class Client(smtplib.SMTP):
    """An open session: greeted, in TLS where that is asked for, logged in.

    `progress` is that of the message under way; whoever's turn it is sets it.

    Raises:
        OSError, smtplib.SMTPException, ValueError: there is no session; `progress.stage` tells how far it came.
        TokenUnavailable: it logs in by a token, and no token can be had.
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
        progress.enter("auth")  # a token may have to be renewed, and no connection waits for that
        credentials = None if server.login is None else server.login.credentials(progress.remaining())
        try:
            super().__init__(server.host, server.port, local_hostname="localhost")
            self._greet(credentials)
        except BaseException as error:
            self.close()
            if isinstance(error, smtplib.SMTPResponseException) and credentials is not None:
                words = error.smtp_error if isinstance(error.smtp_error, bytes) else error.smtp_error.encode()
                error.smtp_error = redact(_text([words]), credentials.secrets())
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

    def _greet(self, credentials: Credentials | None) -> None:
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
        if self._server.login is not None and credentials is not None:
            self.progress.enter("auth")
            self._log_in(self._server.login, credentials)
        self._note_offers()

    def _log_in(self, login: Login, credentials: Credentials) -> None:
        offered = self.esmtp_features.get("auth", "").upper().split()
        try:
            log_in(self._ask, credentials, offered, in_tls=self.in_tls)
        except smtplib.SMTPAuthenticationError as error:
            if error.smtp_code >= 500 and login.refused(credentials):  # a 4yz says nothing of the token (RFC 4954)
                raise LoginRenewed("the token was refused") from None  # its text may repeat the token
            raise
        login.accepted(credentials)

    def _hello(self) -> None:
        """EHLO, or HELO where the server does not know it: then it offers nothing (RFC 5321, section 3.2)."""
        self.progress.enter("ehlo")
        code, text = self.ehlo()
        if code in _NO_EHLO:
            code, text = self.helo()
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

    def _ask(self, line: bytes) -> tuple[int, bytes]:
        """A line of the stage under way, and code and text of its reply."""
        self.write(line + b"\r\n")
        return self.getreply()

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
