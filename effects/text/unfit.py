"""Why a value does not fit its class, by the name of the field: msgspec writes `$[...]` for any value of a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from effects.text.redact import why_invalid

_PATH = re.compile(r" - at `(\$[^`]*)`$")
_VALUE_OF_MAPPING = re.compile(r"\$((?:\.\w+)*)\[\.\.\.\]")
_FIELD_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)  # another key may be personal, such as an address


def why_unfit(error: Exception, plain: object, kind: Any, *, strict: bool = True) -> str:
    """What a conversion of `plain` to `kind` found wrong, as `why_invalid`, with the names of fields in its path."""
    reason = why_invalid(error)
    if (at := _PATH.search(reason)) is None:
        return reason
    path = at[1]
    while (unnamed := _VALUE_OF_MAPPING.match(path)) is not None:
        names = unnamed[1].split(".")[1:]
        name = _wrong_field(str(error), plain, names, kind, strict=strict)
        if name is None:
            break
        path = f"{'.'.join(('$', *names, name))}{path[unnamed.end() :]}"
    return f"{reason[: at.start(1)]}{path}{reason[at.end(1) :]}"


def _wrong_field(text: str, plain: object, names: Sequence[str], kind: Any, *, strict: bool) -> str | None:
    """The field of the mapping at `names` that alone gives the same error."""
    for name, value in _mapping_at(plain, names).items():
        if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
            continue
        try:
            msgspec.convert(_replaced(plain, names, {name: value}), kind, strict=strict)
        except Exception as error:  # of the class's own, too
            if str(error) == text:
                return name
    return None


def _mapping_at(plain: object, names: Sequence[str]) -> Mapping[Any, Any]:
    """Empty if there is no mapping, as for a set."""
    for name in names:
        plain = plain.get(name) if isinstance(plain, Mapping) else None
    return plain if isinstance(plain, Mapping) else {}


def _replaced(plain: Any, names: Sequence[str], inner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with another mapping at `names`."""
    return {**plain, names[0]: _replaced(plain[names[0]], names[1:], inner)} if names else inner
