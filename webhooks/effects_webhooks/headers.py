"""Headers that a partner asks for: which there may be, and how they are stored.

They may hold a token, so that they are sealed like a secret. What routes, frames or signs the request is ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from effects_webhooks.errors import EndpointInvalid

HEADERS_MAX = 20
VALUE_CHARS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # narrower than RFC 9110's token, and every server takes it
_DENIED = frozenset(
    {"accept-encoding", "connection", "cookie", "date", "expect", "forwarded", "host", "http2-settings", "keep-alive",
     "max-forwards", "origin", "range", "referer", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade",
     "user-agent", "via", "x-real-ip"}
)  # fmt: skip
_DENIED_PREFIXES = ("content-", "proxy-", "sec-", "webhook-", "svix-", "x-forwarded-", "x-original-", "x-http-method")


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with lower-case names, if a partner may set them.

    At most 20, of letters, digits, `-` and `_`, with values of at most 1,000 visible ASCII characters and spaces.

    Raises:
        EndpointInvalid: names the header; never quotes its value.
    """
    if len(headers) > HEADERS_MAX:
        raise EndpointInvalid(f"give at most {HEADERS_MAX} headers")
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise EndpointInvalid(f"header name {name!r}: give at most 64 letters, digits, - and _")
        lowered = name.lower()
        if lowered in _DENIED or lowered.startswith(_DENIED_PREFIXES):
            raise EndpointInvalid(f"header {name}: it is one that the sender sets")
        if lowered in checked:
            raise EndpointInvalid(f"header {name}: given twice")
        if not isinstance(value, str) or not 0 < len(value) <= VALUE_CHARS_MAX or not _visible(value):
            raise EndpointInvalid(f"header {name}: give 1 to {VALUE_CHARS_MAX} visible ASCII characters as its value")
        checked[lowered] = value
    return checked


def _visible(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()


def pack(headers: Mapping[str, str]) -> bytes:
    """What is sealed."""
    return msgspec.json.encode(headers)


def unpack(packed: bytes) -> dict[str, str]:
    """What was packed."""
    return msgspec.json.decode(packed, type=dict[str, str])
