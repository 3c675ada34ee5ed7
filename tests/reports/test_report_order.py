"""A report without a key has the order and the limit of its own SELECT, by every route."""

from __future__ import annotations

import io
import json
from typing import Any

import openpyxl
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from effects_reports import explain_report, preview_report, report, report_status, request_report, sql_report
from tests.reports.conftest import Shop, content, drain
from tests.reports.shop import csv_rows, fill, orders

TOTAL = sa.func.sum(orders.c.cents).label("cents")
BEST = sa.select(orders.c.customer, TOTAL).group_by(orders.c.customer).order_by(TOTAL.desc()).limit(3)
TEXT = "SELECT customer, sum(cents) AS cents FROM orders GROUP BY customer ORDER BY cents DESC LIMIT 3"
FORMATS = ("csv", "ndjson", "xlsx", "parquet")
TYPES = {"customer": sa.Text(), "cents": sa.BigInteger()}


@report("best", consistency="single", dialect="rfc4180", formats=FORMATS, types=TYPES)
def best_report() -> Any:
    return BEST


@report("mapped", consistency="single", dialect="rfc4180", columns=("customer", "cents"), map_row=tuple)
def mapped_report() -> Any:
    return BEST


by_text = sql_report("by_text", TEXT, columns=("customer", "cents"), types=TYPES, dialect="rfc4180", formats=FORMATS)
REQUESTS = [("best", file) for file in FORMATS] + [("by_text", file) for file in FORMATS] + [("mapped", "csv")]


@pytest.mark.parametrize(("name", "file"), REQUESTS)
def test_the_rows_come_in_the_selects_own_order(name: str, file: str, shop_factory: Shop) -> None:
    app = shop_factory(reports=[best_report, mapped_report, by_text])
    fill(app, 250)
    with app.engine.connect() as connection:
        expected = [(customer, int(cents)) for customer, cents in connection.execute(BEST)]
    run_id = request_report(name, format=file, effects=app).run_id
    assert explain_report(name, effects=app).refusals == []
    drain(app)
    assert report_status(run_id, effects=app).rows == 3
    assert _read(file, content(app, run_id)) == expected
    previewed = preview_report(name, effects=app).rows
    assert [str(row[0]) for row in previewed] == [customer for customer, _ in expected]


def _read(file: str, whole: bytes) -> list[tuple[str, int]]:
    if file == "csv":
        rows: Any = csv_rows(whole)[1:]
    elif file == "ndjson":
        rows = [json.loads(line).values() for line in whole.splitlines()]
    elif file == "xlsx":
        rows = list(openpyxl.load_workbook(io.BytesIO(whole)).active.values)[1:]  # type: ignore[union-attr]
    else:
        rows = [row.values() for row in pq.read_table(io.BytesIO(whole)).to_pylist()]
    return [(customer, int(cents)) for customer, cents in rows]
