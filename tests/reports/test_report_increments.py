"""Reports of what is new: over all runs each row once, whoever commits late, fails, is cancelled or comes between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text

from effects import Effects
from effects_reports import (
    DefinitionInvalid,
    ReportStateError,
    Since,
    cancel_report,
    list_reports,
    preview_report,
    report,
    report_status,
    request_report,
    resume_report,
    rewind_report,
)
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.reports.shop import csv_rows
from tests.reports.steps import settle
from tests.support.sampling import sample

metadata = MetaData()
entries = Table(
    "entries", metadata, Column("id", Integer, primary_key=True), Column("word", Text), sqlite_autoincrement=True
)  # fmt: skip
others = Table("others", metadata, Column("id", Integer, primary_key=True))
NUMBERS = sa.text("SELECT nextval(pg_get_serial_sequence('entries', 'id'))")


@report("new_entries", key=("id",), chunk_rows=3, dialect="rfc4180")
def new_entries(since: Since) -> sa.Select[Any]:
    return sa.select(entries).where(since.new_rows(entries))


@report("none", key=("id",))
def no_table(since: Since) -> sa.Select[Any]:
    return sa.select(entries)


@report("unnumbered", key=("id",))
def unnumbered(since: Since) -> sa.Select[Any]:
    return sa.select(others).where(since.new_rows(others))


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    shop = shop_factory(reports=(new_entries, no_table, unnumbered))
    metadata.create_all(shop.engine)
    return shop


def rows_of(app: Effects, run_id: str) -> list[int]:
    return [int(row[0]) for row in csv_rows(content(app, run_id))[1:]]


def run_report(app: Effects) -> list[int]:
    settle(app)
    run_id = request_report("new_entries", effects=app).run_id
    drain(app)
    return rows_of(app, run_id)


def insert(app: Effects, *ids: int) -> None:
    with app.engine.begin() as connection:
        connection.execute(entries.insert(), [{"id": number, "word": "w"} for number in ids])


# -- one row at a time -------------------------------------------------------------------------------------------


def test_each_run_has_what_came_since_the_last(app: Effects) -> None:
    insert(app, 1, 2, 3, 4)
    assert run_report(app) == [1, 2, 3, 4]
    assert run_report(app) == []
    insert(app, 5)
    assert run_report(app) == [5]
    assert preview_report("new_entries", rows=2, effects=app).rows == [["1", "w"], ["2", "w"]]


def test_a_run_that_did_not_end_ready_advances_nothing(app: Effects) -> None:
    insert(app, 1, 2)
    worker = ReportWorker(app)
    settle(app)
    cancelled = request_report("new_entries", effects=app).run_id
    worker.do_next()
    cancel_report(cancelled, effects=app)
    insert(app, 3)
    assert run_report(app) == [1, 2, 3]
    resume_report(cancelled, effects=app)  # its rows have been another's since
    drain(app)
    status = report_status(cancelled, effects=app)
    assert (status.state, status.error_code) == ("failed", "superseded")
    assert run_report(app) == []


def test_a_resumed_run_is_ready_if_no_other_has_begun(app: Effects) -> None:
    insert(app, 1, 2)
    worker = ReportWorker(app)
    settle(app)
    run_id = request_report("new_entries", effects=app).run_id
    worker.do_next()
    cancel_report(run_id, effects=app)
    insert(app, 3)
    resume_report(run_id, effects=app)
    drain(app)
    assert rows_of(app, run_id) == [1, 2]
    assert run_report(app) == [3]


def test_a_run_waits_for_one_that_is_under_way(app: Effects) -> None:
    insert(app, 1)
    worker = ReportWorker(app)
    settle(app)
    first, second = (request_report("new_entries", effects=app).run_id for _ in range(2))
    planned, waiting = map(worker.do, worker.claim())
    assert (planned.outcome, waiting.outcome, waiting.error_code) == ("succeeded", "snoozed", "run_under_way")
    assert report_status(second, effects=app).state == "planning"
    cancel_report(second, effects=app)
    drain(app)
    assert rows_of(app, first) == [1]


def test_a_report_of_what_is_new_asks_for_one_table(app: Effects) -> None:
    run_id = request_report("none", effects=app).run_id
    drain(app)
    assert "asks for the new rows of 0 tables" in str(report_status(run_id, effects=app).error_text)


def test_sqlite_must_number_no_row_twice(app: Effects) -> None:
    run_id = request_report("unnumbered", effects=app).run_id
    drain(app)
    status = report_status(run_id, effects=app)
    if app.store.is_postgresql:
        assert status.state == "ready"
    else:
        assert "sqlite_autoincrement=True" in str(status.error_text)


def test_an_iterable_cannot_be_incremental(shop_factory: Shop) -> None:
    @report("bad", iterable=True, columns=("a",))
    def bad(since: Since) -> Iterator[Any]:
        yield (1,)

    with pytest.raises(DefinitionInvalid, match="cannot take `since`"):
        shop_factory(reports=(bad,)).job_types.get("report.plan")


def test_a_database_that_is_behind_its_watermark_is_refused(app: Effects) -> None:
    if not app.store.is_postgresql:
        pytest.skip("SQLite's numbers go with the rows")
    insert(app, 1)
    assert run_report(app) == [1]
    with app.store.begin() as connection:
        table = app.store.tables["report_watermarks"]
        connection.execute(sa.update(table).values(position=table.c.position + 1_000_000))
    run_id = request_report("new_entries", effects=app).run_id
    drain(app)
    assert report_status(run_id, effects=app).error_code == "watermark_ahead"
    assert rewind_report("new_entries", effects=app)
    assert run_report(app) == [1]


def test_a_rewound_report_begins_with_every_row(app: Effects) -> None:
    insert(app, 1, 2)
    assert not rewind_report("new_entries", effects=app)
    assert run_report(app) == [1, 2]
    assert rewind_report("new_entries", effects=app)
    assert run_report(app) == [1, 2]


# -- all at once -------------------------------------------------------------------------------------------------


class _Writers:
    """Transactions that are begun, write and end in any order; savepoints in them, some rolled back."""

    def __init__(self, app: Effects, rng: random.Random) -> None:
        self._rng = rng
        self._numbered = app.store.is_postgresql
        # An engine of its own is another program's: effects does not warn of its open transactions.
        self._engine = sa.create_engine(app.engine.url) if self._numbered else app.engine
        self._connections = [self._engine.connect() for _ in range(4 if self._numbered else 1)]
        self._open: dict[Connection, list[int]] = {}
        self._free = iter(rng.sample(range(-10_000, -1), 1000))  # keys that an app chose, in no order
        self.committed: list[int] = []

    def write(self) -> None:
        connection = self._rng.choice(self._connections)
        ids = self._open.setdefault(connection, [])
        for _ in range(self._rng.randrange(1, 4)):
            number = self._number(connection)
            savepoint = connection.begin_nested() if self._rng.random() < 0.5 else None
            connection.execute(entries.insert().values(id=number, word="w"))
            if savepoint is not None and self._rng.random() < 0.3:
                savepoint.rollback()
                continue
            if savepoint is not None:
                savepoint.commit()
            ids.append(number)

    def _number(self, connection: Connection) -> int:
        if not self._numbered:
            newest = connection.scalar(sa.text("SELECT max(seq) FROM sqlite_sequence WHERE name = 'entries'"))
            return int(newest or 0) + 1
        return int(connection.scalar(NUMBERS) or 0) if self._rng.random() < 0.5 else next(self._free)

    def end(self) -> None:
        if not self._open:
            return
        connection = self._rng.choice(list(self._open))
        ids = self._open.pop(connection)
        if self._rng.random() < 0.8:
            connection.commit()
            self.committed += ids
        else:
            connection.rollback()

    def end_all(self) -> None:
        while self._open:
            self.end()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        if self._numbered:
            self._engine.dispose()


class _Runs:
    def __init__(self, app: Effects) -> None:
        self._app = app
        self._worker = ReportWorker(app)
        self.cancelled: list[str] = []

    def make(self) -> None:
        request_report("new_entries", effects=self._app)
        drain(self._app)

    def break_off(self) -> None:
        run_id = request_report("new_entries", effects=self._app).run_id
        self._worker.do_next()
        cancel_report(run_id, effects=self._app)
        drain(self._app)
        self.cancelled.append(run_id)

    def resume(self) -> None:
        if not self.cancelled:
            return
        try:
            resume_report(self.cancelled.pop(), effects=self._app)
        except ReportStateError:
            return
        drain(self._app)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(200), 3))
def test_over_all_runs_each_row_is_in_one(app: Effects, seed: int) -> None:
    rng = random.Random(seed)
    writers, runs = _Writers(app, rng), _Runs(app)
    try:
        for _ in range(30):
            if not app.store.is_postgresql:
                writers.end_all()  # SQLite has one writer, and effects writes too
            rng.choices([writers.write, writers.end, runs.make, runs.break_off, runs.resume], [8, 6, 3, 1, 1])[0]()
        writers.end_all()
    finally:
        writers.close()
    settle(app)
    runs.make()
    ready = list_reports(report="new_entries", state="ready", limit=100, effects=app)
    in_files = Counter(number for status in ready for number in rows_of(app, status.run_id))
    assert in_files == Counter(writers.committed)
