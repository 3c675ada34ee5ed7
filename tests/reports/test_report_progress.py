"""Progress: pure arithmetic, and a bar that never goes back whatever happens to the run."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import Effects
from effects_reports import report_status, request_report
from effects_reports.runs.state_machine import progress_of
from effects_reports.tables.chunks import ChunkCounts
from effects_reports.tables.runs import Run
from tests.reports.conftest import ReportWorker
from tests.reports.shop import fill
from tests.support.manual_workers import run_sql

RUN = Run(
    id="rep_1", report="orders", key="k", state="running", params="{}", format="csv", dialect="excel",
    consistency="range", prefix="p", round=1, version=1, columns="[]", as_of=0.0, rows_total=1000,
    total_kind="exact", bytes_max=1, keep_seconds=1.0, repairs=0, snapshot=None, packing=None, snapshot_restarts=0,
    full_since=None, progress_floor=0.0, error_code=None, error_text=None, created_at=0.0, planned_at=0.0,
    assembling_at=None, ended_at=None, expires_at=None, read_from=None, read_position=None,
)  # fmt: skip


def run(**changes: object) -> Run:
    return msgspec.structs.replace(RUN, **changes)


@pytest.mark.parametrize(
    ("state", "counts", "fraction"),
    [
        ("requested", ChunkCounts(), 0.0),
        ("running", ChunkCounts(pending=10), 0.0),
        ("running", ChunkCounts(pending=5, done=5, rows_seen=500), 0.475),
        ("running", ChunkCounts(done=10, rows_seen=2000), 0.95),  # more came than were planned
        ("assembling", ChunkCounts(done=10, rows_seen=1000), 0.95),
        ("ready", ChunkCounts(done=10, rows_seen=1000), 1.0),
        ("expired", ChunkCounts(), 1.0),
    ],
)
def test_the_last_twentieth_is_the_assembly(state: str, counts: ChunkCounts, fraction: float) -> None:
    assert progress_of(run(state=state), counts).fraction == pytest.approx(fraction)


def test_without_a_total_the_chunks_are_counted() -> None:
    progress = progress_of(run(rows_total=None, total_kind="unknown"), ChunkCounts(pending=1, done=3, rows_seen=77))
    assert progress.fraction == pytest.approx(0.7125)
    assert (progress.rows_done, progress.rows_total) == (77, None)


def test_the_time_left_follows_from_the_finished_chunks_and_those_that_run() -> None:
    counts = ChunkCounts(running=2, done=2, rows_seen=400, rows_done=400, seconds_done=4.0)
    progress = progress_of(RUN, counts)
    assert (progress.rows_per_second, progress.seconds_left) == (200.0, 3.0)
    assert progress_of(RUN, ChunkCounts(running=1)).seconds_left is None
    assert progress_of(run(state="failed"), counts).seconds_left is None


@pytest.mark.slow
@given(st.floats(0, 1), st.integers(0, 2000), st.integers(0, 20), st.integers(0, 20))
def test_progress_never_decreases(floor: float, seen: int, done: int, pending: int) -> None:
    counts = ChunkCounts(pending=pending, done=done, rows_seen=seen)
    assert floor <= progress_of(run(progress_floor=floor), counts).fraction <= 1


def test_progress_does_not_decrease_while_an_attempt_is_repeated(shop: Effects) -> None:
    """A chunk that has seen 90 rows and begins again still counts 90, until it has seen more."""
    fill(shop, 250)
    run_id = request_report("orders", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    manual_worker.do_next()
    job, *_ = manual_worker.claim()
    run_sql(shop, "UPDATE effects_report_chunks SET rows_seen = 90 WHERE job_id = :id", id=job.id)
    shown = report_status(run_id, effects=shop).progress
    assert shown.rows_done == 90
    assert shown.fraction == pytest.approx(0.95 * 90 / 250)
    seen = []
    manual_worker.perform(job)  # its outcome is lost
    seen.append(report_status(run_id, effects=shop).progress.fraction)
    manual_worker.do(job)
    seen.append(report_status(run_id, effects=shop).progress.fraction)
    assert [shown.fraction, *seen] == sorted([shown.fraction, *seen])
