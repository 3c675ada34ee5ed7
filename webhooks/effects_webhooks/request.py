"""An event as the app gives it, the bytes that every partner receives, and the types that the app declares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from effects import ConfigurationError, EnqueueError
from effects.extend.arguments import (
    ObjectData,
    arguments,
    check_arguments,
    optional,
    printable,
    require,
    require_json,
    shown,
    to_plain,
)
from effects.extend.text import described, nearest
from effects_webhooks.errors import EndpointInvalid, EventInvalid

BODY_BYTES_MAX = 256 * 1024
_ORDERING_KEY_CHARS_MAX = 200
_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TYPE_CHARS_MAX = 128
_EXACT_MAX = 2**53 - 1  # RFC 8259 §6, JavaScript's MAX_SAFE_INTEGER
BigIntegers: TypeAlias = Literal["number", "text"]
_BIG_INTEGERS: tuple[BigIntegers, ...] = ("number", "text")
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")  # no dot: the signature parts its fields by dots


_RULES = {
    **dict.fromkeys(("key", "tenant"), optional(arguments.printable())),
    "ordering_key": optional(arguments.printable(_ORDERING_KEY_CHARS_MAX)),
    "occurred_at": optional(arguments.aware),
}


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """An event, delivered to every endpoint whose patterns match its type.

    Args:
        type: dotted name, at most 128 characters: `order.paid`.
        data: a JSON object: a dict, a dataclass, a msgspec struct or a pydantic model. Moments, dates, UUIDs and
            decimals in it become texts, `Decimal("1.10")` the text `1.10`. It is turned into text here; what happens to
            it later changes nothing.
        key: your idempotency key, at most 255 printable characters: `order:123:paid`. The same key with the
            same type and data is the same event; with other data it is an error.
        id: your own message id of letters, digits, `-` and `_`; default a new `msg_…`. Unique like a key.
        occurred_at: when it happened (aware); default the moment of the call that sends it.
        tenant: only endpoints of this tenant get it; default those that have none.
        ordering_key: for endpoints that take events in order by key: those of one key come one after the other,
            `order:123`. At most 200 printable characters. Default none: in no order.

    Raises:
        EventInvalid: a field is invalid; the message names it and the rule, never the data.
    """

    type: str
    data: ObjectData = field(repr=False)
    _: KW_ONLY
    key: str | None = None
    id: str | None = None
    occurred_at: datetime | None = None
    tenant: str | None = None
    ordering_key: str | None = None
    _data_json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not _TYPE.fullmatch(self.type) or len(self.type) > _TYPE_CHARS_MAX:
            raise EventInvalid(f"type is {shown(self.type)}; give a dotted name such as 'order.paid'")
        if self.id is not None and not (isinstance(self.id, str) and _ID.fullmatch(self.id)):
            raise EventInvalid("id must have 1 to 100 letters, digits, - or _ (no dot: it is a signed field)")
        check_arguments(self, _RULES, EventInvalid)
        object.__setattr__(self, "_data_json", _data_json(self.data))

    def body(self, occurred_at: datetime, *, big_integers: BigIntegers = "number") -> bytes:
        """The request's body: compact UTF-8 JSON with `type`, `timestamp` and `data`, in that order.

        Args:
            big_integers: as of the event type.

        Raises:
            EventInvalid: it has more than 256 KiB.
        """
        timestamp = occurred_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        data = self._data_json if big_integers == "number" else _with_texts(self._data_json)
        text = f'{{"type":{json.dumps(self.type)},"timestamp":"{timestamp}","data":{data}}}'
        body = text.encode()
        if len(body) > BODY_BYTES_MAX:
            raise EventInvalid(
                f"the body has {len(body):,} bytes and the limit is {BODY_BYTES_MAX:,}; send an id, and let the "
                "partner fetch the rest"
            )
        return body

    def canonical(self) -> str:
        """Normalised text of type and data, independent of key order; input of the digest."""
        return msgspec.json.encode([to_plain(self.type), msgspec.Raw(_sorted(self._data_json))]).decode()


def _data_json(data: Any) -> str:
    text = require_json("data", data, EventInvalid, encode=_json)
    if not text.startswith("{"):
        raise EventInvalid(f"data is {described(data)}; give a dict, a dataclass or a model")
    return text


def _json(value: Any) -> str:
    text = json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()
    return text


def _with_texts(text: str) -> str:
    """The same JSON, its integers beyond 2^53 - 1 as texts: readers that hold numbers as doubles would round them."""
    return json.dumps(json.loads(text, parse_int=_exact), ensure_ascii=False, separators=(",", ":"))


def _exact(digits: str) -> int | str:
    if len(digits) > len(str(-_EXACT_MAX)):
        return digits
    return number if -_EXACT_MAX <= (number := int(digits)) <= _EXACT_MAX else digits


def _sorted(text: str) -> bytes:
    # The standard library's reader and writer: msgspec's would refuse integers beyond 64 bits.
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()


def check_pattern(pattern: str) -> str:
    """An event-type pattern: an exact type, `order.*` (whatever begins with `order.`), or `*`.

    Raises:
        EndpointInvalid: it has another form.
    """
    if not isinstance(pattern, str) or (pattern != "*" and not _TYPE.fullmatch(pattern.removesuffix(".*"))):
        raise EndpointInvalid(f"pattern {shown(pattern)}: give a type, a prefix such as 'order.*', or '*'")
    return pattern


def matches(pattern: str, event_type: str) -> bool:
    """Whether a pattern takes events of this type. `order.*` takes `order.paid` and `order.item.added`."""
    if pattern.endswith("*"):
        return event_type.startswith(pattern[:-1])
    return pattern == event_type


def patterns_of(stored: str) -> list[str]:
    """The patterns of an endpoint's row. What is no text there, written by hand, takes no event."""
    return [pattern for pattern in msgspec.json.decode(stored, type=list[Any]) if isinstance(pattern, str)]


_DESCRIPTION_CHARS_MAX = 1000
_SCHEMA_CHARS_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class EventType:
    """A type of event that the app sends: `Effects(webhook_event_types=[EventType(…)])`.

    Args:
        name: as of `WebhookEvent`: `order.paid`.
        description: what has happened then, for people; at most 1,000 printable characters. Default none.
        example: the data of such an event, as `WebhookEvent` takes it; `send_test` sends it. Default none.
        schema: the JSON Schema of its data, a JSON object of at most 256 KiB. It is shown to whoever lists the types;
            data are not checked against it. Default none.
        big_integers: how integers beyond 2^53 - 1, as ids may be, leave: as a JSON `number`, which JavaScript rounds,
            or as a `text` of their digits. Default `number`.

    Raises:
        ConfigurationError: a field is invalid; the message names the type, the field and the rule.
    """

    name: str
    description: str = ""
    example: ObjectData | None = field(default=None, repr=False, compare=False)
    schema: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    big_integers: BigIntegers = field(default="number", kw_only=True)

    def __post_init__(self) -> None:
        try:
            WebhookEvent(self.name, {} if self.example is None else self.example)
        except EnqueueError as error:
            raise ConfigurationError(f"the event type {self.name!r}: {_in_example(error)}") from None
        who = f"the event type {self.name!r}: description"
        require(who, self.description, printable(_DESCRIPTION_CHARS_MAX, chars_min=0), ConfigurationError)
        who = f"the event type {self.name!r}: big_integers"
        require(who, self.big_integers, arguments.one_of(_BIG_INTEGERS), ConfigurationError)
        if self.schema is not None:
            _check_schema(self.name, self.schema)

    def example_data(self) -> Any:
        """The example as partners get it; None without one."""
        if self.example is None:
            return None
        body = WebhookEvent(self.name, self.example).body(datetime.now(UTC), big_integers=self.big_integers)
        return json.loads(body)["data"]


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
    if len(text) > _SCHEMA_CHARS_MAX:
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

    def big_integers(self, name: str) -> BigIntegers:
        """How those of events of this type leave."""
        declared = self._by_name.get(name)
        return "number" if declared is None else declared.big_integers

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
