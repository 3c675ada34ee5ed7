"""Placeholders such as `{slot_date}` in the texts of a payload: filled in, and which of them nothing would fill in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from effects.text.nearest import nearest

_PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]{0,39})\}")


def why_unfilled(value: object, names: Collection[str]) -> str | None:
    """Why the placeholders in a payload are wrong: the first that is not among `names`, and those there are."""
    unknown = next((name for name in _placeholders(value) if name not in names), None)
    if unknown is None:
        return None
    listed = ", ".join(f"{{{name}}}" for name in names)
    return f"nothing fills in {{{unknown}}} in its payload (there are {listed}){nearest(unknown, names)}"


def fill_placeholders(value: Any, words: Mapping[str, str]) -> Any:
    """The payload, or a part of it, with each `{name}` that `words` has in place of its word; other braces stay."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: words.get(match[1], match[0]), value)
    if isinstance(value, list | tuple):
        return [fill_placeholders(element, words) for element in value]
    if isinstance(value, Mapping):
        return {name: fill_placeholders(element, words) for name, element in value.items()}
    return value


def _placeholders(value: object) -> Iterator[str]:
    """Those in every text, but in no name of a mapping, which nothing fills in."""
    if isinstance(value, str):
        yield from _PLACEHOLDER.findall(value)
    elif isinstance(value, Mapping):
        for element in value.values():
            yield from _placeholders(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _placeholders(element)
