"""Reports in a mailbox, by IMAP or as a maildir: what is unread is taken, and marked as read when it is on record.

imaps://user:password@mail.example.com/Bounces          TLS, verified; imap+starttls:// likewise
imaps+oauth://user@mail.example.com/Bounces             by the access token of the mail transport `default`
imaps+oauth://user@mail.example.com/?transport=NAME     of another transport; imap+starttls+oauth:// likewise
imap://localhost/INBOX                                  in clear, to this machine only
"""

from __future__ import annotations

import binascii
import imaplib
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from effects import ConfigurationError
from effects.extend.text import is_printable
from effects_email.errors import MailboxUnavailable
from effects_email.oauth.keeper import TokenLogin
from effects_email.oauth.registration import Bearer, TokenUnavailable
from effects_email.returned.parts import BYTES_MAX
from effects_email.settings import DEFAULT_TRANSPORT
from effects_email.transport.smtp.server import listed_mechanisms
from effects_email.transport.url import verifying_tls

TIMEOUT_SECONDS = 30.0
_SCHEMES = ("imaps", "imap+starttls", "imap")
_TOKENS = "+oauth"
_LOCAL = ("localhost", "127.0.0.1", "::1")


class ImapMailbox:
    """`with ImapMailbox(url) as mailbox: for number, data in mailbox.unread(): …`.

    Args:
        url: as above; user and password percent-encoded. Default mailbox INBOX.
        ca_file: a private certificate authority, PEM; default the system's.
        login: gives the login of a mail transport by its name; needed by a URL with `+oauth`.

    Raises:
        ConfigurationError: the URL is wrong; the message does not quote it.
        MailboxUnavailable: on entry and later.
    """

    def __init__(
        self, url: str, *, ca_file: str | None = None, login: Callable[[str], TokenLogin] | None = None
    ) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise ConfigurationError("the URL of the mailbox has no host or port that can be read") from None
        self._scheme = parts.scheme.lower().removesuffix(_TOKENS)
        if self._scheme not in _SCHEMES or not self._host:
            raise ConfigurationError(
                "the URL of a mailbox is imaps://user:password@host/MAILBOX, or imap+starttls://, or imap:// on this "
                "machine"
            )
        if self._scheme == "imap" and self._host not in _LOCAL:
            raise ConfigurationError(
                "imap:// is in clear, and for this machine only: give imaps:// or imap+starttls://"
            )
        self._login = _login_of(parts, login) if parts.scheme.lower().endswith(_TOKENS) else None
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._mailbox = unquote(parts.path.strip("/")) or "INBOX"
        if any(ord(letter) < 32 or letter in '"\\' for letter in self._mailbox):
            raise ConfigurationError("the URL of the mailbox names one with a quote or a control character")
        if not is_printable(self._user):
            raise ConfigurationError("the URL of the mailbox names a user with a control character")
        if not f"{self._user}{self._password}{self._mailbox}".isascii():
            raise ConfigurationError(
                "the URL of the mailbox has a user, a password or a mailbox beyond ASCII, which IMAP does not carry; a "
                "mailbox is written in modified UTF-7 (RFC 3501, 5.1.3), such as Zur&APw-ck"
            )
        self._ca_file = ca_file
        self._server: imaplib.IMAP4 | None = None

    @property
    def name(self) -> str:
        """Its address, without the login."""
        return f"{self._scheme}://{self._host}/{self._mailbox}"

    def __repr__(self) -> str:
        return f"ImapMailbox({self.name})"

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise MailboxUnavailable(f"{self._host}: its certificate cannot be verified") from None
            if isinstance(error, TokenUnavailable):
                raise MailboxUnavailable(f"{self._host}: {error.failure.reason} [{error.failure.code}]") from None
            if isinstance(error, OSError):
                reason = error.strerror or type(error).__name__
                raise MailboxUnavailable(f"{self._host} cannot be reached: {reason}") from None
            if isinstance(error, imaplib.IMAP4.abort | binascii.Error):
                raise MailboxUnavailable(f"{self._host} broke off the login or answers what is not IMAP") from None
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

    def mark_read(self, uid: bytes, *, set_aside: bool = False) -> None:
        r"""Flag it as read, and with `set_aside` as \Flagged. A crash before leaves it unread: it is taken again, which
        changes nothing.
        """
        self._ask("STORE", uid.decode(), "+FLAGS", r"(\Seen \Flagged)" if set_aside else r"(\Seen)")

    def _open(self) -> None:
        bearer = None if self._login is None else self._login.credentials(TIMEOUT_SECONDS)
        self._server = self._connected()
        if self._login is not None and bearer is not None:
            self._log_in(self._login, bearer)
        elif self._user:
            if "LOGINDISABLED" in self._server.capabilities:
                raise MailboxUnavailable(f"{self._host} takes no passwords: it offers {self._offered()}")
            self._server.login(self._user, self._password)
        self._expect(self._server.select(f'"{self._mailbox}"'), "has no such mailbox")

    def _log_in(self, login: TokenLogin, bearer: Bearer) -> None:
        """By a token, and by the next one where the server refuses it and there is another."""
        assert self._server is not None
        try:
            self._authenticate(bearer)
        except imaplib.IMAP4.error as error:
            if isinstance(error, imaplib.IMAP4.abort) or not login.refused(bearer):
                raise
            self.close()
            bearer = login.credentials(TIMEOUT_SECONDS)
            self._server = self._connected()
            self._authenticate(bearer)
        login.accepted(bearer)

    def _authenticate(self, bearer: Bearer) -> None:
        """As the mailbox of the URL; the token's own user may have access to several."""
        assert self._server is not None
        mechanism = next((name for name in bearer.mechanisms(in_tls=True) if name in self._mechanisms()), None)
        if mechanism is None:
            raise MailboxUnavailable(f"{self._host} takes no access tokens: it offers {self._offered()}")
        exchange = replace(bearer, user=self._user or bearer.user).exchange(mechanism)
        self._server.authenticate(mechanism, lambda challenge: next(exchange, None))

    def _mechanisms(self) -> list[str]:
        assert self._server is not None
        return [name.removeprefix("AUTH=") for name in self._server.capabilities if name.startswith("AUTH=")]

    def _offered(self) -> str:
        return listed_mechanisms(self._mechanisms())

    def _connected(self) -> imaplib.IMAP4:
        context = verifying_tls(self._ca_file)
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


def _login_of(parts: SplitResult, login: Callable[[str], TokenLogin] | None) -> TokenLogin:
    options = dict(parse_qsl(parts.query))
    transport = options.pop("transport", DEFAULT_TRANSPORT)
    if options or parts.password is not None or login is None:
        raise ConfigurationError(
            "the URL of a mailbox that takes access tokens is imaps+oauth://user@host/MAILBOX, with ?transport=NAME "
            "for another mail transport than `default`"
        )
    return login(transport)


class ReportMaildir:
    """
    Args:
        folder: a maildir, with `new` and `cur` in it.

    Raises:
        ConfigurationError: it is not a maildir.
    """

    def __init__(self, folder: Path) -> None:
        self._new, self._cur = folder / "new", folder / "cur"
        if not self._new.is_dir() or not self._cur.is_dir():
            raise ConfigurationError(f"{folder} is no maildir: it has no folders new and cur")

    def unread(self) -> Iterator[tuple[Path, bytes | None]]:
        """Each unread message, oldest first, with its first MiB; None where it cannot be read, such as a file of
        another user. One that is gone meanwhile is skipped.
        """
        for file in sorted(self._new.iterdir()):
            try:
                with file.open("rb") as stream:
                    data: bytes | None = stream.read(BYTES_MAX)
            except FileNotFoundError:
                continue
            except OSError:
                data = None
            yield file, data

    def mark_read(self, file: Path, *, set_aside: bool = False) -> None:
        """Move it to `cur/` with the flag S, and with `set_aside` F, unless another run has. After a crash before that
        it is taken again, which changes nothing.
        """
        with suppress(FileNotFoundError):
            file.replace(self._cur / f"{file.name.partition(':')[0]}:2,{'FS' if set_aside else 'S'}")
