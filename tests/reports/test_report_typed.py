"""Parquet and Arrow from the request to the file: types of the definition, frozen by the plan."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from effects import Effects
from effects_reports import DefinitionInvalid, explain_report, report, report_status, request_report
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.support.manual_workers import row, rows

sales = sa.Table(
    "sales", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("price", sa.Numeric(12, 2)),
    sa.Column("sold_at", sa.DateTime(timezone=True)), sa.Column("note", sa.Text),
)  # fmt: skip
ROWS = [
    {"id": n, "price": Decimal(n) / 4, "sold_at": dt.datetime(2026, 1, 1, n % 24, tzinfo=dt.UTC), "note": f"n{n}"}
    for n in range(1, 251)
]


@report("sales", key=("id",), chunk_rows=100)
def sales_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sales).where(sales.c.id > params.get("above", 0))


@report(
    "doubled", key=("id",), columns={"id": "No.", "price": "Price"}, chunk_rows=100,
    types={"id": sa.Integer, "price": sa.Numeric(14, 2)}, map_row=lambda row: (row.id, row.price * 2),
)  # fmt: skip
def doubled_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sales.c.id, sales.c.price)


@report("untyped", key=("id",), columns=("id", "price"), map_row=tuple)
def untyped_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sales.c.id, sales.c.price)


@report("literal", key=("id",))
def literal_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sales.c.id, sa.literal_column("1").label("one"))


REPORTS = [sales_report, doubled_report, untyped_report, literal_report]


@pytest.fixture
def store(shop_factory: Shop) -> Effects:
    app = shop_factory(reports=REPORTS)
    sales.metadata.create_all(app.engine)
    with app.engine.begin() as connection:
        connection.execute(sales.insert(), ROWS)
    return app


def read(file: bytes, name: str) -> Any:
    return pq.read_table(io.BytesIO(file)) if name == "parquet" else pa.ipc.open_file(file).read_all()


def made(app: Effects, report_name: str, name: str, **params: Any) -> Any:
    run_id = request_report(report_name, params, format=name, effects=app).run_id
    drain(app)
    status = report_status(run_id, effects=app)
    assert status.state == "ready", status
    assert str(status.filename).endswith(f".{name}")
    return read(content(app, run_id), name)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_the_file_has_the_types_of_the_table(store: Effects, name: str) -> None:
    table = made(store, "sales", name)
    assert [str(field.type) for field in table.schema] == [
        "int64", "decimal128(12, 2)", "timestamp[us, tz=UTC]", "string",
    ]  # fmt: skip
    assert table.to_pylist() == ROWS
    assert made(store, "sales", name, above=1000).schema == table.schema


def test_a_mapping_says_its_types(store: Effects) -> None:
    table = made(store, "doubled", "parquet")
    assert [str(field.type) for field in table.schema] == ["int64", "decimal128(14, 2)"]
    assert table.to_pylist() == [{"id": row["id"], "price": row["price"] * 2} for row in ROWS]


@pytest.mark.parametrize(("name", "column"), [("untyped", "'id', 'price'"), ("literal", "'one'")])
def test_a_column_of_no_type_is_refused_with_the_request(store: Effects, name: str, column: str) -> None:
    for ask in (request_report, explain_report):
        with pytest.raises(DefinitionInvalid, match=f"that of {column} is not known: give types="):
            ask(name, {}, format="parquet", effects=store)
    request_report(name, {}, format="csv", effects=store)


def test_a_value_that_its_column_cannot_be_fails_the_run_at_once(store: Effects) -> None:
    if not store.store.is_postgresql:
        pytest.skip("SQLite has no such moment")
    with store.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO sales VALUES (1000, 1, 'infinity', 'for ever')")
    run_id = request_report("sales", {}, format="parquet", effects=store).run_id
    drain(store)
    status = report_status(run_id, effects=store)
    assert (status.state, status.error_code) == ("failed", "value_of_another_type")
    assert "column 'sold_at' is zoned and holds 'infinity'" in str(status.error_text)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_a_worker_with_another_pyarrow_leaves_the_run_to_others(
    store: Effects, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned, begun and joined by one major version; of the same one, the rest of the version changes no byte."""
    worker = ReportWorker(store)
    clean = request_report("sales", {}, format=name, key="clean", effects=store).run_id
    drain(store)
    run_id = request_report("sales", {}, format=name, key="mixed", effects=store).run_id
    worker.do_next()
    assert row(store, "report_runs", f"id = '{run_id}'")["packing"] == f"{name}.pyarrow{pa.__version__.split('.')[0]}"
    for begun in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(pa, "__version__", "7.1.0")
            for job in worker.claim():
                worker.do(job)
        assert report_status(run_id, effects=store).state == ("running" if begun else "assembling")
        assert {job["attempts"] for job in rows(store, "jobs")} == {0}
        store.store.shift_clock(100)
        for job in worker.claim() if begun else []:
            worker.do(job)
    monkeypatch.setattr(pa, "__version__", f"{pa.__version__.split('.')[0]}.9.9")
    drain(store)
    assert report_status(run_id, effects=store).sha256 == report_status(clean, effects=store).sha256


@pytest.mark.parametrize(("types", "says"), [
    ({"id": "integer"}, "types holds"), ({"other": sa.Integer}, "types names 'other', which columns does not have"),
])  # fmt: skip
def test_types_are_checked_with_the_definition(shop_factory: Shop, types: Any, says: str) -> None:
    declared = report("x", key=("id",), columns=("id",), types=types)(lambda: sa.select(sales.c.id))
    with pytest.raises(DefinitionInvalid, match=says):
        shop_factory(reports=[declared])
