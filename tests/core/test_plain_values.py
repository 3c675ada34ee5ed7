"""What apps give as data becomes JSON by one conversion, which never asks a value's own methods for its text."""

from __future__ import annotations

import json
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects.kit.plain_values import path_of_fault, to_plain

Pair = namedtuple("Pair", "a b")


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another text"


class Share(float):
    __slots__ = ()


class Count(int):
    __slots__ = ()


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Kind(StrEnum):
    GIFT = "gift"


@dataclass
class Line:
    price: Decimal
    note: Any = None


class Order(msgspec.Struct, rename="camel"):
    line_items: list[Line]


class Customer(pydantic.BaseModel):
    id: UUID
    since: date


TABLE: list[tuple[Any, Any]] = [
    (Decimal("1.10"), "1.10"),
    (10**30, 10**30),
    (datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC), "2026-01-02T03:04:05.000600Z"),
    (date(2026, 1, 2), "2026-01-02"),
    (timedelta(seconds=90), "PT90S"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (b"ab", "YWI="),
    ((1, {2}, frozenset({3})), [1, [2], [3]]),
    (Pair(1, 2), [1, 2]),
    ([Colour.RED, Size.LARGE, Kind.GIFT], ["red", 3, "gift"]),
    ([Text("t"), Share(1.5), Count(7), True, None], ["t", 1.5, 7, True, None]),
    (MappingProxyType({"a": UserDict(b=OrderedDict(c=1))}), {"a": {"b": {"c": 1}}}),
    ({1: "a", UUID(int=1): "b"}, {"1": "a", "00000000-0000-0000-0000-000000000001": "b"}),
    (Order([Line(Decimal(2), note=Customer(id=UUID(int=1), since=date(2026, 1, 2)))]), {"lineItems": [
        {"price": "2", "note": {"id": "00000000-0000-0000-0000-000000000001", "since": "2026-01-02"}}]}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), TABLE, ids=lambda value: type(value).__name__)
def test_a_value_has_one_json_form(value: Any, expected: Any) -> None:
    assert json.loads(json.dumps(to_plain(value))) == expected


@pytest.mark.parametrize("value", [object(), iter("hunter2"), range(3), print, Line, {("hunter2",): 1}])
def test_another_value_is_refused_by_its_class(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        to_plain({"a": [value]})
    assert "hunter2" not in str(caught.value)


def test_a_cycle_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        to_plain(loop)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_JSON)
def test_plain_values_stay(value: Any) -> None:
    assert to_plain(value) == value


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    inner: Any = None


CONTAINERS: dict[str, Any] = {
    ".a": lambda value: {"x": 1, "a": value},
    "[1]": lambda value: [1, value],
    "[0]": lambda value: (value,),
    ".note": lambda value: Line(Decimal(1), value),
    ".line_items": lambda value: Order([value]).__class__(value),
    ".inner": lambda value: Model(inner=value),
    "[…]": lambda value: {"ann@example.com": value},
    ".b": lambda value: MappingProxyType(OrderedDict(b=value)),
}


@given(st.lists(st.sampled_from(sorted(CONTAINERS)), max_size=8))
def test_the_path_to_what_has_no_json_form_is_found(steps: list[str]) -> None:
    value: Any = object()
    for step in reversed(steps):
        value = CONTAINERS[step](value)
    assert path_of_fault(value, to_plain) == "".join(steps)


@pytest.mark.parametrize("bad", [object(), {(1, 2): 3}, print, Text], ids=["object", "key", "function", "class"])
def test_the_path_ends_at_the_innermost_invalid_value(bad: Any) -> None:
    assert path_of_fault({"rows": [1, {"cell": bad}]}, to_plain) == ".rows[1].cell"


def test_a_cycle_has_no_path() -> None:
    rows: list[Any] = []
    rows.append({"rows": rows})
    assert path_of_fault(rows, to_plain) == ""
