"""The types of events that an app declares: for its own calls, its operators, and its partners."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from effects import ConfigurationError, EnqueueError
from effects.extend import ObjectData, described, nearest, printable, require
from effects_webhooks.errors import EndpointInvalid, EventInvalid
from effects_webhooks.request import WebhookEvent, matches

DESCRIPTION_CHARS_MAX = 1000
SCHEMA_CHARS_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class EventType:
    """A type of event that the app sends: `Effects(webhook_event_types=[EventType(…)])`.

    Args:
        name: as of `WebhookEvent`: `order.paid`.
        description: what has happened then, for people; at most 1,000 printable characters. Default none.
        example: the data of such an event, as `WebhookEvent` takes it; `send_test` sends it. Default none.
        schema: the JSON Schema of its data, a JSON object of at most 256 KiB. It is shown to whoever lists the types;
            data are not checked against it. Default none.

    Raises:
        ConfigurationError: a field is invalid; the message names the type, the field and the rule.
    """

    name: str
    description: str = ""
    example: ObjectData | None = field(default=None, repr=False, compare=False)
    schema: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            WebhookEvent(self.name, {} if self.example is None else self.example)
        except EnqueueError as error:
            raise ConfigurationError(f"the event type {self.name!r}: {_in_example(error)}") from None
        who = f"the event type {self.name!r}: description"
        require(who, self.description, printable(DESCRIPTION_CHARS_MAX, chars_min=0), ConfigurationError)
        if self.schema is not None:
            _check_schema(self.name, self.schema)

    def example_data(self) -> Any:
        """The example as partners get it; None without one."""
        return None if self.example is None else WebhookEvent(self.name, self.example).plain_data()


def _in_example(error: EnqueueError) -> str:
    """What a WebhookEvent calls data is the example here, and its type the name."""
    text = str(error)
    for word, ours in (("data", "example"), ("type", "name")):
        if text.startswith(word):
            return ours + text.removeprefix(word)
    return text


def _check_schema(name: str, schema: object) -> None:
    if not isinstance(schema, Mapping):
        raise ConfigurationError(f"the event type {name!r}: schema is {described(schema)}; give a dict")
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the event type {name!r}: schema is not JSON ({type(error).__name__})") from None
    if len(text) > SCHEMA_CHARS_MAX:
        raise ConfigurationError(f"the event type {name!r}: schema has more than 256 KiB")


class EventTypes:
    """The declared types by name. Where none are declared, every type and every pattern is taken.

    Raises:
        ConfigurationError: one is no EventType, or two have one name.
    """

    def __init__(self, declared: Iterable[EventType]) -> None:
        self._by_name: dict[str, EventType] = {}
        for event_type in declared:
            if not isinstance(event_type, EventType):
                raise ConfigurationError(
                    f"webhook_event_types holds {described(event_type)}; give EventType('order.paid', …)"
                )
            if event_type.name in self._by_name:
                raise ConfigurationError(f"two event types are called {event_type.name!r}")
            self._by_name[event_type.name] = event_type

    def __iter__(self) -> Iterator[EventType]:
        return iter(sorted(self._by_name.values(), key=lambda event_type: event_type.name))

    def check(self, name: str) -> None:
        """
        Raises:
            EventInvalid: types are declared, and none has this name; the message has the nearest.
        """
        if self._by_name and name not in self._by_name:
            near = nearest(name, self._by_name)
            raise EventInvalid(f"type {name!r} is not declared in Effects(webhook_event_types=[…]){near}")

    def check_pattern(self, pattern: str) -> None:
        """
        Raises:
            EndpointInvalid: types are declared, and the pattern takes none of them; the message has the nearest.
        """
        if self._by_name and not any(matches(pattern, name) for name in self._by_name):
            near = nearest(pattern, {*self._by_name, *_prefixes(self._by_name)})
            raise EndpointInvalid(f"pattern {pattern!r} takes none of the event types that this app declares{near}")

    def example(self, name: str) -> ObjectData:
        """The example of a declared type.

        Raises:
            EventInvalid: no such type is declared, or it has no example.
        """
        event_type = self._by_name.get(name)
        if event_type is None:
            near = nearest(name, self._by_name)
            raise EventInvalid(f"type {name!r} is not declared in Effects(webhook_event_types=[…]){near}")
        if event_type.example is None:
            raise EventInvalid(f"the event type {name!r} has no example: EventType({name!r}, example={{…}})")
        return event_type.example


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    """The patterns that take some of these: `order.*`, of `order.paid`."""
    for name in names:
        parts = name.split(".")
        yield from (".".join([*parts[:count], "*"]) for count in range(1, len(parts)))
