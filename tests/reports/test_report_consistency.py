"""What each consistency promises, row by row, while a storm of inserts, updates and deletes goes over the table."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from effects import Effects
from effects.worker import Worker
from effects_reports import repair_reports, report_status, request_report
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.reports.shop import csv_rows, fill, frozen_report, orders
from tests.reports.steps import lose_snapshot
from tests.support.manual_workers import rows, run_sql
from tests.support.running import running
from tests.support.waiting import wait_until

COUNT = 1000
TRANSFER = 7  # cents, from one order to another


class Storm:
    """Until it is stopped: inserts behind and between, deletes and transfers, all of which keep the sum of all cents.

    `deleted` and `inserted` are ids; an id that is deleted never comes back.
    """

    def __init__(self, app: Effects, seed: int) -> None:
        self._app, self._draw = app, random.Random(seed)
        self.deleted: set[int] = set()
        self.inserted: set[int] = set()
        self.steps = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._blow)

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _blow(self) -> None:
        while not self._over.is_set():
            with self._app.store._writer, self._app.engine.begin() as connection:
                self._step(connection)
            self.steps += 1
            self._over.wait(0.001)

    def _step(self, connection: sa.Connection) -> None:
        n = self._draw.randrange(1, COUNT + 1)
        kind = self._draw.randrange(4)
        if kind == 0:
            new = 3 * COUNT + 3 * len(self.inserted) if self._draw.random() < 0.5 else 3 * n + 1
            if new not in self.inserted and new > 3:
                connection.execute(orders.insert(), {"id": new + 1, "customer": "new", "cents": 0})
                self.inserted.add(new)
        elif kind == 1 and 3 * n not in self.deleted:
            gone = sa.select(orders.c.cents).where(orders.c.id == 3 * n).scalar_subquery()
            heir = 3 * (n % COUNT + 1)
            if heir in self.deleted:
                return
            connection.execute(sa.update(orders).where(orders.c.id == heir).values(cents=orders.c.cents + gone))
            connection.execute(sa.delete(orders).where(orders.c.id == 3 * n))
            self.deleted.add(3 * n)
        else:
            giver, taker = self._draw.sample(range(1, COUNT + 1), 2)
            if {3 * giver, 3 * taker} & self.deleted:
                return
            for which, sign in ((giver, -1), (taker, 1)):
                change = orders.c.cents + sign * TRANSFER
                connection.execute(sa.update(orders).where(orders.c.id == 3 * which).values(cents=change))


@pytest.fixture
def seed() -> int:
    chosen = random.randrange(1 << 32)
    print(f"seed {chosen}")
    return chosen


def made_in_a_storm(app: Effects, name: str, seed: int) -> tuple[list[list[str]], Storm]:
    """The rows of a report that is planned and made, chunk after chunk, while the storm blows; and the storm."""
    fill(app, COUNT)
    run_id = request_report(name, effects=app).run_id
    manual_worker = ReportWorker(app)
    storm = Storm(app, seed)
    with storm:
        wait_until(lambda: storm.steps > 20)
        manual_worker.do_next()
        while (job := next(iter(manual_worker.claim(1)), None)) is not None and job.job_type == "report.chunk":
            at = storm.steps
            manual_worker.do(job)
            wait_until(lambda at=at: storm.steps > at + 5)  # type: ignore[misc]
        assert job is not None
        manual_worker.do(job)
    assert report_status(run_id, effects=app).state == "ready"
    return csv_rows(content(app, run_id))[1:], storm


@pytest.mark.slow
def test_range_has_no_row_twice_and_misses_none_that_stayed(shop: Effects, seed: int) -> None:
    records, storm = made_in_a_storm(shop, "orders", seed)
    ids = [int(row[0]) for row in records]
    assert ids == sorted(set(ids))
    stayed = {3 * n for n in range(1, COUNT + 1)} - storm.deleted
    assert stayed <= set(ids)
    assert storm.deleted, "the storm did nothing"
    possible = {3 * n for n in range(1, COUNT + 1)} | {new + 1 for new in storm.inserted}
    assert set(ids) <= possible


@pytest.mark.slow
def test_range_excludes_rows_beyond_its_bound(shop: Effects) -> None:
    fill(shop, COUNT)
    run_id = request_report("orders", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    manual_worker.do_next()
    with shop.engine.begin() as connection:
        connection.execute(orders.insert(), {"id": 3 * COUNT + 5, "customer": "late", "cents": 1})
    drain(shop)
    assert "late" not in content(shop, run_id).decode()


@pytest.mark.slow
def test_snapshot_is_one_instant(shop: Effects, seed: int) -> None:
    """Money moves between the orders and never appears or vanishes: every instant has the same sum."""
    records, storm = made_in_a_storm(shop, "frozen", seed)
    total = sum(11 * n for n in range(1, COUNT + 1))
    assert sum(int(row[2]) for row in records) == total
    ids = [int(row[0]) for row in records]
    assert ids == sorted(set(ids))
    assert storm.steps > 50


@pytest.mark.slow
def test_range_is_not_one_instant(shop: Effects) -> None:
    """Without this the test above would prove nothing: here the money is counted while it moves."""
    fill(shop, 200)
    run_id = request_report("orders", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    manual_worker.do_next()
    first, second = manual_worker.claim()
    manual_worker.do(first)
    with shop.engine.begin() as connection:
        connection.execute(sa.update(orders).where(orders.c.id == 3).values(cents=orders.c.cents - 5))
        connection.execute(sa.update(orders).where(orders.c.id == 600).values(cents=orders.c.cents + 5))
    manual_worker.do(second)
    drain(shop)
    total = sum(11 * n for n in range(1, 201))
    assert sum(int(row[2]) for row in csv_rows(content(shop, run_id))[1:]) == total + 5


@pytest.mark.slow
def test_single_is_one_statement(shop: Effects, seed: int) -> None:
    fill(shop, COUNT)
    with Storm(shop, seed) as storm:
        wait_until(lambda: storm.steps > 20)
        run_id = request_report("totals", effects=shop).run_id
        drain(shop)
    total = sum(11 * n for n in range(1, COUNT + 1))
    assert sum(int(row[1]) for row in csv_rows(content(shop, run_id))[1:]) == total


# -- a snapshot that is lost ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_snapshot_under_a_drain_is_refused(shop: Effects) -> None:
    fill(shop, 5)
    run_id = request_report("frozen", effects=shop).run_id
    drain(shop)
    status = report_status(run_id, effects=shop)
    assert (status.state, status.error_code) == ("failed", "snapshot_under_drain")
    assert "run `effects work` without --drain" in str(status.error_text)


@pytest.mark.slow
def test_a_worker_that_stays_makes_the_snapshot(shop: Effects, tmp_path: Path) -> None:
    fill(shop, 250)
    run_id = request_report("frozen", effects=shop).run_id
    with running(Worker(shop)):
        wait_until(lambda: report_status(run_id, effects=shop).ended and not rows(shop, "jobs"))
    assert report_status(run_id, effects=shop).state == "ready"
    assert len(csv_rows(content(shop, run_id))) == 251
    assert list(tmp_path.glob("*-report-*")) == []  # the copy of the SQLite file is gone with the run


@pytest.mark.slow
def test_a_lost_snapshot_restarts_the_run_and_keeps_its_progress(shop: Effects, tmp_path: Path) -> None:
    fill(shop, 250)
    run_id = request_report("frozen", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    manual_worker.do_next()
    manual_worker.do_next()
    shown = report_status(run_id, effects=shop).progress.fraction
    lose_snapshot(shop, tmp_path)
    manual_worker.do_next()
    status = report_status(run_id, effects=shop)
    assert (status.state, status.progress.fraction) == ("requested", shown)
    with running(Worker(shop)):
        wait_until(lambda: report_status(run_id, effects=shop).ended)
    assert (report_status(run_id, effects=shop).state, len(csv_rows(content(shop, run_id)))) == ("ready", 251)


@pytest.mark.slow
def test_a_snapshot_that_is_lost_again_and_again_fails_the_run(shop: Effects, tmp_path: Path) -> None:
    fill(shop, 5)
    run_id = request_report("frozen", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    for _ in range(3):
        assert report_status(run_id, effects=shop).state == "requested"
        manual_worker.do_next()
        lose_snapshot(shop, tmp_path)
        manual_worker.do_next()
    status = report_status(run_id, effects=shop)
    assert (status.state, status.error_code) == ("failed", "snapshot_lost")


@pytest.mark.slow
def test_a_snapshot_is_released_when_its_effects_is_disposed(shop: Effects) -> None:
    fill(shop, 5)
    run_id = request_report("frozen", effects=shop).run_id
    before = set(threading.enumerate())
    ReportWorker(shop).do_next()
    assert report_status(run_id, effects=shop).state == "running"
    holders = [thread for thread in set(threading.enumerate()) - before if thread.name == "effects-snapshot"]
    assert bool(holders) == shop.store.is_postgresql  # on SQLite it is a file
    shop.dispose()
    wait_until(lambda: not any(thread.is_alive() for thread in holders))


def test_unused_copies_are_deleted(shop: Effects, tmp_path: Path) -> None:
    fill(shop, 5)
    request_report("frozen", effects=shop)
    manual_worker = ReportWorker(shop)
    manual_worker.do_next()
    before = list(tmp_path.glob("*-report-*"))
    assert len(before) == (0 if shop.store.is_postgresql else 1)
    for path in before:
        path.with_name(f"{path.name}-journal").touch()  # as a worker leaves it that is killed while it copies
    assert repair_reports(effects=shop).copies == 0  # it is read
    run_sql(shop, "UPDATE effects_report_runs SET state = 'failed'")
    assert repair_reports(effects=shop).copies == len(before)
    assert list(tmp_path.glob("*-report-*")) == []


def test_a_copy_is_as_private_as_the_database(shop_factory: Shop, tmp_path: Path) -> None:
    app = shop_factory(reports=[frozen_report])
    if app.store.is_postgresql:
        pytest.skip("PostgreSQL copies nothing")
    fill(app, 5)
    (tmp_path / "effects.db").chmod(0o600)
    request_report("frozen", effects=app)
    ReportWorker(app).do_next()
    [copy] = tmp_path.glob("*-report-*")
    assert copy.stat().st_mode & 0o777 == 0o600
