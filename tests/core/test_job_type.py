"""A job type is checked when registered, its payloads both ways, and its exceptions have one fate each."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from effects import ConfigurationError, DeliveryError, JobType, PayloadInvalid, Refused, Retry, Unknown, UnknownJobType
from effects.errors import code_of
from effects.model.job import PAYLOAD_BYTES_MAX
from effects.model.job_type import safe_message
from effects.model.registry import Registry
from tests.support.scripted import BoomError, Script, Scripted


@dataclasses.dataclass
class Order:
    id: int
    note: str = ""


class Typed(JobType[Order]):
    name = "order.ship"
    payload = Order


class Loose(JobType[dict[str, Any]]):
    name = "anything"


# -- declarations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"name": ""}, "dotted lower case"),
        ({"name": "Report.Chunk"}, "dotted lower case"),
        ({"name": "a..b"}, "dotted lower case"),
        ({"name": "ok'; DROP"}, "dotted lower case"),
        ({"on_unknown": "pray"}, "give one of repeat, repeat_once, hold"),
        ({"queue": ""}, "not a name"),
        ({"queue": "quarantine"}, "not a name"),
        ({"time_limit_seconds": 0}, "must be above 0"),
    ],
)
def test_a_wrong_declaration_is_refused(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Registry([Scripted(**attributes)])


def test_the_registry_knows_its_types_by_name() -> None:
    registry = Registry([Scripted("b"), Scripted("a")])
    assert registry.names() == ["a", "b"]
    assert "a" in registry
    assert [job_type.name for job_type in registry] == ["b", "a"]
    with pytest.raises(ConfigurationError, match="'a' is registered twice"):
        registry.add(Scripted("a"))
    with pytest.raises(UnknownJobType, match=r"no job type 'c' is registered \(known: a, b\)"):
        registry.get("c")


def test_a_type_may_be_replaced_by_one_of_its_name() -> None:
    registry = Registry([Scripted("a")])
    better = Scripted("a", queue="fast")
    registry.replace(better)
    assert registry.get("a") is better
    with pytest.raises(UnknownJobType):
        registry.replace(Scripted("b"))


# -- payloads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [Order(7, "x"), {"id": 7, "note": "x"}], ids=["object", "mapping"])
def test_a_payload_is_encoded_and_decoded(payload: Any) -> None:
    assert Typed().decode(Typed().encode(payload)) == Order(7, "x")


@pytest.mark.parametrize(
    "wrong",
    [{}, {"id": "seven"}, {"id": 7, "note": 1}, 7, "text", None, [1], Script()],
    ids=str,
)
def test_a_payload_that_does_not_fit_is_refused(wrong: Any) -> None:
    with pytest.raises(PayloadInvalid, match=r"order\.ship: the payload is not valid"):
        Typed().encode(wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"x": math.nan}, {"x": math.inf}, {"x": object()}, {"x": "\0"}, {"x": "\ud800"}],
    ids=["nan", "infinity", "object", "NUL", "half a surrogate pair"],
)
def test_what_json_cannot_hold_is_refused(wrong: Any) -> None:
    with pytest.raises(PayloadInvalid):
        Loose().encode(wrong)


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "C:\\u0000"], ids=ascii)
def test_an_escaped_backslash_is_not_a_nul(text: str) -> None:
    assert Loose().decode(Loose().encode({"path": text})) == {"path": text}


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_the_limit_is_bytes(extra: int, fits: bool, letter: str) -> None:
    room = PAYLOAD_BYTES_MAX - len('{"x":""}')
    payload = {"x": letter * (room // len(letter.encode())) + "x" * extra}
    if fits:
        assert len(Loose().encode(payload).encode()) == PAYLOAD_BYTES_MAX
    else:
        with pytest.raises(PayloadInvalid, match="65,537 bytes and the limit is 65,536"):
            Loose().encode(payload)


@pytest.mark.parametrize("stored", ["", "{", '{"id": "x"}', "[]", "null"])
def test_a_stored_payload_that_does_not_fit_is_an_error(stored: str) -> None:
    with pytest.raises(PayloadInvalid, match="the stored payload is not valid"):
        Typed().decode(stored)


def test_the_canonical_text_does_not_depend_on_the_order_of_keys() -> None:
    assert JobType.canonical('{"b": 1, "a": [2, 3]}') == JobType.canonical('{"a":[2,3],"b":1}')
    assert JobType.canonical('{"a": [3, 2]}') != JobType.canonical('{"a": [2, 3]}')


# -- fates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "released", "outcome"),
    [
        (DeliveryError("busy", code="421"), False, Retry("busy", code="421")),
        (DeliveryError("busy"), True, Unknown("busy", code="DeliveryError")),
        (PayloadInvalid("old"), True, Refused("old", code="PayloadInvalid")),
        (BoomError("secret"), False, Retry("BoomError", code="BoomError")),
        (BoomError("secret"), True, Unknown("BoomError", code="BoomError")),
    ],
)
def test_exceptions_are_classified(error: Exception, released: bool, outcome: Any) -> None:
    assert Scripted().classify(error, released=released) == outcome


def test_a_foreign_exceptions_text_is_never_kept() -> None:
    assert safe_message(ValueError("password=hunter2")) == "ValueError"
    assert safe_message(Retry("our own words")) == "our own words"


class _Reply(Exception):
    code = 550


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (_Reply(), "_Reply"),
        (SystemExit(3), "SystemExit"),
        (psycopg.errors.DivisionByZero(), "22012"),
        (sa.exc.DataError("SELECT", {}, psycopg.errors.DivisionByZero()), "22012"),
        (sa.exc.DataError("SELECT", {}, sqlite3.DataError()), "DataError"),
        (Refused("no", code="card_declined"), "card_declined"),
    ],
)
def test_a_code_is_ours_or_the_databases_or_the_class(error: BaseException, code: str) -> None:
    """Never a number or an anchor of a library's: SQLAlchemy's own `code` is `9h9h`."""
    assert code_of(error) == code


def test_a_type_without_perform_raises() -> None:
    with pytest.raises(NotImplementedError):
        JobType[dict[str, Any]]().perform({}, None)  # type: ignore[arg-type]
