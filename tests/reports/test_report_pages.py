"""An iterable in pages with cursors: made chunk by chunk, continued after its last finished chunk, the same bytes."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from effects import Effects
from effects_reports import (
    Cursor,
    DefinitionInvalid,
    ReportRefused,
    RowPage,
    explain_report,
    preview_report,
    report,
    report_status,
    request_report,
    resume_report,
)
from effects_reports.source.paging import cursor_from_json, cursor_to_json
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.reports.shop import csv_rows
from tests.support.manual_workers import row, rows, run_sql

COUNT, PAGE = 50, 5


class Numbers:
    """A service that gives numbers in pages; it may fail at one, and remembers which pages were asked for."""

    def __init__(self) -> None:
        self.fails_at: int | None = None
        self.pages: list[int] = []
        self.count = COUNT

    def __call__(self, after: Cursor) -> Iterator[RowPage]:
        for first in range(after or 0, self.count, PAGE):
            self.pages.append(first)
            if first == self.fails_at:
                raise ConnectionError("the service is down")
            last = min(first + PAGE, self.count)
            yield RowPage([(number,) for number in range(first, last)], cursor=last if last < self.count else None)

    def definition(self, **options: Any) -> Any:
        settings = {"iterable": True, "columns": ("number",), "chunk_rows": 12, "dialect": "rfc4180", **options}

        def pages(after: Cursor) -> Iterator[RowPage]:
            return self(after)

        return report("numbers", **settings)(pages)


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def app(numbers: Numbers, shop_factory: Shop) -> Effects:
    return shop_factory(reports=[numbers.definition()])


def numbers_of(app: Effects, run_id: str) -> list[int]:
    return [int(number) for [number] in csv_rows(content(app, run_id))[1:]]


def test_chunks_are_of_whole_pages(app: Effects, numbers: Numbers) -> None:
    run_id = request_report("numbers", effects=app).run_id
    drain(app)
    assert numbers_of(app, run_id) == list(range(COUNT))
    status = report_status(run_id, effects=app)
    assert (status.rows, status.consistency, status.progress.chunks_total) == (COUNT, "range", 4)
    assert sorted(chunk["rows_done"] for chunk in rows(app, "report_chunks")) == [5, 15, 15, 15]
    assert explain_report("numbers", effects=app).bounds.startswith("whole pages, 12 rows or more")
    assert preview_report("numbers", rows=7, effects=app).rows == [[str(number)] for number in range(7)]


def test_it_continues_after_the_last_finished_chunk(app: Effects, numbers: Numbers) -> None:
    numbers.fails_at = 35
    run_id = request_report("numbers", effects=app).run_id
    worker = ReportWorker(app)
    for _ in range(8):  # the plan, two chunks, five attempts at the third
        worker.do_next()
        app.store.shift_clock(200)
    assert (report_status(run_id, effects=app).state, numbers.pages.count(30)) == ("failed", 5)
    numbers.fails_at, numbers.pages = None, []
    resume_report(run_id, effects=app)
    drain(app)
    assert numbers.pages == list(range(30, COUNT, PAGE))
    assert numbers_of(app, run_id) == list(range(COUNT))
    undisturbed = request_report("numbers", key="undisturbed", effects=app).run_id
    drain(app)
    assert content(app, undisturbed) == content(app, run_id)


def test_a_late_attempt_adds_no_chunk(app: Effects) -> None:
    run_id = request_report("numbers", effects=app).run_id
    worker = ReportWorker(app)
    worker.do_next()
    late = worker.claim_one()
    settlement = worker.perform(late)
    run_sql(app, "UPDATE effects_report_chunks SET token = token + 1")
    worker.write(settlement)
    assert len(rows(app, "report_chunks")) == 1
    assert row(app, "report_chunks")["state"] == "running"
    assert report_status(run_id, effects=app).state == "running"


@pytest.mark.parametrize("changed", [False, True])
def test_a_lost_part_is_made_again_up_to_where_it_ended(
    changed: bool, app: Effects, numbers: Numbers, tmp_path: Path
) -> None:
    run_id = request_report("numbers", effects=app).run_id
    worker = ReportWorker(app)
    for _ in range(5):  # the plan and the chunks
        worker.do_next()
    [part] = (tmp_path / "files").rglob("parts/00002.*")
    part.unlink()
    if changed:
        numbers.count = 22
    drain(app)
    status = report_status(run_id, effects=app)
    if changed:
        assert (status.state, status.error_code) == ("failed", "cursor_missed")
    else:
        assert numbers_of(app, run_id) == list(range(COUNT))
        assert status.progress.chunks_total == 4


def test_more_than_rows_max_fails(numbers: Numbers, shop_factory: Shop) -> None:
    app = shop_factory(reports=[numbers.definition(rows_max=20)])
    run_id = request_report("numbers", effects=app).run_id
    drain(app)
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "too_many_rows")
    assert numbers.pages[-1] < 30


def endless(after: Cursor) -> Iterator[RowPage]:
    while True:
        yield RowPage([(1,)], cursor=7)


def wordless(after: Cursor) -> Iterator[Any]:
    yield (1,)


def rowless(after: Cursor) -> Iterator[RowPage]:
    yield RowPage(iter([(1,)]), cursor=1)  # type: ignore[arg-type]


def unwritable(after: Cursor) -> Iterator[RowPage]:
    yield RowPage([(1,)], cursor={"page": 2})


@pytest.mark.parametrize(
    ("source", "code"),
    [(endless, "cursor_stuck"), (wordless, "row_shape"), (rowless, "row_shape"), (unwritable, "key_type")],
)
def test_what_is_no_page_or_leads_nowhere_is_refused(source: Any, code: str, shop_factory: Shop) -> None:
    app = shop_factory(reports=[report("bad", iterable=True, columns=("a",), chunk_rows=1)(source)])
    run_id = request_report("bad", effects=app).run_id
    drain(app)
    assert report_status(run_id, effects=app).error_code == code


def test_the_cursor_is_told_from_params_when_it_is_declared(shop_factory: Shop) -> None:
    def counted(after: int) -> Iterator[Any]:
        yield from ()

    with pytest.raises(DefinitionInvalid, match="the argument `after` of an iterable is its cursor"):
        shop_factory(reports=[report("bad", iterable=True, columns=("a",))(counted)])
    with pytest.raises(DefinitionInvalid, match="that of a select\\(\\) is a param, and has its type"):
        shop_factory(reports=[report("bad", key=("id",))(lambda *, after: None)])


class Page(str, enum.Enum):  # noqa: UP042 - as apps have them: its `str` is not its value
    SECOND = "page-2"


@pytest.mark.parametrize(
    "cursor",
    [
        7, 7.5, "", "page-2", b"\x00", True, (1, "a"), (3,), dt.date(2026, 1, 14),
        dt.datetime(2026, 1, 14, 5, tzinfo=dt.UTC), decimal.Decimal("1.50"), uuid.UUID(int=5), (), Page.SECOND,
    ],
    ids=repr,
)  # fmt: skip
def test_a_cursor_outlives_its_process(cursor: Any) -> None:
    assert cursor_from_json(msgspec.json.encode(cursor_to_json(cursor)).decode()) == cursor


def test_a_cursor_of_another_type_is_refused() -> None:
    with pytest.raises(ReportRefused, match="give numbers"):
        cursor_to_json([1])
