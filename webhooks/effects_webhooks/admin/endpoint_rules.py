"""What the settings of an endpoint may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from effects.extend import arguments, optional, printable, require
from effects_webhooks.errors import EndpointInvalid
from effects_webhooks.event_types import EventTypes
from effects_webhooks.request import check_pattern
from effects_webhooks.retry_rules import PROFILES, check_overrides

Ordering: TypeAlias = Literal["none", "endpoint", "key"]
ORDERINGS: tuple[Ordering, ...] = ("none", "endpoint", "key")
SETTINGS = {"overrides": optional(arguments.mapping), "headers": optional(arguments.mapping)}
PATTERNS_MAX = 100
TEXT_CHARS_MAX = 1000


def checked_patterns(patterns: Iterable[str], event_types: EventTypes) -> list[str]:
    """
    Raises:
        EndpointInvalid: one has no pattern's form, or takes none of the event types that are declared.
    """
    if isinstance(patterns, str):
        raise EndpointInvalid(f"patterns is a text; give a list, such as [{patterns!r}]")
    require("patterns", patterns, arguments.listed, EndpointInvalid)
    checked = list(dict.fromkeys(check_pattern(pattern) for pattern in patterns))
    for pattern in checked:
        event_types.check_pattern(pattern)
    if not 1 <= len(checked) <= PATTERNS_MAX:
        raise EndpointInvalid(f"give 1 to {PATTERNS_MAX} patterns; '*' takes every event")
    return checked


def checked_rules(profile: str, overrides: Mapping[str, str] | None, ordering: str) -> dict[str, Any]:
    require("profile", profile, arguments.one_of(PROFILES), EndpointInvalid)
    require("ordering", ordering, arguments.one_of(ORDERINGS), EndpointInvalid)
    return {"profile": profile, "overrides": check_overrides(overrides or {}), "ordering": ordering}


def check_text(name: str, text: str | None) -> None:
    require(name, text, optional(printable(TEXT_CHARS_MAX, chars_min=0)), EndpointInvalid)
