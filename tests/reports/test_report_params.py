"""Params that a function or a SQL text declares: checked with the request, bound as what they are."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec
import pytest
import sqlalchemy as sa

from effects import Effects
from effects_reports import (
    DefinitionInvalid,
    ParamsInvalid,
    ReportDefinition,
    Since,
    explain_report,
    preview_report,
    report,
    report_status,
    request_report,
    sql_report,
)
from tests.reports.conftest import Shop, content, drain
from tests.reports.shop import csv_rows, fill, orders


@dataclass
class Above:
    above: int
    customers: list[str] = field(default_factory=list)


class AboveStruct(msgspec.Struct):
    above: int
    customers: list[str] = []


class AboveDict(TypedDict, total=False):
    above: int
    customers: list[str]


def by_dataclass(params: Above) -> Any:
    return sa.select(orders).where(orders.c.id > params.above)


def by_struct(params: AboveStruct) -> Any:
    return sa.select(orders).where(orders.c.id > params.above)


def by_typed_dict(params: AboveDict) -> Any:
    return sa.select(orders).where(orders.c.id > params.get("above", 0))


def by_keywords(*, above: int, customers: list[str] | None = None, as_of: dt.datetime) -> Any:
    assert as_of.tzinfo is not None
    return sa.select(orders).where(orders.c.id > above)


SOURCES: list[Callable[..., Any]] = [by_dataclass, by_struct, by_typed_dict, by_keywords]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_annotations_declare_the_params(source: Any, shop_factory: Shop) -> None:
    app = shop_factory(reports=[report("orders", key=("id",), dialect="rfc4180")(source)])
    fill(app, 5)
    run_id = request_report("orders", {"above": "9"}, effects=app).run_id
    for params, says in [
        ({"above": "nine"}, "above"),
        ({"above": 1, "abvoe": 2}, r"takes no param 'abvoe' \(it takes above, customers\)"),
        ({"above": 1, "customers": 5}, "customers"),
    ]:
        with pytest.raises(ParamsInvalid, match=says):
            request_report("orders", params, effects=app)
    drain(app)
    assert [row[0] for row in csv_rows(content(app, run_id))] == ["id", "12", "15"]


SQL = """
SELECT id, customer, cents AS "Cents" FROM orders
WHERE id > :above AND (:customer IS NULL OR customer = :customer) AND customer NOT LIKE '%\\:x%';
"""


class Wanted(msgspec.Struct, frozen=True):
    above: int = 0
    customer: str | None = None


def orders_by_sql(**options: Any) -> ReportDefinition:
    return sql_report(
        "by_sql", SQL, columns=("id", "customer", "Cents"), params=Wanted, dialect="rfc4180", chunk_rows=100, **options
    )


@pytest.mark.parametrize("key", [("id",), ()], ids=["by key", "single"])
def test_a_text_of_sql_is_a_source(key: tuple[str, ...], shop_factory: Shop) -> None:
    app = shop_factory(reports=[orders_by_sql(key=key)])
    fill(app, 250)
    injected = "x' OR '1'='1"
    ids = [request_report("by_sql", params, effects=app).run_id for params in (
        {"above": 300}, {"customer": 'customer 3, "Ltd"'}, {"customer": injected},
    )]  # fmt: skip
    assert explain_report("by_sql", effects=app).refusals == []
    drain(app)

    above, customer, none = (csv_rows(content(app, run_id)) for run_id in ids)
    assert sorted(int(row[0]) for row in above[1:]) == list(range(303, 753, 3))
    assert {row[1] for row in customer[1:]} == {'customer 3, "Ltd"'}
    assert none == [["id", "customer", "Cents"]]
    chunks = report_status(ids[0], effects=app).progress.chunks_total
    assert chunks == (2 if key else 1)
    assert len(preview_report("by_sql", rows=3, effects=app).rows) == 3


class Kind(enum.Enum):
    RED = "red"


TYPED: dict[str, Any] = {
    "whole": (int, 2**40), "share": (float, 0.5), "flag": (bool, True), "day": (dt.date, dt.date(2026, 1, 14)),
    "clock": (dt.time, dt.time(5, 17)), "moment": (dt.datetime, dt.datetime(2026, 1, 14, tzinfo=dt.UTC)),
    "price": (Decimal, Decimal("12.50")), "ident": (uuid.UUID, uuid.UUID(int=5)), "note": (str, "'; DROP TABLE x"),
    "size": (Literal["s", "m"], "m"), "empty": (int | None, None), "many": (list[int], [1, 2]),
    "names": (tuple[str, ...], ("a",)), "hollow": (list[int], []),
}  # fmt: skip


def test_every_type_of_a_param_can_be_bound(shop_factory: Shop) -> None:
    kinds = msgspec.defstruct("Kinds", [(name, kind) for name, (kind, _) in TYPED.items()])
    lists = {"many": "1 IN :many", "names": "'a' IN :names", "hollow": "NOT (1 IN :hollow)"}
    shown = ", ".join(f"{lists.get(name, f':{name}')} AS {name}" for name in TYPED)
    declared = sql_report("kinds", f"SELECT {shown}", columns=list(TYPED), params=kinds, dialect="raw")
    app = shop_factory(reports=[declared])
    values = {name: value for name, (_, value) in TYPED.items()}
    run_id = request_report("kinds", msgspec.to_builtins(values), effects=app).run_id
    drain(app)

    [row] = csv_rows(content(app, run_id))[1:]
    seen = dict(zip(TYPED, row, strict=True))
    assert (seen["whole"], seen["note"], seen["size"], seen["empty"]) == (str(2**40), "'; DROP TABLE x", "m", "")
    assert Decimal(seen["price"]) == Decimal("12.5")
    assert {seen[name] for name in lists} <= {"true", "1"}


@pytest.mark.parametrize(("sql", "params", "says"), [
    ("SELECT :day AS id", None, r"its SQL names :day, which is no field of its params"),
    ("SELECT 1 AS id", Wanted, "its params have the field 'above', which its SQL does not name"),
    ("SELECT :kind AS id", msgspec.defstruct("K", [("kind", dict[str, int])]), "'kind' of its params cannot be bound"),
    ("SELECT :as_of AS id", msgspec.defstruct("K", ["as_of"]), "the field 'as_of', and that name is the time"),
    ("SELECT 1 AS id", int, "params is no dataclass, Struct or TypedDict"),
])  # fmt: skip
def test_a_text_and_its_params_must_agree(sql: str, params: Any, says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says):
        sql_report("x", sql, columns=("id",), params=params)


def test_a_text_without_params_takes_none(shop_factory: Shop) -> None:
    sql = "SELECT 1 AS id WHERE :as_of IS NOT NULL -- and a comment behind it"
    app = shop_factory(reports=[sql_report("x", sql, columns=("id",))])
    with pytest.raises(ParamsInvalid, match="takes no param 'day'"):
        request_report("x", {"day": 1}, effects=app)
    run_id = request_report("x", effects=app).run_id
    drain(app)
    assert report_status(run_id, effects=app).rows == 1


def test_a_text_that_the_database_does_not_take_is_explained(shop_factory: Shop) -> None:
    app: Effects = shop_factory(reports=[sql_report("x", "SELECT id FROM nowhere", columns=("id",))])
    [refusal] = explain_report("x", effects=app).refusals
    assert "nowhere" in refusal


def test_since_of_a_type_is_a_param_and_else_what_is_new() -> None:
    def by_day(*, since: dt.date) -> Any:
        return sa.select(orders)

    def new(params: dict[str, Any], since: Since) -> Any:
        return sa.select(orders)

    def plain(since):  # type: ignore[no-untyped-def] # as apps write it
        return sa.select(orders)

    declared = [report("orders", key=("id",))(source) for source in (by_day, new, plain)]
    assert [each.incremental for each in declared] == [False, True, True]
    assert declared[0].read_params({"since": "2026-01-14"}).since == dt.date(2026, 1, 14)
    with pytest.raises(ParamsInvalid, match="takes no params"):
        declared[2].read_params({"since": "2026-01-14"})
