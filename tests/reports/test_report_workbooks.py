"""A workbook from the request to the file: its options are the definition's, its number formats frozen by the plan."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import openpyxl
import pytest
import sqlalchemy as sa

from effects_reports import DefinitionInvalid, Workbook, report, report_status, request_report
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.reports.shop import fill, orders
from tests.support.manual_workers import rows

LONG = 33_000


def _source(*, above: int = 0) -> Any:
    return sa.select(orders).where(orders.c.id > above)


def _definition() -> Any:
    workbook = Workbook(
        sheet="Orders", cover="Orders of the shop", totals=("cents",), formats={"cents": "0.00"}, long_texts="cut"
    )
    declare = report("orders", key=("id",), chunk_rows=100, formats=("xlsx",), workbook=workbook)
    return declare(_source)


def test_the_workbook_of_a_report(shop_factory: Shop) -> None:
    app = shop_factory(reports=[_definition()])
    fill(app, 250)
    with app.engine.begin() as connection:
        connection.execute(orders.insert(), [{"id": 1000, "customer": "x" * LONG, "cents": 5}])
    run_id = request_report("orders", {"above": 30}, effects=app).run_id
    drain(app)

    status = report_status(run_id, effects=app)
    assert (status.state, status.rows) == ("ready", 241)
    book = openpyxl.load_workbook(io.BytesIO(content(app, run_id)))
    assert book.sheetnames == ["About", "Orders"]
    cover = dict(row[:2] for row in book["About"].iter_rows(values_only=True))
    assert (cover["Report"], cover["Rows"], cover["above"]) == ("orders", "241", "30")
    assert str(cover["As of"]).startswith("20")
    table = list(book["Orders"].values)
    assert (table[0], table[1][0], len(table)) == (("id", "customer", "cents"), 33, 243)
    assert table[-1] == ("Total", None, "=SUM('Orders'!C2:C242)")
    details = [attempt["detail"] for attempt in rows(app, "job_attempts") if attempt["detail"]]
    decoded = [msgspec.json.decode(detail) if isinstance(detail, str) else detail for detail in details]
    assert sum(detail.get("texts_cut", 0) for detail in decoded) == 1


def test_a_changed_number_format_is_another_report(shop_factory: Shop) -> None:
    """The styles of parts that are written would be others in the file."""
    app = shop_factory(reports=[_definition()])
    fill(app, 50)
    run_id = request_report("orders", effects=app).run_id
    ReportWorker(app).do_next()
    changed = report("orders", key=("id",), chunk_rows=100, formats=("xlsx",), workbook=Workbook(formats={"id": "000"}))
    drain(shop_factory(reports=[changed(_source)], url=str(app.settings.database_url)))
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "definition_changed")


@pytest.mark.parametrize("columns", [None, ("id", "cents")])
def test_a_workbook_of_unknown_columns_is_refused(columns: Any, shop_factory: Shop) -> None:
    declared = report("x", key=("id",), columns=columns, workbook=Workbook(totals=("sum",)))
    with pytest.raises(DefinitionInvalid, match="'sum', which the report does not have"):
        shop_factory(reports=[declared(lambda: sa.select(orders))])
