"""A run of the report `orders` of 250 orders, brought to where a test wants it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from effects import Effects, Job
from effects_reports import report_status, request_report
from tests.reports.conftest import ReportWorker, drain


def requested(app: Effects, **options: Any) -> str:
    """A run of its own, whatever else was requested."""
    return request_report("orders", effects=app, **{"key": uuid4().hex, **options}).run_id


def state(app: Effects, run_id: str) -> str:
    return report_status(run_id, effects=app).state


def undisturbed(app: Effects) -> str:
    """The SHA-256 of the same report, made without trouble."""
    run_id = requested(app)
    drain(app)
    return str(report_status(run_id, effects=app).sha256)


def planned(manual_worker: ReportWorker) -> tuple[str, list[Job]]:
    """A run whose three chunk jobs have been claimed, and none performed."""
    run_id = requested(manual_worker.app)
    manual_worker.do_next()
    jobs = manual_worker.claim()
    assert [job.job_type for job in jobs] == ["report.chunk"] * 3
    return run_id, jobs


def assembling(manual_worker: ReportWorker) -> tuple[str, Job]:
    """A run whose chunks are done, and its assemble job, claimed."""
    run_id, jobs = planned(manual_worker)
    for job in jobs:
        manual_worker.do(job)
    return run_id, manual_worker.claim_one()
