"""A request for a page and its answer, whichever server they come through."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from effects.kit.text.unsafe import nearest

QUERY_CHARS_MAX = 4_096
BODY_BYTES_MAX = 16 * 1024
FIELDS_MAX = 64  # a list of 50 rows, all of them ticked, and its filters
VALUE_CHARS_MAX = 1_000
FORM_TYPE = "application/x-www-form-urlencoded"
_COOKIE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a guard and a page are given of a request. Its repr shows no contents.

    Args:
        path: below the mount; begins with a slash.
        mount: where the dashboard is mounted, as a URL has it, without a slash at its end; empty at the root.
        headers: names in lower case, repeated ones joined.
        host: what the server or the framework gave us: an ASGI scope, or Django's request. A guard reads the host
            app's session or user from it.
    """

    method: str
    path: str
    mount: str = ""
    query: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    cookies: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    scheme: str = "http"
    client: str | None = None
    host: Any = field(default=None, repr=False)

    @property
    def is_unsafe(self) -> bool:
        """Whether it may change something."""
        return self.method not in ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """What to send back; `headers` are pairs, since some are repeated.

    Args:
        pieces: the body of a file, piece by piece, in place of `body`. The headers name its length. What it raises ends
            the connection, so that the file is seen to be incomplete.
    """

    status: int
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    pieces: Generator[bytes, None, None] | None = None


class BadRequestError(Exception):
    """The request is not one that our pages make; the text says why, without its contents."""


def fields_of(text: str) -> dict[str, str]:
    """The fields of a query or a form; empty ones left out, the last of a repeated one.

    Raises:
        BadRequestError: too long, too many, or not UTF-8.
    """
    if len(text) > max(QUERY_CHARS_MAX, BODY_BYTES_MAX):
        raise BadRequestError("the fields are too long")
    try:
        pairs = parse_qsl(text, max_num_fields=FIELDS_MAX, encoding="utf-8", errors="strict")
    except ValueError:
        raise BadRequestError("the fields cannot be read") from None
    if any(len(value) > VALUE_CHARS_MAX or "\0" in value for _, value in pairs):
        raise BadRequestError(f"a field has more than {VALUE_CHARS_MAX:,} characters, or a NUL")
    return {name: stripped for name, value in pairs if (stripped := value.strip())}


class ReadFields(dict[str, str]):
    """The fields of a query. It knows the names that a view has asked for: any other is a mistake of who wrote it."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(fields)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where it is not set."""
        self.read.add(name)
        return super().get(name, default)

    def matching(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """The names that match as a whole."""
        matches = [match for name in self if (match := pattern.fullmatch(name)) is not None]
        self.read |= {match.string for match in matches}
        return matches

    def refuse_unread(self) -> None:
        """
        Raises:
            BadRequestError: a name that the view did not ask for: a filter left aside would show more than was meant.
        """
        unread = min(self.keys() - self.read, default=None)
        if unread is not None:
            raise BadRequestError(f"this page has no filter {unread[:50]!r}{nearest(unread, sorted(self.read))}")


def query_of(request: PageRequest) -> dict[str, str]:
    """The fields of the query.

    Raises:
        BadRequestError: as `fields_of`, or it has more than 4,096 characters.
    """
    if len(request.query) > QUERY_CHARS_MAX:
        raise BadRequestError("the query is too long")
    return fields_of(request.query)


def form_of(request: PageRequest) -> dict[str, str]:
    """The fields of a form.

    Raises:
        BadRequestError: as `fields_of`, or it is no urlencoded form of at most 16 KiB.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE or len(request.body) > BODY_BYTES_MAX:
        raise BadRequestError("a form of this page is urlencoded, and has at most 16 KiB")
    try:
        return fields_of(request.body.decode("ascii"))
    except UnicodeDecodeError:
        raise BadRequestError("the fields cannot be read") from None


def cookie(name: str, value: str, *, path: str, secure: bool, seconds: int | None = None) -> tuple[str, str]:
    """A `Set-Cookie` header that no script can read; `seconds` 0 deletes it."""
    assert _COOKIE_NAME.fullmatch(name)
    parts = [f"{name}={value}", f"Path={path}", "HttpOnly", "SameSite=Lax"]
    parts += ["Secure"] if secure else []
    parts += [f"Max-Age={seconds}"] if seconds is not None else []
    return "set-cookie", "; ".join(parts)
