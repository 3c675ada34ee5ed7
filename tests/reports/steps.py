"""A run of the report `orders` of 250 orders, brought to where a test wants it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from effects import Effects, Job
from effects_reports import report_status, request_report
from tests.reports.conftest import Files, ReportWorker, drain
from tests.support.manual_workers import run_sql
from tests.support.waiting import wait_until

BOUNDS = sa.text(
    "SELECT CAST(CAST(pg_snapshot_xmin(s) AS text) AS bigint) AS oldest, "
    "CAST(CAST(pg_snapshot_xmax(s) AS text) AS bigint) AS next FROM pg_current_snapshot() AS s"
)


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


def second_part(files: Files, folder: Path) -> Path:
    """The file of the second chunk's part, in the storage `files` of this folder."""
    return folder / "files" / next(name for name in files() if "/parts/00002." in name)


def lose_snapshot(app: Effects, folder: Path) -> None:
    """End the transaction that holds it, or delete the copy."""
    if app.store.is_postgresql:
        run_sql(
            app,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' "
            "AND datname = current_database() AND pid <> pg_backend_pid()",
        )
        wait_until(lambda: not _held(app))
    for copy in folder.glob("*-report-*"):
        copy.unlink()


def _held(app: Effects) -> bool:
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with app.store.read() as connection:
        holders = connection.exec_driver_sql(f"SELECT count(*) {others} AND backend_xmin IS NOT NULL")
        return int(holders.scalar_one()) > 0


def settle(app: Effects) -> None:
    """Wait for transactions of other tests, in other databases of the server, which hold new rows back."""
    if not app.store.is_postgresql:
        return

    def numbers() -> sa.Row[Any]:
        with app.engine.connect() as connection:
            return connection.execute(BOUNDS).one()

    next_number = numbers().next
    wait_until(lambda: numbers().oldest >= next_number, seconds=120)
