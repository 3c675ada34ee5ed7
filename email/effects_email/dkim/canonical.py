"""Relaxed canonicalization (RFC 6376, sections 3.4.2 and 3.4.4): what of a message a relay may bend."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BLANKS = re.compile(rb"[ \t]+")
_FOLD = re.compile(rb"\r\n(?=[ \t])")


def header_fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """The fields of a head in their order: the name in lower case, and the value, relaxed."""
    fields = []
    for line in _FOLD.sub(b"", head).split(b"\r\n"):
        name, _, value = line.partition(b":")
        fields.append((name.strip().lower(), _BLANKS.sub(b" ", value).strip(b" ")))
    return fields


def relaxed_body(body: bytes) -> bytes:
    """Runs of blanks are one space, none ends a line, and no empty line ends the body."""
    if b" " in body or b"\t" in body:
        body = _BLANKS.sub(b" ", body).replace(b" \r\n", b"\r\n")
    end = len(body)
    while body.endswith(b"\r\n", 0, end):
        end -= 2
    return body[:end] + b"\r\n" if end else b""


def signed_head(fields: Iterable[tuple[bytes, bytes]], names: Iterable[bytes]) -> bytes:
    """The named fields as they are signed. Of several with one name the last comes first; one too many adds nothing."""
    left: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        left.setdefault(name, []).append(value)
    lines = [name + b":" + left[name].pop() + b"\r\n" for name in names if left.get(name)]
    return b"".join(lines)
