"""One SMTP server as its URL describes it: where, how safe, how patient, how to log in; how far an attempt has come.

AUTH (RFC 4954) is by one mechanism: PLAIN (RFC 4616), LOGIN, CRAM-MD5 (RFC 2195), and with a token XOAUTH2 or
OAUTHBEARER (RFC 7628). smtplib's own `login` tries every mechanism, so that a wrong password counts three times; it
knows no tokens, and no text beyond ASCII.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
import re
import smtplib
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

from effects_email.oauth.keeper import TokenKeeper, TokenLogin
from effects_email.oauth.registration import OPTIONS as OAUTH_OPTIONS
from effects_email.oauth.registration import OAuthClient, source_of
from effects_email.transport.base import Stage
from effects_email.transport.replies.codes import NoMechanism
from effects_email.transport.url import TransportURL, verifying_tls

LINE_BYTES_MAX = 510  # of a command without its CRLF; a longer initial response waits for a 334 (RFC 4954, section 4)
CHALLENGES_MAX = 5
NAMES_MAX = 12
_NO_SUCH_MECHANISM = 504  # offered, and not there after all
_NAME = re.compile(r"[A-Z0-9_-]{1,20}")  # RFC 4422, section 3.1

Ask: TypeAlias = Callable[[bytes], tuple[int, bytes]]  # a line; code and text of the reply
_Exchange: TypeAlias = Generator[bytes, bytes, None]  # responses to challenges; the first comes unasked if not empty
_PHASES: dict[Stage, str] = {
    "connect": "connect", "banner": "connect", "ehlo": "connect", "tls": "tls", "starttls": "tls", "auth": "auth",
    "mail": "envelope", "rcpt": "envelope", "data": "envelope", "body": "body", "dot": "answer",
}  # fmt: skip
_BEFORE_DOT_SECONDS = 60.0  # at least, where the whole time allows it
Security: TypeAlias = Literal["none", "starttls", "tls"]
_PORTS: dict[Security, int] = {"none": 25, "starttls": 587, "tls": 465}
_OPTIONS = (
    "tls", "ca_file", "helo", "timeout", "connect_timeout", "answer_timeout", "connections", "messages_per_connection",
    "connection_seconds", "idle_seconds",
)  # fmt: skip


class Credentials(Protocol):
    """What a login is made with."""

    def mechanisms(self, *, in_tls: bool) -> tuple[str, ...]:
        """Those that can carry it, the best first."""

    def exchange(self, mechanism: str) -> _Exchange:
        """The responses of this mechanism."""

    def secrets(self) -> list[str]:
        """What a server may repeat of what it was told."""


class Login(Protocol):
    """Where credentials come from."""

    def credentials(self, seconds: float) -> Credentials:
        """Give those that are good now, within so many seconds.

        Raises:
            TokenUnavailable: there are none.
        """

    def refused(self, credentials: Credentials) -> bool:
        """The server refuses them: whether others may do."""

    def accepted(self, credentials: Credentials) -> None:
        """The server has taken them."""


class LoginRenewed(smtplib.SMTPException):
    """The server refused the credentials, and there are others now: nothing was sent, and a new session may do."""


@dataclass(frozen=True)
class Password:
    """A user and a password, of any characters but NUL; sent as UTF-8."""

    user: str
    text: str = field(repr=False)

    def mechanisms(self, *, in_tls: bool) -> tuple[str, ...]:
        """In clear, first the one that does not show it."""
        return ("PLAIN", "LOGIN", "CRAM-MD5") if in_tls else ("CRAM-MD5", "PLAIN", "LOGIN")

    def exchange(self, mechanism: str) -> _Exchange:
        """The responses of this mechanism."""
        user, password = self.user.encode(), self.text.encode()
        if mechanism == "PLAIN":
            yield b"\0" + user + b"\0" + password
        elif mechanism == "LOGIN":
            yield user
            yield password
        else:
            challenge = yield b""
            yield user + b" " + hmac.new(password, challenge, "md5").hexdigest().encode()

    def secrets(self) -> list[str]:
        """What a server may repeat of what it was told."""
        both = f"\0{self.user}\0{self.text}".encode()
        return [b64encode(both).decode(), b64encode(self.text.encode()).decode(), self.text]

    def credentials(self, seconds: float) -> Password:
        """Itself."""
        return self

    def refused(self, credentials: Credentials) -> bool:
        """There is no other."""
        return False

    def accepted(self, credentials: Credentials) -> None:
        """Nothing changes."""


def log_in(ask: Ask, credentials: Credentials, offered: Sequence[str], *, in_tls: bool) -> None:
    """Authenticate by the first mechanism that the server offers and has.

    Raises:
        NoMechanism: it offers none that can carry the credentials.
        smtplib.SMTPAuthenticationError: it refuses them.
    """
    fitting = credentials.mechanisms(in_tls=in_tls)
    mechanisms = [name for name in fitting if name in offered]
    if not mechanisms:
        raise NoMechanism(f"it offers {listed_mechanisms(offered)}; this login needs one of {', '.join(fitting)}")
    for mechanism in mechanisms:
        code, text = _authenticate(ask, mechanism, credentials.exchange(mechanism))
        if code in (235, 503):  # 503: this session is authenticated already
            return
        if code != _NO_SUCH_MECHANISM or mechanism == mechanisms[-1]:
            raise smtplib.SMTPAuthenticationError(code, text)


def _authenticate(ask: Ask, mechanism: str, exchange: _Exchange) -> tuple[int, bytes]:
    initial = next(exchange)
    command, encoded = f"AUTH {mechanism}".encode(), b64encode(initial)
    if initial and len(command) + 1 + len(encoded) <= LINE_BYTES_MAX:
        code, text = ask(command + b" " + encoded)
    else:
        code, text = ask(command)
        if code == 334 and initial:
            code, text = ask(encoded)
    for _ in range(CHALLENGES_MAX):
        if code != 334:
            break
        try:
            response = exchange.send(_challenge(text))
        except StopIteration:  # one more than the mechanism has: RFC 4954 cancels by `*`
            return ask(b"*")
        code, text = ask(b64encode(response))
    return code, text


def _challenge(text: bytes) -> bytes:
    try:
        return b64decode(text)
    except binascii.Error:
        raise ValueError("the server's challenge is not base64") from None


def listed_mechanisms(offered: Sequence[str]) -> str:
    """The names that a server offers, as far as they are names."""
    names = [name for name in offered if _NAME.fullmatch(name)]
    return ", ".join(names[:NAMES_MAX]) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds that a stage may last. After the dot RFC 5321 asks for 10 minutes: shorter waits make duplicates."""

    connect_seconds: float = 15.0
    stage_seconds: float = 30.0
    answer_seconds: float = 600.0


class SendProgress:
    """One try under one deadline. What comes before the dot must leave time for the answer after it.

    Args:
        seconds: for everything.
    """

    __slots__ = ("_before_dot", "_late_at", "_phase", "_since", "_timeouts", "_total", "_until", "phases", "stage")

    def __init__(self, seconds: float, timeouts: Timeouts) -> None:
        now = time.monotonic()
        self.stage: Stage = "connect"
        self.phases: dict[str, float] = {}
        self._timeouts = timeouts
        self._total = now + seconds
        self._before_dot = now + max(min(seconds / 2, _BEFORE_DOT_SECONDS), seconds - timeouts.answer_seconds)
        self._late_at = self._before_dot - min(timeouts.connect_seconds, (self._before_dot - now) / 2)
        self._phase: str | None = None
        self._since = self._until = now

    def enter(self, stage: Stage) -> None:
        """A stage begins, and with it its time."""
        now = self.note(_PHASES[stage])
        self.stage = stage
        if stage == "dot":
            self._until = min(now + self._timeouts.answer_seconds, self._total)
        else:
            limits = self._timeouts
            limit = limits.connect_seconds if stage in ("connect", "tls") else limits.stage_seconds
            self._until = min(now + limit, self._before_dot)

    def allow(self, seconds: float) -> None:
        """Set the limit of the present stage."""
        self._until = time.monotonic() + seconds

    def note(self, phase: str | None) -> float:
        """Another phase begins (None: none does); returns the time."""
        now = time.monotonic()
        if self._phase is not None:
            self.phases[self._phase] = self.phases.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return now

    def in_phase(self) -> float:
        """Seconds since the present phase began."""
        return time.monotonic() - self._since

    def end(self) -> dict[str, float]:
        """The last phase ends; the seconds of each."""
        self.note(None)
        return self.phases

    def remaining(self) -> float:
        """Seconds that the present stage may still wait.

        Raises:
            TimeoutError: none.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def remaining_in_all(self) -> float:
        """Seconds left for what comes before the dot; 0 or less when they are used up."""
        return self._before_dot - time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether less is left than a connection may take, and less than half of what there was before the dot."""
        return time.monotonic() > self._late_at


@dataclass(frozen=True, kw_only=True)
class Server:
    """Facts only.

    Args:
        ca_file: PEM file of a private certificate authority; it replaces the system's.
        helo: what we call ourselves in EHLO. Default: this machine's name, if it has a domain, else its address.
        connections: open at once, at most. Default 20.
        messages_per_connection, connection_seconds: a connection is left after so many or so long. 100 and 300.
        idle_seconds: an idle connection is closed after this. Default 5.
    """

    name: str
    host: str
    port: int
    security: Security
    login: Login | None = field(default=None, repr=False)
    ca_file: str | None = None
    helo: str | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    connections: int = 20
    messages_per_connection: int = 100
    connection_seconds: float = 300.0
    idle_seconds: float = 5.0

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """One for all connections."""
        return verifying_tls(self.ca_file)


def server_of(url: TransportURL) -> Server:
    """Read a `smtp`, `smtps` or `smtp+starttls` URL; with `+oauth` behind it, one that logs in by tokens.

    Raises:
        ConfigurationError: it lacks a host, has a path, would send in clear to another machine, holds half of the
            credentials, or an option that there is not.
    """
    base, tokens, source = url.scheme.partition("+oauth")
    security: Security = {"smtps": "tls", "smtp+starttls": "starttls"}.get(base, "none")  # type: ignore[assignment]
    if not url.host:
        url.refuse(f"names no host; give {url.scheme}://mail.example.com")
    if url.path not in ("", "/"):
        url.refuse("has a path; an SMTP URL has no path")
    _check_clear(url, security)
    login = _token_login(url, source) if tokens else _password(url)
    server = Server(
        name=url.name,
        host=url.host,
        port=url.port if url.port is not None else _PORTS[security],
        security=security,
        login=login,
        ca_file=_ca_file(url, security),
        helo=url.option("helo"),
        timeouts=Timeouts(
            connect_seconds=url.number("connect_timeout", 15, lowest=1, highest=120),
            stage_seconds=url.number("timeout", 30, lowest=0.1, highest=300),
            answer_seconds=url.number("answer_timeout", 600, lowest=0.1, highest=3600),
        ),
        connections=int(url.number("connections", 20, lowest=1, highest=1000)),
        messages_per_connection=int(url.number("messages_per_connection", 100, lowest=1, highest=100_000)),
        connection_seconds=url.number("connection_seconds", 300, lowest=1, highest=86_400),
        idle_seconds=url.number("idle_seconds", 5, lowest=0, highest=300),
    )
    url.end(*_OPTIONS, *(OAUTH_OPTIONS if tokens else ()))
    if server.helo is not None and not re.fullmatch(r"[A-Za-z0-9.:\[\]-]{1,255}", server.helo):
        url.refuse("has an option helo that is no host name")
    return server


def _ca_file(url: TransportURL, security: Security) -> str | None:
    if security != "none":
        return url.ca_file("ca_file")
    if url.option("ca_file") is not None:
        url.refuse("has an option ca_file, which goes with smtps:// and smtp+starttls://")
    return None


def _check_clear(url: TransportURL, security: Security) -> None:
    said = url.option("tls", among=("none",))
    if security != "none" and said:
        url.refuse(f"says both {url.scheme} and tls=none")
    if security == "none" and not said and not _is_loopback(url.host):
        url.refuse(
            "would send in clear to another machine; give smtp+starttls:// or smtps://, or ?tls=none if that is meant"
        )


def _password(url: TransportURL) -> Password | None:
    if (url.user is None) is not (url.password is None) or url.user == "" or url.password == "":
        url.refuse("has a user without a password, or the other way round")
    if "\0" in f"{url.user}{url.password}":
        url.refuse("has a NUL in its user or password, which AUTH cannot carry")
    return None if url.user is None or url.password is None else Password(url.user, url.password)


def _token_login(url: TransportURL, kind: str) -> TokenLogin:
    source = source_of(url, f"oauth{kind}")
    if not isinstance(source, OAuthClient):
        return TokenLogin(url.name, source, None)
    if not isinstance(url.keeper, TokenKeeper):
        url.refuse("logs in by OAuth, whose tokens only an Effects keeps")
    return TokenLogin(url.name, source, url.keeper)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
