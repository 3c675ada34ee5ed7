"""The header that makes a browser save a file under a name (RFC 6266, RFC 8187)."""

from __future__ import annotations

import re
from urllib.parse import quote

from effects.text.unsafe import without_unsafe

_UNSAFE = re.compile(r"[^A-Za-z0-9 ._()+=,@!~^-]|^\.+")
_PATH = re.compile(r"[/\\]")


def attachment(filename: str) -> str:
    """`attachment; filename="…"`, plus the exact name if it is not ASCII.

    Slashes, control characters and direction marks become `_`; at most 200 characters are kept.
    """
    name = _PATH.sub("_", without_unsafe(filename, "_"))[:200] or "download"
    plain = _UNSAFE.sub("_", name)
    if plain == name:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
