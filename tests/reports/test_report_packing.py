"""Which compressor a gzip file is made with: frozen by the plan, whoever makes a chunk when."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from effects import Effects
from effects_reports import report_status
from effects_reports.formats import packing
from tests.formats.rows import Memory
from tests.reports.conftest import COUNT, ReportWorker, content, drain
from tests.reports.shop import csv_rows
from tests.reports.steps import requested, state
from tests.support.manual_workers import row, rows, run_sql


@pytest.fixture
def without_isal(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """This worker has no ISA-L; `undo` installs it."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "isal", None)
        yield patch


def _parts(app: Effects, run_id: str) -> list[bytes]:
    """What the run's chunks wrote."""
    return [
        b"".join(app.storage.read(chunk["part"])) for chunk in rows(app, "report_chunks", "run_id = :id", id=run_id)
    ]


def _packed_as(name: packing.Packing, parts: list[bytes]) -> bool:
    """Whether each part is what this packing makes of its content."""

    def again(part: bytes) -> bytes:
        out = Memory()
        packer = packing.Packer(out, name)
        packer.write(zlib.decompressobj(-15).decompress(part))
        packer.end()
        return bytes(out.data)

    return all(again(part) == part for part in parts)


def _assembled(app: Effects, run_id: str) -> list[bytes]:
    """The parts of a run whose file is joined, and not yet cleaned up."""
    worker = ReportWorker(app)
    while state(app, run_id) != "ready":
        worker.do_next()
    return _parts(app, run_id)


@pytest.mark.slow
def test_a_plan_freezes_the_compressor_and_all_chunks_use_it(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    run_id = requested(app, format="csv.gz")
    parts = _assembled(app, run_id)
    assert row(app, "report_runs")["packing"] == "isal"
    assert len(parts) == 3
    assert _packed_as("isal", parts)
    assert len(csv_rows(gzip.decompress(content(app, run_id)))) == 1 + COUNT


@pytest.mark.slow
def test_a_worker_without_it_plans_with_zlib_and_one_with_it_keeps_to_that(
    manual_worker: ReportWorker, without_isal: pytest.MonkeyPatch
) -> None:
    app = manual_worker.app
    run_id = requested(app, format="csv.gz")
    manual_worker.do_next()
    without_isal.undo()
    parts = _assembled(app, run_id)
    assert row(app, "report_runs")["packing"] == "gz"
    assert _packed_as("gz", parts)


@pytest.mark.slow
def test_a_worker_without_it_leaves_such_chunks_to_others(
    manual_worker: ReportWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = manual_worker.app
    run_id = requested(app, format="csv.gz")
    manual_worker.do_next()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "isal", None)
        for job in manual_worker.claim():
            manual_worker.do(job)
        app.store.shift_clock(100)
        assert {job["attempts"] for job in _chunk_jobs(app)} == {0}
    assert _packed_as("isal", _assembled(app, run_id))


def _chunk_jobs(app: Effects) -> list[Any]:
    return rows(app, "jobs", "job_type = 'report.chunk'")


@pytest.mark.slow
@pytest.mark.parametrize("chunks_before", [0, 2])
def test_a_run_that_an_older_release_planned_ends_with_its_bytes(
    chunks_before: int, manual_worker: ReportWorker, without_isal: pytest.MonkeyPatch
) -> None:
    """It froze no compressor, and wrote of no part in whose memory it was."""
    app = manual_worker.app
    clean = requested(app, format="csv.gz", key="clean")
    drain(app)
    without_isal.undo()
    run_id = requested(app, format="csv.gz")
    manual_worker.do_next()
    run_sql(app, "UPDATE effects_report_runs SET packing = NULL WHERE id = :id", id=run_id)
    for job in manual_worker.claim()[:chunks_before]:
        manual_worker.do(job)
    run_sql(app, "UPDATE effects_report_chunks SET boot = NULL")
    app.store.shift_clock(2000)
    drain(app)
    assert report_status(run_id, effects=app).sha256 == report_status(clean, effects=app).sha256
