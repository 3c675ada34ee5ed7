"""Partners' own headers: rules and storage.

They may hold a token, so that they are sealed like a secret. What routes, frames or signs the request is ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from effects.extend import is_printable
from effects_webhooks.denied_headers import why_denied
from effects_webhooks.errors import EndpointInvalid

HEADERS_MAX = 20
VALUE_CHARS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # narrower than RFC 9110's token, and every server takes it
# Oracle's metadata service asks for this one before it hands out credentials; the others' are in `denied_headers`.
_METADATA_VALUES = {("authorization", "bearer oracle")}


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with lower-case names, if a partner may set them.

    At most 20, of letters, digits, `-` and `_`, with values of at most 1,000 visible ASCII characters and spaces. Names
    are compared as servers read them: `X_Real_IP` is `x-real-ip`.

    Raises:
        EndpointInvalid: names the header; never quotes its value.
    """
    if len(headers) > HEADERS_MAX:
        raise EndpointInvalid(f"give at most {HEADERS_MAX} headers")
    checked: dict[str, str] = {}
    folded_names: set[str] = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise EndpointInvalid(f"header name {name!r}: give at most 64 letters, digits, - and _")
        folded = name.lower().replace("_", "-")
        if folded in folded_names:
            raise EndpointInvalid(f"header {name}: given twice; servers take _ for -")
        folded_names.add(folded)
        if not isinstance(value, str) or not 0 < len(value) <= VALUE_CHARS_MAX or not _visible(value):
            raise EndpointInvalid(f"header {name}: give 1 to {VALUE_CHARS_MAX} visible ASCII characters as its value")
        if (refusal := _why_refused(folded, value)) is not None:
            raise EndpointInvalid(f"header {name}: not yours to set: {refusal}")
        checked[name.lower()] = value
    return checked


def _why_refused(folded: str, value: str) -> str | None:
    if (folded, " ".join(value.lower().split())) in _METADATA_VALUES:
        return "a cloud's metadata service asks for this value before it hands out credentials"
    return why_denied(folded)


def _visible(value: str) -> bool:
    return value.isascii() and is_printable(value) and value == value.strip()


def pack(headers: Mapping[str, str]) -> bytes:
    """What is sealed."""
    return msgspec.json.encode(headers)


def unpack(packed: bytes) -> dict[str, str]:
    """What was packed."""
    return msgspec.json.decode(packed, type=dict[str, str])
