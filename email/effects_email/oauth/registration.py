"""How a transport gets its tokens, as its URL says; tokens that another program renews; and a token as SASL carries it.

    smtp+starttls+oauth://user@host?provider=microsoft&tenant=ID&client_id=ID                 refresh tokens
    smtp+starttls+oauth://user:CLIENT_SECRET@host?…&grant=client                              client credentials
    smtp+starttls+oauth://user@host?…&grant=client&assertion_key=FILE&assertion_certificate=FILE
    smtp+starttls+oauth://user@host?provider=google&grant=service_account&account_file=FILE   Google's service accounts
    smtp+starttls+oauth+file://user@host?path=FILE                                            a file that others renew
    smtp+starttls+oauth+command://user@host?run=COMMAND                                       what a command prints

A provider that is not in the table is given by `token_url`, `scope` and, for `effects email login`, `device_url`.

A file that holds a token and a command that prints one cannot hold up a worker.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import select
import shlex
import signal
import ssl
import stat
import subprocess
import time
from base64 import b64encode
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from effects.extend.text import is_printable
from effects_email.transport.url import TransportURL, verifying_tls

FailureKind: TypeAlias = Literal["login_needed", "config", "unavailable"]
TOKEN_CHARS_MAX = 16_384
_TOKEN = re.compile(r"[!-~]+")
MECHANISMS = ("OAUTHBEARER", "XOAUTH2")  # the best first
Grant: TypeAlias = Literal["refresh", "client", "service_account"]
GRANTS = ("refresh", "client", "service_account")
OPTIONS = (
    "provider", "tenant", "client_id", "grant", "token_url", "device_url", "scope", "assertion_key",
    "assertion_certificate", "account_file", "token_ca_file", "token_network", "path", "run",
)  # fmt: skip
COMMAND_SECONDS = 30.0
FILE_BYTES_MAX = 64 * 1024


def is_token(text: str) -> bool:
    """Visible ASCII (RFC 6750, section 2.1), as a SASL response needs it."""
    return len(text) <= TOKEN_CHARS_MAX and _TOKEN.fullmatch(text) is not None


class Tokens(msgspec.Struct, frozen=True):
    """What a token service gives. `refresh`: None if it gives no new one."""

    access: str
    refresh: str | None
    seconds: float

    def __repr__(self) -> str:
        return f"Tokens(seconds={self.seconds:g})"


class TokenFailure(msgspec.Struct, frozen=True):
    """Why no token can be had. `code` is one of the standards' or ours, `reason` safe to show."""

    kind: FailureKind
    code: str
    reason: str
    after_seconds: float | None = None


class TokenUnavailable(Exception):
    """No access token can be had now; `failure` has the reason."""

    def __init__(self, failure: TokenFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(frozen=True)
class Bearer:
    """An access token of a user.

    Args:
        version: of the stored row; 0 for a token that others renew.
        replaced_refused: it was got because a server had refused the one before, and has not been accepted yet.
    """

    user: str
    token: str = field(repr=False)
    version: int = 0
    replaced_refused: bool = False

    def mechanisms(self, *, in_tls: bool) -> tuple[str, ...]:
        """Those that can carry it."""
        return MECHANISMS

    def exchange(self, mechanism: str) -> Generator[bytes, bytes, None]:
        """The responses: the token, and after a challenge, which tells of a refusal, what lets the server say no."""
        if mechanism == "XOAUTH2":
            yield f"user={self.user}\1auth=Bearer {self.token}\1\1".encode()
            yield b""
        else:
            name = self.user.replace("=", "=3D").replace(",", "=2C")
            yield f"n,a={name},\1auth=Bearer {self.token}\1\1".encode()
            yield b"\1"

    def secrets(self) -> list[str]:
        """What a server may repeat of what it was told."""
        responses = [b64encode(next(self.exchange(mechanism))).decode() for mechanism in MECHANISMS]
        return [*responses, self.token]


@dataclass(frozen=True)
class TokenProvider:
    """The endpoints of a known authorization server; `{tenant}` is filled in."""

    token_url: str
    device_url: str
    scope: str
    client_scope: str  # of client credentials
    tenant: str | None  # default; None where there are none


PROVIDERS = {
    "microsoft": TokenProvider(
        token_url="https://login.microsoftonline.com/{tenant}/oauth2/v2.0/token",  # noqa: S106 - an address
        device_url="https://login.microsoftonline.com/{tenant}/oauth2/v2.0/devicecode",
        scope=("offline_access https://outlook.office.com/SMTP.Send https://outlook.office.com/IMAP.AccessAsUser.All"),
        client_scope="https://outlook.office365.com/.default",
        tenant="organizations",
    ),
    # https://developers.google.com/workspace/gmail/imap/xoauth2-protocol; no device flow for this scope
    "google": TokenProvider(
        token_url="https://oauth2.googleapis.com/token",  # noqa: S106 - an address
        device_url="",
        scope="https://mail.google.com/",
        client_scope="https://mail.google.com/",
        tenant=None,
    ),
}


@dataclass(frozen=True, kw_only=True)
class OAuthClient:
    """Where and as whom tokens are asked for.

    Args:
        user: the mailbox, as the mail server knows it.
        secret: of the client; None for a public one, and for one that signs an assertion.
        assertion_key, assertion_certificate: PEM files with which the client signs instead of sending a secret.
        account_file: a Google service account's JSON file.
        ca_file: PEM file of a private certificate authority of the token service.
        private_network: whether the token service may have a private address.
    """

    user: str
    grant: Grant
    token_url: str
    device_url: str
    scope: str
    client_id: str
    secret: str | None = field(default=None, repr=False)
    assertion_key: str | None = None
    assertion_certificate: str | None = None
    account_file: str | None = None
    ca_file: str | None = None
    private_network: bool = False

    @property
    def digest(self) -> str:
        """The same for the same account of the same client at the same service: whose tokens a row has."""
        parts = (self.token_url, self.client_id, self.user, self.grant, self.scope)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    @property
    def needs_login(self) -> bool:
        """Whether a person must have logged in before."""
        return self.grant == "refresh"

    @property
    def signs(self) -> bool:
        """Whether it signs assertions, which are good for minutes by the service's clock."""
        return self.grant == "service_account" or self.assertion_key is not None

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """For all requests to the token service."""
        return verifying_tls(self.ca_file)


@dataclass(frozen=True)
class TokenFile:
    """A file that holds an access token, renewed by others; read for each session."""

    user: str
    path: str


@dataclass(frozen=True)
class TokenCommand:
    """A command that prints an access token; run without a shell, for at most 30 s."""

    user: str
    arguments: tuple[str, ...] = field(repr=False)


TokenSource: TypeAlias = OAuthClient | TokenFile | TokenCommand


def source_of(url: TransportURL, kind: str) -> TokenSource:
    """Read the source of tokens from a URL whose scheme ends in `+oauth`, `+oauth+file` or `+oauth+command`.

    Args:
        kind: `oauth`, `oauth+file` or `oauth+command`.

    Raises:
        ConfigurationError: what is missing or does not fit, and how to mend it.
    """
    if not url.user:
        url.refuse("names no user; give the mailbox: user%40shop.example@")
    if not is_printable(url.user):
        url.refuse("names a user with a control character, which separates the fields of a login")
    if kind == "oauth+file":
        return TokenFile(url.user, _required(url, "path", "the file that holds the access token"))
    if kind == "oauth+command":
        words = _words(url, _required(url, "run", "the command that prints the access token"))
        return TokenCommand(url.user, tuple(words))
    return _client_of(url, url.user)


def _client_of(url: TransportURL, user: str) -> OAuthClient:
    grant = url.option("grant", "refresh", among=GRANTS)
    provider = PROVIDERS.get(url.option("provider", among=tuple(PROVIDERS)) or "")
    tenant = url.option("tenant", provider.tenant if provider is not None else None)
    usual_scope = "" if provider is None else provider.client_scope if grant == "client" else provider.scope
    client = OAuthClient(
        user=user,
        grant=grant,  # type: ignore[arg-type]
        token_url=url.option("token_url", _filled(provider.token_url if provider else "", tenant)) or "",
        device_url=url.option("device_url", _filled(provider.device_url if provider else "", tenant)) or "",
        scope=url.option("scope", usual_scope) or "",
        client_id=url.option("client_id", "") or "",
        secret=url.password or None,
        assertion_key=url.option("assertion_key"),
        assertion_certificate=url.option("assertion_certificate"),
        account_file=url.option("account_file"),
        ca_file=url.ca_file("token_ca_file"),
        private_network=url.option("token_network", "public", among=("public", "private")) == "private",
    )
    _check(url, client)
    return client


def _filled(template: str, tenant: str | None) -> str:
    return template.replace("{tenant}", tenant or "")


def _check(url: TransportURL, client: OAuthClient) -> None:
    if not client.token_url:
        url.refuse(f"names no token service: give provider={' or provider='.join(PROVIDERS)}, or token_url=https://…")
    for name, address in (("token_url", client.token_url), ("device_url", client.device_url)):
        if address and not _is_https(address):
            url.refuse(f"has an option {name} that is not an https URL, in ASCII and without a user")
    if client.grant == "service_account":
        if client.account_file is None:
            url.refuse("has grant=service_account without account_file=FILE, the account's JSON file")
        return
    if not client.client_id:
        url.refuse("names no client_id, the id under which this application is registered at the token service")
    if not client.scope:
        url.refuse("names no scope, which the token service needs")
    if client.grant == "client" and client.secret is None and client.assertion_key is None:
        url.refuse(
            "has grant=client without a secret: give it as the URL's password, or assertion_key=FILE and "
            "assertion_certificate=FILE"
        )
    if (client.assertion_key is None) is not (client.assertion_certificate is None):
        url.refuse("has one of assertion_key and assertion_certificate; give both")


def _is_https(address: str) -> bool:
    try:
        parts = urlsplit(address)
        in_range = parts.port != 0
    except ValueError:
        return False
    is_visible = address.isascii() and is_printable(address) and " " not in address
    return in_range and is_visible and parts.scheme == "https" and bool(parts.hostname) and parts.username is None


def _words(url: TransportURL, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        url.refuse("has an option run with a quotation mark that is not closed")
    if not words:
        url.refuse("has an option run that names no command")
    return words


def _required(url: TransportURL, name: str, what: str) -> str:
    value = url.option(name)
    if not value or "\0" in value:
        url.refuse(f"lacks the option {name}, {what}")
    return value


def read_small(path: str) -> bytes:
    """Read a regular file of at most 64 KiB. A pipe, at which a read may wait, and a device are refused.

    Raises:
        OSError: it cannot be read, or it is something else.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"it is longer than {FILE_BYTES_MAX} bytes")
    return data


def external_token(source: TokenFile | TokenCommand, seconds: float) -> str:
    """The access token that the file holds or the command prints, which is waited for so long, and at most 30 s.

    Raises:
        TokenUnavailable: it gives no token.
    """
    if isinstance(source, TokenCommand):
        return _token(_printed(source, min(seconds, COMMAND_SECONDS)), "the command's output")
    try:
        return _token(read_small(source.path), source.path)
    except OSError as error:
        raise _unavailable(
            "config", "oauth_file", f"the file of the access token cannot be read: {error.strerror}"
        ) from None


def _printed(source: TokenCommand, seconds: float) -> bytes:
    """What it prints on standard output. Its standard error is dropped: it may hold anything."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own command
            source.arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        reason = f"the command for the access token cannot be started: {error.strerror}"
        raise _unavailable("config", "oauth_command", reason) from None
    with process:
        try:
            data = _output(process, time.monotonic() + seconds)
        except (TimeoutError, subprocess.TimeoutExpired):
            reason = f"the command for the access token has not ended within {seconds:.0f} s"
            raise _unavailable("unavailable", "oauth_command", reason) from None
        finally:
            if process.returncode is None:  # not reaped, so the number is still its group's
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode > 0:
        reason = f"the command for the access token exits with {process.returncode}"
        raise _unavailable("unavailable", "oauth_command", reason)
    return data


def _output(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """All of it, and the process has ended; or more than a token can have."""
    assert process.stdout is not None
    number, data = process.stdout.fileno(), b""
    poller = select.poll()
    poller.register(number, select.POLLIN)
    while len(data) <= TOKEN_CHARS_MAX:
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        piece = os.read(number, TOKEN_CHARS_MAX)
        if not piece:
            process.wait(max(0.0, deadline - time.monotonic()))
            break
        data += piece
    return data


def _token(data: bytes, where: str) -> str:
    text = data.decode("ascii", errors="replace").strip()
    if not is_token(text):
        raise _unavailable("config", "oauth_token", f"{where} holds no access token")
    return text


def _unavailable(kind: FailureKind, code: str, reason: str) -> TokenUnavailable:
    return TokenUnavailable(TokenFailure(kind, code, reason))
