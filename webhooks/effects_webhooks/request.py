"""An event as the app gives it, and the bytes that every partner receives."""

from __future__ import annotations

import json
import re
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from effects.extend import (
    ObjectData,
    arguments,
    check_arguments,
    described,
    optional,
    require_json,
    shown,
    to_plain,
)
from effects_webhooks.errors import EndpointInvalid, EventInvalid

BODY_BYTES_MAX = 256 * 1024
ORDERING_KEY_CHARS_MAX = 200
_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TYPE_CHARS_MAX = 128
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")  # no dot: the signature parts its fields by dots


_RULES = {
    **dict.fromkeys(("key", "tenant"), optional(arguments.printable())),
    "ordering_key": optional(arguments.printable(ORDERING_KEY_CHARS_MAX)),
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

    def body(self, occurred_at: datetime) -> bytes:
        """The request's body: compact UTF-8 JSON with `type`, `timestamp` and `data`, in that order.

        Raises:
            EventInvalid: it has more than 256 KiB.
        """
        timestamp = occurred_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        text = f'{{"type":{json.dumps(self.type)},"timestamp":"{timestamp}","data":{self._data_json}}}'
        body = text.encode()
        if len(body) > BODY_BYTES_MAX:
            raise EventInvalid(
                f"the body has {len(body):,} bytes and the limit is {BODY_BYTES_MAX:,}; send an id, and let the "
                "partner fetch the rest"
            )
        return body

    def plain_data(self) -> Any:
        """The data as partners get it: nothing but JSON."""
        return json.loads(self._data_json)

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
