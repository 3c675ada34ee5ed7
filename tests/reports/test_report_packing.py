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


def _members(file: bytes) -> list[bytes]:
    """The gzip members of a file, as they are."""
    members = []
    while file:
        reader = zlib.decompressobj(31)
        reader.decompress(file)
        members.append(file[: len(file) - len(reader.unused_data)])
        file = reader.unused_data
    return members


def _packed_as(name: Any, file: bytes) -> bool:
    """Whether each member is what this packing makes of its content."""

    class Out:
        data = b""

        def write(self, data: bytes) -> None:
            self.data += data

    def again(content: bytes) -> bytes:
        out = Out()
        packer = packing.Packer(out, name)  # type: ignore[arg-type]
        packer.write(content)
        packer.end()
        return out.data

    return all(again(gzip.decompress(member)) == member for member in _members(file))


@pytest.mark.slow
def test_a_plan_freezes_the_compressor_and_all_chunks_use_it(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    run_id = requested(app, format="csv.gz")
    drain(app)
    assert row(app, "report_runs")["packing"] == "isal"
    file = content(app, run_id)
    assert len(_members(file)) == 1 + 3
    assert _packed_as("isal", file)
    assert len(csv_rows(gzip.decompress(file))) == 1 + COUNT


@pytest.mark.slow
def test_a_worker_without_it_plans_with_zlib_and_one_with_it_keeps_to_that(
    manual_worker: ReportWorker, without_isal: pytest.MonkeyPatch
) -> None:
    app = manual_worker.app
    run_id = requested(app, format="csv.gz")
    manual_worker.do_next()
    without_isal.undo()
    drain(app)
    assert row(app, "report_runs")["packing"] == "gz"
    assert _packed_as("gz", content(app, run_id))


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
    drain(app)
    assert state(app, run_id) == "ready"
    assert _packed_as("isal", content(app, run_id))


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
