"""What keeps the pages closed: persons and roles, headers of every answer, where a form may come from, its token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from effects.errors import ConfigurationError
from effects.kit.arguments import flag, one_of, printable, require
from effects.kit.text.unsafe import whole_number
from effects.web.exchange import PageRequest

Role: TypeAlias = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
NAME_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Person:
    """A person that the guard admits.

    Args:
        name: who it is, in the audit log as `web:NAME`; 1 to 200 printable characters.
        role: `viewer` looks; `operator` acts on jobs, queues, limits and schedules, too; `admin` may also repeat an
            effect that is done. No default.
        personal: the capability to see what may be personal: addresses in stored texts, and kept texts of exceptions.
            Default no, whatever the role.

    Raises:
        ConfigurationError: the name or the role is not one.
    """

    name: str
    role: Role
    personal: bool = False

    def __post_init__(self) -> None:
        require("the name of a person", self.name, printable(NAME_CHARS_MAX), ConfigurationError)
        require("the role of a person", self.role, one_of(ROLES), ConfigurationError)
        require("personal", self.personal, flag, ConfigurationError)

    @property
    def actor(self) -> str:
        """How the audit log names this person."""
        return f"web:{self.name}"

    def may(self, role: Role, *, personal: bool = False) -> bool:
        """Whether this person has the role, or one that includes it, and the capability, where it is needed."""
        return ROLES.index(self.role) >= ROLES.index(role) and (self.personal or not personal)


Guard: TypeAlias = Callable[[PageRequest], Person | None]


CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-src 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types effects"
)
HEADERS = (
    ("content-security-policy", CSP),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
BARE_HEADERS = (*HEADERS, ("cache-control", "no-store"))  # of an answer without a page
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
FORM_FIELD = "form_token"
_NONCE_BYTES = 16
_KEYS_MAX = 10_000
_TIME_DIGITS_MAX = 11


def is_own_host(request: PageRequest, hosts: Collection[str] | None) -> bool:
    """Whether the request names one of our hosts, so that no foreign name may be bound to our address.

    Args:
        hosts: names, each with its port or for any; None admits all: the host app sees to it.
    """
    if hosts is None:
        return True
    name = request.headers.get("host", "").lower()
    bare = name if name.endswith("]") else name.rpartition(":")[0] or name
    return name in hosts or bare in hosts


def comes_from_own_page(request: PageRequest) -> bool:
    """Whether the browser says that the form was on a page of this host.

    `Sec-Fetch-Site` decides where the browser sends it; over plain http to a name that is not loopback it does not,
    and `Origin` decides.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    host = request.headers.get("host", "")
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # no URL, such as http://[::1
        return False


def new_nonce() -> str:
    """A value for the cookie that form tokens are made of."""
    return secrets.token_urlsafe(_NONCE_BYTES)


def form_token(nonce: str, person: Person) -> str:
    """The token of this person's forms; it cannot be made without the cookie."""
    text = f"effects form\0{person.name}\0{person.role}"
    return hmac.new(nonce.encode(errors="replace"), text.encode(), hashlib.sha256).hexdigest()


def is_form_token(token: str, nonce: str, person: Person) -> bool:
    """Whether the form has this person's token."""
    return hmac.compare_digest(token.encode(errors="replace"), form_token(nonce, person).encode())


def ticket(nonce: str, person: Person, what: str, ends: float) -> str:
    """A text that lets this person see `what` until then (seconds since 1970); it cannot be made without the cookie."""
    text = f"effects ticket\0{person.name}\0{person.role}\0{person.personal}\0{what}\0{ends:.0f}"
    return f"{ends:.0f}.{hmac.new(nonce.encode(errors='replace'), text.encode(), hashlib.sha256).hexdigest()}"


def is_ticket(text: str, nonce: str, person: Person, what: str, now: float) -> bool:
    """Whether it is this person's ticket for this, and its time is not over."""
    end = whole_number(text.partition(".")[0], _TIME_DIGITS_MAX)
    if end is None or end < now:
        return False
    return hmac.compare_digest(text.encode(errors="replace"), ticket(nonce, person, what, float(end)).encode())


class RateLimit:
    """At most so many calls a minute for each name; of this process."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, list[float]] = OrderedDict()

    def admits(self, name: str) -> bool:
        """Count a call; whether it is one of those that are allowed."""
        now = time.monotonic()
        with self._lock:
            recent = [moment for moment in self._calls.pop(name, []) if moment > now - 60]
            allowed = len(recent) < self._per_minute
            self._calls[name] = [*recent, now] if allowed else recent
            while len(self._calls) > _KEYS_MAX:
                self._calls.popitem(last=False)
        return allowed


DEFAULT_PORT = 8765
LOOPBACK_ADDRESSES = ("127.0.0.1", "::1", "localhost")


def sign_in_url(base_url: str, secret: str) -> str:
    """The address of a one-time link."""
    return f"{base_url.rstrip('/')}/sign-in?token={secret}"
