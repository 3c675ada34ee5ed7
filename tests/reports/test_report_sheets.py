"""One workbook of several SELECTs: one run, chunks of all sheets side by side, and the same bytes twice."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import openpyxl
import pytest
import sqlalchemy as sa

from effects_reports import (
    DefinitionInvalid,
    ParamsInvalid,
    ReportDefinition,
    ReportInvalid,
    Workbook,
    explain_report,
    preview_report,
    report,
    report_status,
    request_report,
    sql_report,
    workbook_report,
)
from effects_reports.formats import fragments as sheet_rows
from tests.reports.conftest import ReportWorker, Shop, content, drain, refused
from tests.reports.shop import euros_report, fill, fresh_report, lines_report, orders, primes_report, totals_report
from tests.support.manual_workers import rows


class Above(msgspec.Struct, frozen=True):
    above: int = 0
    below: int = 10_000


@report("cheap", key=("id",), chunk_rows=40, workbook=Workbook(formats={"cents": "0.00"}, totals=("cents",)))
def cheap(*, above: int = 0) -> sa.Select[Any]:
    return sa.select(orders.c.id, orders.c.cents).where(orders.c.id > above)


@report("named", key=("id",), chunk_rows=60, workbook=Workbook(formats={"id": "0000"}))
def named(*, below: int = 10_000) -> sa.Select[Any]:
    return sa.select(orders.c.id, orders.c.customer).where(orders.c.id < below)


COUNTED = sql_report("counted", "SELECT count(*) AS rows FROM orders", columns=("rows",))


def year(**options: Any) -> ReportDefinition:
    sheets = {"Cheap": cheap, "Nobody": lines_report, "Named": named, "Totals": totals_report, "Count": COUNTED}
    look = Workbook(cover="The year")
    return workbook_report("year", sheets, **{"params": Above, "workbook": look, "version": 2, **options})


def read(file: bytes) -> dict[str, list[tuple[Any, ...]]]:
    book = openpyxl.load_workbook(io.BytesIO(file))
    return {sheet.title: list(sheet.values) for sheet in book}


@pytest.mark.parametrize("consistency", ["range", "snapshot"])
def test_each_select_is_a_sheet(consistency: str, shop_factory: Shop) -> None:
    app = shop_factory(reports=[year(consistency=consistency)])
    fill(app, 150)
    run_id = request_report("year", {"above": 10, "below": 100}, effects=app).run_id
    worker = ReportWorker(app)
    while rows(app, "jobs"):
        worker.do_next()
    status = report_status(run_id, effects=app)
    assert (status.state, status.format) == ("ready", "xlsx"), status
    sheets = read(content(app, run_id))
    assert list(sheets) == ["About", "Cheap", "Nobody", "Named", "Totals", "Count"]
    assert (sheets["Cheap"][0], sheets["Cheap"][1][0], len(sheets["Cheap"])) == (("id", "cents"), 12, 149)
    assert sheets["Cheap"][-1] == ("Total", "=SUM('Cheap'!B2:B148)")
    assert sheets["Nobody"] == [("order_id", "place", "article")]
    assert [row[0] for row in sheets["Named"]] == ["id", *range(3, 100, 3)]
    assert sheets["Count"] == [("rows",), (150,)]
    assert status.rows == 147 + 33 + len(sheets["Totals"]) - 1 + 1
    assert len(rows(app, "report_chunks")) == 4 + 1 + 1 + 1


def test_a_sheet_keeps_its_own_formats_beside_those_of_others(shop_factory: Shop) -> None:
    app = shop_factory(reports=[year()])
    fill(app, 5)
    run_id = request_report("year", effects=app).run_id
    drain(app)
    book = openpyxl.load_workbook(io.BytesIO(content(app, run_id)))
    assert (book["Cheap"]["B2"].number_format, book["Named"]["A2"].number_format) == ("0.00", "0000")


def test_a_full_sheet_goes_on_under_a_name_that_no_other_has(
    shop_factory: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheet_rows, "ROWS_MAX", 40)
    app = shop_factory(reports=[workbook_report("both", {"Rows": cheap, "rows 2": cheap})])
    fill(app, 100)
    run_id = request_report("both", effects=app).run_id
    drain(app)
    sheets = read(content(app, run_id))
    assert list(sheets) == ["Rows", "Rows 2_", "Rows 3", "rows 2", "rows 2 2", "rows 2 3"]
    assert [row[0] for name in list(sheets)[:3] for row in sheets[name][1:]][:-1] == list(range(3, 301, 3))


def test_twice_it_has_the_same_bytes_and_a_chunk_that_is_halved_stays_in_its_sheet(shop_factory: Shop) -> None:
    app = shop_factory(reports=[workbook_report("both", {"A": cheap, "B": named})])
    fill(app, 70)
    first, second = (request_report("both", key=key, effects=app).run_id for key in ("a", "b"))
    drain(app)
    digests = {report_status(run_id, effects=app).sha256 for run_id in (first, second)}
    assert len(digests) == 1
    assert [len(sheet) for sheet in read(content(app, first)).values()] == [72, 71]


def test_params_are_read_once_for_all(shop_factory: Shop) -> None:
    app = shop_factory(reports=[year()])
    with pytest.raises(ParamsInvalid, match="takes no param 'upto'"):
        request_report("year", {"upto": 1}, effects=app)


def test_another_set_of_sheets_is_another_report(shop_factory: Shop) -> None:
    app = shop_factory(reports=[workbook_report("both", {"A": cheap, "B": named})])
    fill(app, 50)
    run_id = request_report("both", effects=app).run_id
    ReportWorker(app).do_next()
    changed = workbook_report("both", {"A": cheap, "C": named})
    drain(shop_factory(reports=[changed], url=str(app.settings.database_url)))
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "definition_changed")


def test_all_rows_together_count(shop_factory: Shop) -> None:
    app = shop_factory(reports=[workbook_report("both", {"A": cheap, "B": named}, rows_max=100)])
    fill(app, 60)
    assert "too_many_rows: report 'both' has more than 100 rows" in refused(app, "both")


def test_sheets_are_explained_and_previewed_one_by_one(shop_factory: Shop) -> None:
    app = shop_factory(reports=[year()])
    fill(app, 5)
    first, named_sheet = (explain_report("year", sheet=sheet, effects=app) for sheet in (None, "Named"))
    assert (first.sheet, first.columns) == ("Cheap", ["id", "cents"])
    assert (named_sheet.sheet, named_sheet.columns, named_sheet.refusals) == ("Named", ["id", "customer"], [])
    assert preview_report("year", {"above": 3}, effects=app).rows[0][0] == "6"
    assert preview_report("year", sheet="Count", effects=app).rows == [["5"]]
    with pytest.raises(ReportInvalid, match=r"has no sheet 'named' \(it has Cheap, Nobody, Named, Totals, Count\)"):
        preview_report("year", sheet="named", effects=app)


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "none": ({}, {}, "it has 0 sheets; give 1 to 50"),
    "list": ([cheap], {}, "sheets is a list; give a dict"),
    "number": ({1: cheap}, {}, "the name of a sheet is an int"),
    "function": ({"A": lambda: None}, {}, "sheet 'A' is a function; give a function decorated by @report"),
    "case": ({"Orders": cheap, "orders": named}, {}, "to Excel the sheets 'Orders' and 'orders' have one name"),
    "nested": ({"A": workbook_report("b", {"B": cheap})}, {}, "sheet 'A' is a workbook of its own"),
    "iterable": ({"A": primes_report}, {}, "sheet 'A' is an iterable"),
    "since": ({"A": fresh_report}, {}, "sheet 'A' is incremental"),
    "csv": ({"A": cheap}, {"formats": ("xlsx", "csv")}, "formats holds csv; sheets are of xlsx and xlsx.zip alone"),
    "columns": ({"A": cheap}, {"columns": ("id",)}, "columns is an option of its sheets"),
    "long": ({"A" * 26: euros_report}, {}, "workbook: sheet is 'AAAAAAAAAAAAAAAAAAAAAAAAAA'; give 1 to 25 characters"),
    "sheet": ({"A": cheap}, {"workbook": Workbook(sheet="B")}, "sheet is 'B', and the sheets have names of their own"),
    "history": ({"History": cheap}, {}, "sheet is 'History', a name that Excel keeps for itself"),
    "totals": ({"A": cheap}, {"workbook": Workbook(totals=("cents",))}, "names the column 'cents'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_workbook_is_refused_before_a_worker_sees_it(case: str, shop_factory: Shop) -> None:
    sheets, options, why = WRONG[case]
    with pytest.raises(DefinitionInvalid, match=why.replace("(", r"\(")):
        shop_factory(reports=[workbook_report("w", sheets, **options)])
