"""An app with reports, its files in a folder of the test's, and a manual worker that carries out one job at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from effects import Cancelled, Effects, Job
from effects.model.settlement import Settlement
from effects.store.queue.settle import Settled, settle
from effects.worker import Worker
from effects.worker.claiming.batch_loader import BatchLoader
from effects_reports import open_result, report_status, request_report
from tests.cli.conftest import _logging
from tests.conftest import AppFactory
from tests.reports.shop import REPORTS, fill
from tests.support.manual_workers import ManualWorker, rows
from tests.support.worker_parts import KeptSettlements, Releasing, context_of

__all__ = ["_logging"]

Shop: TypeAlias = Callable[..., Effects]
Files: TypeAlias = Callable[[], list[str]]
COUNT = 250


@pytest.fixture
def shop_factory(app_factory: AppFactory, tmp_path: Path) -> Shop:
    """Makes apps that know the reports of `tests.reports.shop`, or others: `shop_factory(reports=[…])`."""

    def make(**options: Any) -> Effects:
        defaults = {"reports": REPORTS, "storage_url": str(tmp_path / "files"), "job_types": [], **options}
        return app_factory(**defaults)

    return make


@pytest.fixture
def shop(shop_factory: Shop) -> Effects:
    return shop_factory()


@pytest.fixture
def manual_worker(shop: Effects) -> ReportWorker:
    """On a database with 250 orders: three chunks."""
    fill(shop, COUNT)
    return ReportWorker(shop)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """The names of the files in the storage, unfinished ones too."""
    folder = tmp_path / "files"
    return lambda: sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def file_ready(folder: Path, subject: str, body: str) -> str:
    """The folder of templates, with one of this name for notices."""
    template = folder / "emails" / "file_ready"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text(subject)
    (template / "body.txt").write_text(body)
    return str(template.parent)


def drain(app: Effects) -> None:
    """A worker does all that is due."""
    assert Worker(app).drain(60).finished


def content(app: Effects, run_id: str) -> bytes:
    return b"".join(open_result(run_id, effects=app))


class ReportWorker(ManualWorker):
    """A worker of one queue, moved by hand: claim a job, perform it, settle it, each when the test says so."""

    def __init__(self, app: Effects, name: str = "manual_worker", queue: str = "reports") -> None:
        super().__init__(app, name, queue=queue)

    def perform(self, job: Job) -> Settlement:
        """What the attempt asks to be written; nothing is."""
        kept = KeptSettlements()
        for attempt in BatchLoader(context_of(self.app), kept, Releasing()).attempts([job]):
            attempt.start()
            kept.add(attempt.run())
        [settlement] = kept.settlements
        return settlement

    def decide_cancelled(self, job: Job) -> Settlement:
        """What an operator's cancel of this job writes."""
        return self.decide(job, Cancelled("cancelled by request"))

    def write(self, *settlements: Settlement) -> Settled:
        return settle(self.app.store, settlements, self.app.ledgers)

    def do(self, job: Job) -> Settlement:
        """Perform and settle."""
        settlement = self.perform(job)
        self.write(settlement)
        return settlement

    def do_next(self) -> Settlement:
        return self.do(self.claim_one())


def refused(app: Effects, name: str, **options: object) -> str:
    """Request it and let it be planned; why it has failed."""
    run_id = request_report(name, effects=app, **options).run_id  # type: ignore[arg-type]
    ReportWorker(app).do_next()
    status = report_status(run_id, effects=app)
    assert status.state == "failed"
    [attempt] = rows(app, "job_attempts")
    assert attempt["outcome"] == "refused"  # not tried again
    return f"{status.error_code}: {status.error_text}"
