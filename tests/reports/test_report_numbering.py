"""A chunk of a workbook numbers its rows by what is planned before it; the assembly, those that stand elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import openpyxl
import pytest
import sqlalchemy as sa

from effects import Effects
from effects_reports import Cursor, RowPage, report, request_report, workbook_report
from effects_reports.formats.fragments import read_frames
from tests.reports.conftest import COUNT, ReportWorker, Shop, content
from tests.reports.shop import Starved, fill, orders, orders_report
from tests.reports.steps import state
from tests.support.manual_workers import rows

OPTIONS: dict[str, Any] = {"key": ("id",), "chunk_rows": 100, "formats": ("xlsx",)}


@report("planned", **OPTIONS)
def planned_report() -> sa.Select[Any]:
    return sa.select(orders)


@report("single", consistency="single", formats=("xlsx",))
def single_report() -> sa.Select[Any]:
    return sa.select(orders)


@report("snapshot", consistency="snapshot", **OPTIONS)
def snapshot_report() -> sa.Select[Any]:
    return sa.select(orders)


def _halved() -> Any:
    return report("halved", map_batch=Starved(), columns=("id", "customer", "cents"), **OPTIONS)(
        lambda: sa.select(orders)
    )


@report("sparse", map_row=lambda row: row if row.id % 2 else None, columns=("id", "customer", "cents"), **OPTIONS)
def sparse_report() -> sa.Select[Any]:
    return sa.select(orders)


@report("pages", iterable=True, columns=("number", "text", "cents"), chunk_rows=100, formats=("xlsx",))
def pages_report(after: Cursor) -> Iterator[RowPage]:
    for start in range(after or 0, COUNT, 50):
        yield RowPage(
            [(n, "x", 1) for n in range(start, start + 50)], cursor=start + 50 if start + 50 < COUNT else None
        )


two_sheets = workbook_report("two_sheets", {"First": planned_report, "Second": planned_report})


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    reports = (planned_report, single_report, snapshot_report, _halved(), sparse_report, pages_report, two_sheets)
    app = shop_factory(reports=[orders_report, *reports])
    fill(app, COUNT)
    return app


def _firsts(app: Effects, run_id: str) -> list[int]:
    """The number of the first row of each part, as its chunk wrote it."""
    done = rows(app, "report_chunks", "run_id = :id AND state = 'done'", id=run_id)
    return [next(read_frames(app.storage.read(chunk["part"])))[0].first for chunk in done]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("planned", [2, 102, 202]),
        ("snapshot", [2, 102, 202]),
        ("single", [2]),
        ("halved", [2, 52, 102, 202]),
        ("pages", [2, 102, 202]),
        ("two_sheets", [2, 102, 202, 2, 102, 202]),
        ("sparse", [2, 102, 202]),  # half of the rows are left out: the second and the third are numbered again
    ],
)
def test_a_chunk_numbers_its_rows_by_the_plan(app: Effects, name: str, numbers: list[int]) -> None:
    run_id = request_report(name, format="xlsx", effects=app).run_id
    worker = ReportWorker(app)
    while state(app, run_id) != "ready":
        worker.do_next()
    assert _firsts(app, run_id) == numbers
    book = openpyxl.load_workbook(io.BytesIO(content(app, run_id)))
    expected = COUNT // 2 if name == "sparse" else COUNT
    assert [len(list(sheet.values)) for sheet in book] == [1 + expected] * len(book.sheetnames)


def test_rows_that_came_after_the_plan_are_numbered_where_they_are(app: Effects) -> None:
    """Of `range`: they are in the file if their chunk was not read yet, and all rows behind them have moved."""
    run_id = request_report("planned", format="xlsx", effects=app).run_id
    worker = ReportWorker(app)
    worker.do_next()
    with app.engine.begin() as connection:
        connection.execute(orders.insert(), [{"id": n, "customer": "late", "cents": 1} for n in (1, 2, 301)])
    while state(app, run_id) != "ready":
        worker.do_next()
    assert _firsts(app, run_id) == [2, 102, 202]
    sheet = openpyxl.load_workbook(io.BytesIO(content(app, run_id))).active
    assert sheet is not None
    ids = [row[0] for row in sheet.iter_rows(min_row=2, values_only=True)]
    assert ids == sorted([1, 2, 301, *range(3, 3 * COUNT + 1, 3)])
