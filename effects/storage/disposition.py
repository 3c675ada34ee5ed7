"""The header that makes a browser save a file under a name (RFC 6266, RFC 8187)."""

from __future__ import annotations

import re
from urllib.parse import quote

_UNSAFE = re.compile(r"[^A-Za-z0-9 ._()+=,@!~^-]|^\.+")
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f/\\\u202a-\u202e\u2066-\u2069]"
)  # also what turns text round, and so an ending


def attachment(filename: str) -> str:
    """`attachment; filename="…"`, with the exact name beside it where ASCII cannot say it.

    Slashes, control characters and direction marks become `_`; at most 200 characters are kept.
    """
    name = _CONTROL.sub("_", filename)[:200] or "download"
    plain = _UNSAFE.sub("_", name)
    if plain == name:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
