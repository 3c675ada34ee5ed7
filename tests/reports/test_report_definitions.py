"""A definition that could not work is refused when the app is made, with what is wrong and how to mend it."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from effects import Effects
from effects_reports import DefinitionInvalid, ParamsInvalid, Replica, ReportRefused, explain_report, report
from effects_reports.source.paging import key_from_json, key_to_json
from effects_reports.source.statements import proved_unique
from tests.reports.shop import orders

ALL = sa.select(orders)


def made(tmp_path: Path, *reports: Any, **options: Any) -> None:
    Effects(f"sqlite:///{tmp_path / 'none.db'}", reports=reports, **options).dispose()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Orders"}, "a name is lower-case letters"),
        ({"key": ()}, 'give key, the columns .* or consistency="single"'),
        ({"key": ("number",)}, "its select\\(\\) has no column 'number', which is part of its key"),
        ({"consistency": "eventual"}, "consistency is 'eventual'; give range, snapshot, single"),
        (
            {"dialect": "tsv"},
            "dialect is 'tsv'; give excel, excel_exact, excel_semicolon, excel_semicolon_exact, rfc4180, raw",
        ),
        ({"formats": ()}, "formats holds nothing"),
        ({"formats": ("csv", "pdf")}, "formats holds pdf; give some of csv, csv.gz"),
        ({"chunk_rows": 0}, "chunk_rows is 0; give 1 to"),
        ({"chunk_rows": 2.5}, "chunk_rows is a float; give a whole number"),
        ({"parallel": 0}, "parallel is 0"),
        ({"bytes_max": 2**63}, "bytes_max is"),
        ({"keep_days": 1e9}, "keep_days is"),
        ({"version": "2"}, "version is a str"),
        ({"columns": ("id", "euros")}, "columns names 'euros', which its select\\(\\) does not have"),
        ({"map_row": list}, "give columns: the rows that Python makes do not name them"),
        ({"map_row": list, "map_batch": list, "columns": ("a",)}, "give map_row or map_batch, not both"),
        ({"iterable": True, "columns": ("a",)}, "an iterable has no key, no mapping and no engine"),
        ({"iterable": True, "key": ()}, "give columns"),
        ({"engine": "replica"}, "reads from the engine 'replica': give it to Effects\\(report_engines="),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_argument_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = {"name": "orders", "key": ("id",), **options}
    with pytest.raises(DefinitionInvalid, match=message):
        made(tmp_path, report(**arguments)(lambda params: ALL))


def test_a_report_without_params_needs_no_argument_and_takes_none(tmp_path: Path) -> None:
    plain = report("plain", key=("id",))(lambda: ALL)
    timed = report("timed", key=("id",))(lambda as_of: ALL.where(orders.c.id < as_of.year))
    app = Effects(f"sqlite:///{tmp_path / 'none.db'}", reports=[plain, timed])
    for name in ("plain", "timed"):
        with pytest.raises(ParamsInvalid, match=f"report '{name}' takes no params: day, x are given"):
            explain_report(name, {"day": 1, "x": 2}, effects=app)
    app.dispose()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (ALL.order_by(orders.c.id), "has an ORDER BY; leave it out"),
        (ALL.limit(5), "has a LIMIT or OFFSET"),
        (ALL.offset(5), "has a LIMIT or OFFSET"),
        (ALL.fetch(5), "has a LIMIT or OFFSET"),
        (sa.union_all(ALL, ALL).order_by("id"), "has an ORDER BY"),
        (sa.select(orders.c.id, orders.c.cents.label("id")), "two columns of its select.* have one name; label them"),
        (sa.text("SELECT 1"), "the function gave a TextClause; it must return a SQLAlchemy select\\(\\)"),
        ([(1, 2)], "the function gave a list; .* or be declared with iterable=True"),
    ],
    ids=["order", "limit", "offset", "fetch", "union", "names", "text", "list"],
)  # fmt: skip
def test_a_select_that_could_not_be_cut_is_refused_when_the_app_is_made(
    statement: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DefinitionInvalid, match=message):
        made(tmp_path, report("orders", key="id")(lambda params: statement))


def test_two_of_one_name_and_what_is_no_report(tmp_path: Path) -> None:
    orders = report("orders", key="id")(lambda params: ALL)
    with pytest.raises(DefinitionInvalid, match="two reports are called 'orders'"):
        made(tmp_path, orders, orders)
    with pytest.raises(DefinitionInvalid, match="reports holds a function; give functions decorated by @report"):
        made(tmp_path, lambda params: ALL)


def test_a_select_that_needs_params_is_checked_when_it_is_requested(tmp_path: Path) -> None:
    class Needed(msgspec.Struct):
        day: dt.date

    declared = report("orders", key="id", params=Needed)(lambda params: ALL.order_by(orders.c.id))
    made(tmp_path, declared)
    with pytest.raises(DefinitionInvalid, match="ORDER BY"):
        declared.statement(Needed(dt.date(2026, 1, 14)), dt.datetime.now(dt.UTC))


def test_the_function_may_ask_what_time_it_is_as_of() -> None:
    @report("orders", key="id")
    def declared(params: Any, as_of: dt.datetime) -> Any:
        return sa.select(orders, sa.literal(as_of).label("as_of"))

    noon = dt.datetime(2026, 1, 14, 12, tzinfo=dt.UTC)
    statement = declared.statement({}, noon)
    assert noon in statement.compile().params.values()


# -- keys --------------------------------------------------------------------------------------------------------

users = sa.Table(
    "users", sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("email", sa.Text, nullable=False, unique=True),
    sa.Column("nick", sa.Text, unique=True),
    sa.Column("tenant", sa.Integer, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("code", sa.Text, nullable=False),
    sa.UniqueConstraint("tenant", "number"),
    sa.Index("one_code", "code", unique=True, postgresql_where=sa.text("tenant > 0")),
)  # fmt: skip
_other = users.alias("other")


@pytest.mark.parametrize(
    ("statement", "key", "proved"),
    [
        (sa.select(users), ("id",), True),
        (sa.select(users), ("email",), True),
        (sa.select(users), ("tenant", "id"), True),  # more than is needed
        (sa.select(users), ("tenant", "number"), True),
        (sa.select(users), ("number",), False),
        (sa.select(users), ("nick",), False),  # may be NULL
        (sa.select(users), ("code",), False),  # of some rows only
        (sa.select(users.c.tenant.label("id")), ("id",), False),  # another column under that name
        (sa.select(users.c.id).join(_other, users.c.tenant == _other.c.tenant), ("id",), False),
        (sa.select(users.c.id).where(users.c.tenant == _other.c.tenant), ("id",), False),
        (sa.union_all(sa.select(users.c.id), sa.select(users.c.id)), ("id",), False),
        (sa.select(users.c.id).where(users.c.tenant == 1), ("id",), True),
    ],
)  # fmt: skip
def test_which_keys_a_table_proves(statement: Any, key: tuple[str, ...], proved: bool) -> None:
    assert proved_unique(statement, key) is proved


@pytest.mark.parametrize(
    "key",
    [
        (1, "a"),
        (2**60,),
        ("ü\x00$",),
        (0.1,),
        (decimal.Decimal("12.340"),),
        (dt.date(2026, 1, 14), dt.time(12, 30, 1, 5)),
        (dt.datetime(2026, 1, 14, 12, 30, 1, 5, tzinfo=dt.UTC),),
        (uuid.UUID("6f1d3b0e-0b5a-4c9e-9d39-1c0ffee00001"),),
        (b"\x00\xff",),
    ],
    ids=str,
)
def test_a_key_survives_its_way_through_json(key: Any) -> None:
    read = key_from_json(msgspec.json.encode(key_to_json(key)).decode())
    assert read == key
    assert [type(value) for value in read or ()] == [type(value) for value in key]


def test_a_key_that_cannot_be_a_bound() -> None:
    with pytest.raises(ReportRefused, match="a key or cursor holds a list"):
        key_to_json([[1]])


def test_a_replica_is_checked_when_the_app_is_made(tmp_path: Path) -> None:
    plain = report("plain", key=("id",), engine="replica")(lambda: ALL)
    for replica, message in (
        (Replica("postgresql:///x", lag_seconds_max=0), "replica 'replica': lag_seconds_max is 0; it must be above 0"),
        (Replica("postgresql:///x", behind="give up"), "behind is 'give up'; give wait, primary, refuse"),  # type: ignore[arg-type]
        (Replica("postgresql:///x"), "only PostgreSQL has replicas"),
    ):
        with pytest.raises(DefinitionInvalid, match=message):
            made(tmp_path, plain, report_engines={"replica": replica})
