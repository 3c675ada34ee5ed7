"""Reports in a mailbox that IMAP serves: what is unread is taken, and flagged as read when it is on record.

imaps://user:password@mail.example.com/Bounces          TLS, verified; imap+starttls:// likewise
imap://localhost/INBOX                                  in clear, to this machine only
"""

from __future__ import annotations

import imaplib
import ssl
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from effects import ConfigurationError
from effects_email.errors import MailboxUnavailable
from effects_email.returned.parts import BYTES_MAX

TIMEOUT_SECONDS = 30.0
_SCHEMES = ("imaps", "imap+starttls", "imap")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class ImapMailbox:
    """`with ImapMailbox(url) as mailbox: for number, data in mailbox.unread(): …`.

    Args:
        url: as above; user and password percent-encoded. Default mailbox INBOX.
        ca_file: a private certificate authority, PEM; default the system's.

    Raises:
        ConfigurationError: the URL is wrong; the message does not quote it.
        MailboxUnavailable: on entry and later.
    """

    def __init__(self, url: str, *, ca_file: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise ConfigurationError("the URL of the mailbox has no host or port that can be read") from None
        self._scheme = parts.scheme.lower()
        if self._scheme not in _SCHEMES or not self._host:
            raise ConfigurationError(
                "the URL of a mailbox is imaps://user:password@host/MAILBOX, or imap+starttls://, or imap:// on this "
                "machine"
            )
        if self._scheme == "imap" and self._host not in _LOCAL:
            raise ConfigurationError(
                "imap:// is in clear, and for this machine only: give imaps:// or imap+starttls://"
            )
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._mailbox = unquote(parts.path.strip("/")) or "INBOX"
        if any(ord(letter) < 32 or letter in '"\\' for letter in self._mailbox):
            raise ConfigurationError("the URL of the mailbox names one with a quote or a control character")
        if not f"{self._user}{self._password}{self._mailbox}".isascii():
            raise ConfigurationError(
                "the URL of the mailbox has a user, a password or a mailbox beyond ASCII, which IMAP does not carry; a "
                "mailbox is written in modified UTF-7 (RFC 3501, 5.1.3), such as Zur&APw-ck"
            )
        self._ca_file = ca_file
        self._server: imaplib.IMAP4 | None = None

    def __repr__(self) -> str:
        return f"ImapMailbox({self._scheme}://{self._host}/{self._mailbox})"

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise MailboxUnavailable(f"{self._host}: its certificate cannot be verified") from None
            if isinstance(error, OSError):
                reason = error.strerror or type(error).__name__
                raise MailboxUnavailable(f"{self._host} cannot be reached: {reason}") from None
            if isinstance(error, imaplib.IMAP4.error):  # its text may quote the login
                raise MailboxUnavailable(f"{self._host} refuses the login or the mailbox") from None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        if self._server is not None:
            with suppress(OSError, imaplib.IMAP4.error):
                self._server.logout()
            with suppress(OSError):
                self._server.shutdown()
            self._server = None

    def unread(self) -> Iterator[tuple[bytes, bytes | None]]:
        """UID and first MiB of each unread message, in the mailbox's order; they stay unread. None where the server
        answers NO: Exchange does so for a message that it cannot convert, and gives the others.
        """
        for uid in self._words("SEARCH", "UNSEEN"):
            status, pieces = self._said("FETCH", uid.decode(), f"(BODY.PEEK[]<0.{BYTES_MAX}>)")
            data = next((piece[1] for piece in pieces if isinstance(piece, tuple)), None)
            if data is not None or status != "OK":
                yield uid, data

    def mark_read(self, uid: bytes) -> None:
        """Flag it as read. A crash before leaves it unread: it is taken again, which changes nothing."""
        self._ask("STORE", uid.decode(), "+FLAGS", r"(\Seen)")

    def _open(self) -> None:
        self._server = self._connected()
        if self._user:
            self._server.login(self._user, self._password)
        self._expect(self._server.select(f'"{self._mailbox}"'), "has no such mailbox")

    def _connected(self) -> imaplib.IMAP4:
        context = ssl.create_default_context(cafile=self._ca_file)
        if self._scheme == "imaps":
            return imaplib.IMAP4_SSL(self._host, self._port or 993, ssl_context=context, timeout=TIMEOUT_SECONDS)
        server = imaplib.IMAP4(self._host, self._port or 143, timeout=TIMEOUT_SECONDS)
        self._server = server  # closed if no session comes of it
        if self._scheme == "imap+starttls":
            if "STARTTLS" not in server.capabilities:
                raise MailboxUnavailable(f"{self._host} does not offer STARTTLS: give imaps://, or ask its operator")
            server.starttls(context)
        return server

    def _words(self, command: str, *arguments: str) -> list[bytes]:
        pieces = self._ask(command, *arguments)
        return pieces[0].split() if pieces and isinstance(pieces[0], bytes) else []

    def _ask(self, command: str, *arguments: str) -> list[Any]:
        return self._expect(self._said(command, *arguments), f"refuses {command}")

    def _said(self, command: str, *arguments: str) -> tuple[str, list[Any]]:
        assert self._server is not None
        try:
            return self._server.uid(command, *arguments)
        except (OSError, imaplib.IMAP4.error):
            raise MailboxUnavailable(f"{self._host} broke off or refuses {command}") from None

    def _expect(self, answer: tuple[str, list[Any]], otherwise: str) -> list[Any]:
        if answer[0] != "OK":
            raise MailboxUnavailable(f"{self._host} {otherwise}")
        return answer[1]
