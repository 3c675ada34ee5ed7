"""Depth first: of all steps that wait, the claim takes that of the run which is furthest, then of the oldest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from effects import Effects
from effects_reports import Cursor, RowPage, cancel_report, report, request_report, resume_report
from effects_reports.routing import limit_key
from tests.reports.conftest import COUNT, Files, ReportWorker, Shop
from tests.reports.shop import REPORTS, Starved, fill, orders
from tests.reports.steps import requested, state
from tests.support.manual_workers import run_sql


@report("pages", iterable=True, columns=("number",), chunk_rows=5, dialect="rfc4180")
def pages_report(after: Cursor) -> Iterator[RowPage]:
    yield from [RowPage([(n,) for n in range(10)], cursor=n + 1 if n < 2 else None) for n in range(after or 0, 3)]


def _halved() -> Any:
    options = {"key": ("id",), "chunk_rows": 100, "columns": ("id", "customer", "cents"), "dialect": "rfc4180"}
    return report("halved", map_batch=Starved(), **options)(lambda: sa.select(orders))


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    app = shop_factory(reports=[*REPORTS, pages_report, _halved()])
    fill(app, COUNT)
    return app


def steps(worker: ReportWorker, runs: list[str]) -> Iterator[str]:
    """Each step in the order in which it is claimed, as `chunk 0` of the first of these runs; they are carried out."""
    while jobs := worker.claim(1):
        [job] = jobs
        run_id = msgspec.json.decode(job.payload)["run_id"]
        worker.do(job)
        yield f"{job.job_type.removeprefix('report.')} {runs.index(run_id)}"


def of_run(number: int, chunks: int) -> list[str]:
    return [f"{step} {number}" for step in ("plan", *["chunk"] * chunks, "assemble", "cleanup")]


@pytest.mark.parametrize(("name", "chunks"), [("orders", 3), ("totals", 1), ("primes", 1), ("frozen", 3), ("pages", 3)])
def test_a_file_is_whole_before_the_next_run_is_planned(app: Effects, name: str, chunks: int) -> None:
    runs = [request_report(name, key=f"{number}", effects=app).run_id for number in range(3)]
    taken = list(steps(ReportWorker(app), runs))
    assert taken == [step for number in range(3) for step in of_run(number, chunks)]
    assert {state(app, run_id) for run_id in runs} == {"ready"}


def _both_planned(app: Effects, worker: ReportWorker, name: str) -> list[str]:
    """Two runs whose chunks wait side by side, as other workers' plans leave them; the second of `orders`."""
    older = request_report(name, effects=app).run_id
    worker.do_next()
    younger = requested(app)
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET priority = 0 WHERE job_type = 'report.plan'")
    worker.do_next()
    assert (state(app, older), state(app, younger)) == ("running", "running")
    return [older, younger]


@pytest.mark.parametrize(("name", "chunks"), [("orders", 3), ("pages", 3), ("halved", 5)])
def test_chunks_made_late_are_as_old_as_their_run(app: Effects, name: str, chunks: int) -> None:
    """A further page, the halves of a chunk: the younger run's chunks were there before them."""
    worker = ReportWorker(app)
    taken = list(steps(worker, _both_planned(app, worker, name)))
    assert taken == [*of_run(0, chunks)[1:], *of_run(1, 3)[1:]]


def test_a_lost_part_is_made_before_younger_chunks(app: Effects, files: Files) -> None:
    worker = ReportWorker(app)
    runs = _both_planned(app, worker, "orders")
    for _ in range(3):
        worker.do_next()
    app.storage.delete([next(name for name in files() if "/parts/00002." in name)])
    taken = list(steps(worker, runs))
    assert taken == ["assemble 0", "chunk 0", "assemble 0", "cleanup 0", *of_run(1, 3)[1:]]


def test_a_resumed_run_is_as_old_as_its_resumption(app: Effects) -> None:
    """It comes before what is not planned yet, and no chunk of it looks as if it had waited since it was requested."""
    worker = ReportWorker(app)
    runs = _both_planned(app, worker, "orders")
    cancel_report(runs[0], effects=app)
    resume_report(runs[0], effects=app)
    third = requested(app)
    taken = [step for step in steps(worker, [*runs, third]) if step.startswith("assemble")]
    assert taken == ["assemble 1", "assemble 0", "assemble 2"]


@pytest.mark.parametrize("held_back_by", ["cap", "pause"])
def test_what_holds_chunks_back_holds_no_file_back(app: Effects, held_back_by: str) -> None:
    sql, worker = app.store.sql, ReportWorker(app)
    setting = {"cap": "max_in_flight = 1", "pause": f"paused_until = {sql.after('3600')}"}[held_back_by]
    runs = _both_planned(app, worker, "orders")
    *older, _ = [worker.claim_one() for _ in range(4)]
    assert worker.claim() == []  # the cap of a report is four
    for chunk in older:
        worker.do(chunk)
    run_sql(app, f"UPDATE {sql.limits} SET {setting} WHERE limit_key = :key", key=limit_key("orders"))
    assert list(steps(worker, runs)) == ["assemble 0", "cleanup 0"]


def test_what_ends_a_run_comes_before_chunks_and_these_before_plans(app: Effects) -> None:
    ranks = {job_type.name: job_type.priority for job_type in app.job_types if job_type.name.startswith("report.")}
    ending = ("assemble", "cleanup", "deliver", "notify", "repair")
    assert {name: rank for name, rank in ranks.items() if rank != 5} == {
        **{f"report.{step}": 3 for step in ending}, "report.chunk": 4,
    }  # fmt: skip
