"""One text for one value, on every route and, but for moments, in every format.

The texts are PostgreSQL's own, so that its COPY writes them at full speed and this module follows: shortest exact
floats, decimals with their digits, `true` and `false`, moments with a space after the day and, where they have a zone,
in UTC with `+00` at the end (in JSON, as RFC 3339 wants it, with a `T` and `+00:00`), ISO 8601 durations, bytes as
`\\x…`, JSON as jsonb prints it. Times carry no zeros at the end of a second's fraction.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import re
import uuid
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, TypeAlias

Show: TypeAlias = Callable[[Any], str]

_SERVER_MOMENT = re.compile(r"(?P<day>\d+-\d\d-\d\d) (?P<time>[\d:.]+)(?P<zone>[+-]\d\d)?(?P<era> BC)?")
LONG = 10**15  # from here on a spreadsheet, which keeps 15 digits, changes an integer
_FIXED_MAX = 1e15  # from here on a float is written with an exponent
_WHOLE_MIN = 2.0**53  # from here on floats are whole numbers


class ServerText(str):
    """What PostgreSQL printed for a moment or a duration that Python cannot hold; never a user's text."""

    __slots__ = ()


class Printed(str):
    """What a database printed for a value of a type that Python would change: never a formula."""

    __slots__ = ()


class JsonText(str):
    """A JSON document as a database holds it."""

    __slots__ = ()


@singledispatch
def text_of(value: object) -> str:
    """The text of a value that is not None."""
    return str(value)


def is_free(kind: type) -> bool:
    """Whether the text of such a value may be anything, and so a formula."""
    return text_of.dispatch(kind) in _FREE


def is_long(value: object) -> bool:
    """Whether a value is an integer of which a spreadsheet would not keep every digit."""
    if isinstance(value, decimal.Decimal):
        exponent = value.as_tuple().exponent  # a text where it is no number
        return isinstance(exponent, int) and exponent >= 0 and abs(value) >= LONG
    return isinstance(value, int) and abs(value) >= LONG


def has_point(kind: type) -> bool:
    """Whether the text of such a value may have a decimal point, or be a moment."""
    return text_of.dispatch(kind) in _POINTED


def texts_of(values: Sequence[Any], kind: type) -> list[str]:
    """The texts of many values of exactly this type."""
    many = _MANY.get(kind)
    return many(values) if many else list(map(text_of.dispatch(kind), values))


@text_of.register
def _(value: str) -> str:
    return value


@text_of.register
def _(value: Printed) -> str:
    return str(value)


@text_of.register
def _(value: ServerText) -> str:
    """Returned as printed; never a formula, because the database produced it."""
    return str(value)


@text_of.register
def _(value: enum.Enum) -> str:
    return str(value.value) if isinstance(value.value, str) else value.name


@text_of.register
def _(value: bool) -> str:
    return "true" if value else "false"


@text_of.register
def _(value: int) -> str:
    return int.__repr__(value)


@text_of.register
def _(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    shown = float.__repr__(value).removesuffix(".0")
    return shown if abs(value) < _FIXED_MAX else _with_exponent(value)


def _with_exponent(value: float) -> str:
    """The shortest digits that lie nearer to this float than to its neighbours, as a mantissa and an exponent.

    Python also takes digits that lie exactly in the middle, which happens between large floats; PostgreSQL does not.
    """
    shortest = decimal.Decimal(repr(value)).normalize()
    if abs(value) >= _WHOLE_MIN and _is_middle(shortest, value):
        longer = map(decimal.Decimal, (f"{value:.{more}e}" for more in range(len(shortest.as_tuple().digits), 17)))
        shortest = next(
            candidate for candidate in longer if float(candidate) == value and not _is_middle(candidate, value)
        ).normalize()
    mantissa = "".join(map(str, shortest.as_tuple().digits))
    sign, point = "-" if value < 0 else "", "." if len(mantissa) > 1 else ""
    return f"{sign}{mantissa[0]}{point}{mantissa[1:]}e+{shortest.adjusted():02}"


def _is_middle(shown: decimal.Decimal, value: float) -> bool:
    """Whether the digits lie halfway between a float, which is a whole number, and a neighbour."""
    neighbours = (math.nextafter(value, toward) for toward in (-math.inf, math.inf))
    return any(2 * int(shown) == int(value) + int(neighbour) for neighbour in neighbours if math.isfinite(neighbour))


@text_of.register
def _(value: decimal.Decimal) -> str:
    shown = str(value)
    return format(value, "f") if "E" in shown else shown.replace("sNaN", "NaN")


@text_of.register
def _(value: dt.datetime) -> str:
    return _without_minutes(_trimmed(in_utc(value).isoformat(" ")), value.tzinfo)


@text_of.register
def _(value: dt.date) -> str:
    return value.isoformat()


@text_of.register
def _(value: dt.time) -> str:
    return _without_minutes(_trimmed(value.isoformat()), value.tzinfo)


def in_utc(value: dt.datetime) -> dt.datetime:
    """The same moment in UTC. One without a zone, or one that lies beyond Python's calendar in UTC, stays as it is."""
    try:
        return value if value.tzinfo is None else value.astimezone(dt.UTC)
    except OverflowError:
        return value


def _without_minutes(shown: str, zone: dt.tzinfo | None) -> str:
    """`+00` for `+00:00`, as PostgreSQL writes a zone."""
    return shown if zone is None else shown.removesuffix(":00")


def _trimmed(shown: str) -> str:
    """Without zeros at the end of a fraction of a second."""
    seconds, point, rest = shown.partition(".")
    return f"{seconds}{point}{rest[:6].rstrip('0')}{rest[6:]}" if point else shown


@text_of.register
def _(value: dt.timedelta) -> str:
    """An ISO 8601 duration; of a negative one each part is negative."""
    sign = "-" if value < dt.timedelta() else ""
    size = abs(value)
    minutes, seconds = divmod(size.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    exact = f"{seconds}.{size.microseconds:06}".rstrip("0") if size.microseconds else str(seconds)
    days = f"{sign}{size.days}D" if size.days else ""
    parts = [(hours, f"{hours}H"), (minutes, f"{minutes}M"), (exact != "0", f"{exact}S")]
    time = "".join(sign + shown for there, shown in parts if there)
    return f"P{days}{'T' + time if time else ''}" if days or time else "PT0S"


def with_comma(text: str) -> str:
    """The text of a number, a moment or a time of day with a decimal comma, and without the zone of a moment in UTC."""
    moment = _SERVER_MOMENT.fullmatch(text)
    plain = f"{moment['day']} {moment['time']}{moment['era'] or ''}" if moment else text
    return plain.replace(".", ",")


@text_of.register
def _(value: uuid.UUID) -> str:
    return str(value)


@text_of.register(bytes)
@text_of.register(bytearray)
@text_of.register(memoryview)
def _(value: bytes) -> str:
    return "\\x" + value.hex()


@text_of.register(dict)
@text_of.register(list)
@text_of.register(tuple)
@text_of.register(set)
@text_of.register(frozenset)
def json_of(value: object) -> str:
    """JSON with the spaces of jsonb. What JSON has no word for is its text of this module, in quotes."""
    if isinstance(value, dict):
        inner = (f"{json_text(str(name))}: {json_of(item)}" for name, item in value.items())
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(json_of, value))}]"
    if isinstance(value, set | frozenset):
        return f"[{', '.join(sorted(map(json_of, value)))}]"
    if value is None:
        return "null"
    if isinstance(value, float) and math.isfinite(value):  # jsonb's numbers have no exponent
        return format(decimal.Decimal(text_of(value)), "f")
    return json_scalar(value)


def json_scalar(value: object) -> str:
    """A value that is not None and holds no others, as JSON."""
    if isinstance(value, dt.datetime):
        return json_text(_trimmed(in_utc(value).isoformat()))
    if isinstance(value, ServerText):
        return json_text(_SERVER_MOMENT.sub(_with_t, value))
    if isinstance(value, JsonText):
        return value.translate(_SPACES)
    shown = text_of(value)
    if isinstance(value, bool) or (isinstance(value, int) and not isinstance(value, enum.Enum)):
        return shown
    if isinstance(value, float | decimal.Decimal) and shown[-1] in "0123456789":
        return shown
    return json_text(shown)


def _with_t(moment: re.Match[str]) -> str:
    """A moment of PostgreSQL's as its own JSON functions print it."""
    zone = f"{moment['zone']}:00" if moment["zone"] else ""
    return f"{moment['day']}T{moment['time']}{zone}{moment['era'] or ''}"


_SPACES = str.maketrans("\n\r\t", "   ")  # which stand between its values: one line is one row
json_text: Show = json.encoder.encode_basestring  # with every character beyond ASCII as it is

_POINTED = {text_of.dispatch(kind) for kind in (float, decimal.Decimal, dt.datetime, dt.time, ServerText)}
_FREE = {text_of.dispatch(kind) for kind in (object, str, enum.Enum, dict)}


def _floats(values: Sequence[float]) -> list[str]:
    if all(map(math.isfinite, values)) and max(map(abs, values)) < _FIXED_MAX:
        return [shown[:-2] if shown[-2:] == ".0" else shown for shown in map(repr, values)]
    return list(map(text_of.dispatch(float), values))


def _decimals(values: Sequence[decimal.Decimal]) -> list[str]:
    shown = list(map(str, values))
    return list(map(text_of.dispatch(decimal.Decimal), values)) if any("E" in text for text in shown) else shown


def _datetimes(values: Sequence[dt.datetime]) -> list[str]:
    shown = list(map(str, values))
    lengths = set(map(len, shown))
    if lengths == {19}:  # no fractions and no zone
        return shown
    if lengths == {25} and all(text.endswith("+00:00") for text in shown):
        return [text[:-3] for text in shown]
    return list(map(text_of.dispatch(dt.datetime), values))


_BOOLEANS = {True: "true", False: "false"}
_MANY: dict[type, Callable[[Sequence[Any]], list[str]]] = {
    str: list,
    bool: lambda values: [_BOOLEANS[value] for value in values],
    int: lambda values: list(map(str, values)),
    float: _floats,
    decimal.Decimal: _decimals,
    dt.datetime: _datetimes,
    dt.date: lambda values: list(map(str, values)),
    uuid.UUID: lambda values: list(map(str, values)),
}
