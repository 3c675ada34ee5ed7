"""SIGKILL at each named point: the file is byte for byte that of an undisturbed run, and nothing else is left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effects import Effects
from effects.app.retention import prune
from effects.kit import crashpoints
from effects.operate.tables.audit import audit
from effects.retry import DAY_SECONDS
from effects.worker import Worker
from effects_reports import report_status, request_report
from tests.reports.conftest import content
from tests.reports.crash_app import PASSWORD, make
from tests.reports.shop import fill
from tests.support.aes_archives import opened
from tests.support.manual_workers import rows
from tests.support.processes import Fleet, fleet
from tests.support.sampling import sample
from tests.support.waiting import wait_until

# Point → whether the file lies there under its final name, whole.
POINTS = {
    "report.chunk_begun": False,  # R1
    "report.part_written": False,  # R2
    "report.part_renamed": False,  # R3
    "report.assembly_begun": False,  # R4
    "report.part_joined": False,  # R5
    "report.joined": False,  # R6
    "report.renamed": True,  # R7
}
Files = Callable[[], list[str]]


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[Effects]:
    app = make(database_url, storage_url=str(tmp_path / "files"))
    fill(app, 60)
    yield app
    app.dispose()


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(database_url, tmp_path) as workers:
        yield workers


def test_the_table_has_every_point_of_ours() -> None:
    assert set(POINTS) == {name for name in crashpoints.POINTS if name.startswith("report.")}


CASES = [("quick", "csv.gz", name) for name in POINTS] + [
    ("quick", "parquet", "report.part_written"), ("quick", "arrow", "report.joined"),
    ("both", "xlsx", "report.part_renamed"), ("both", "xlsx", "report.joined"),
]  # fmt: skip


ROWS = {"quick": 60, "both": 60 + 7 + 60}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "format", "point"), sample(CASES, 5))
def test_a_kill_changes_nothing_in_the_file(
    name: str,
    format: str,  # noqa: A002
    point: str,
    shop: Effects,
    processes: Fleet,
    tmp_path: Path,
    files: Files,
) -> None:
    clean = request_report(name, key="clean", format=format, effects=shop).run_id
    Worker(shop).drain()
    run_id = request_report(name, key="struck", format=format, effects=shop).run_id
    child = processes.worker(
        app="tests.reports.crash_app:app",
        EFFECTS_CRASHPOINT=f"{point}:1:kill",
        EFFECTS_STORAGE_URL=str(tmp_path / "files"),
    )
    assert child.wait() == -signal.SIGKILL, child.output
    assert any(file.endswith(f"/struck.{format}") for file in files()) == POINTS[point]
    shop.store.shift_clock(1000)  # past the lease
    wait_until(lambda: _drained(shop))
    undisturbed, struck = (report_status(report_id, effects=shop) for report_id in (clean, run_id))
    assert (struck.state, struck.sha256, struck.rows) == ("ready", undisturbed.sha256, ROWS[name])
    outcomes = [attempt["outcome"] for attempt in rows(shop, "job_attempts")]
    assert outcomes.count("lost") >= 1
    assert set(outcomes) == {"lost", "succeeded"}
    assert audit(shop.store, shop.ledgers) == []
    shop.store.shift_clock(2 * DAY_SECONDS)
    prune(shop)
    assert files() == sorted(str(status.artifact) for status in (undisturbed, struck))


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", ["report.part_joined", "report.joined", "report.renamed"])
def test_a_kill_leaves_an_archive_that_opens(
    point: str, shop: Effects, processes: Fleet, tmp_path: Path, files: Files
) -> None:
    """Its bytes are those of before the kill, where they were there."""
    clean = request_report("quick", key="clean", format="csv", effects=shop).run_id
    Worker(shop).drain()
    run_id = request_report("quick", key="struck", format="csv.zip", effects=shop).run_id
    child = processes.worker(
        app="tests.reports.crash_app:app",
        EFFECTS_CRASHPOINT=f"{point}:1:kill",
        EFFECTS_STORAGE_URL=str(tmp_path / "files"),
    )
    assert child.wait() == -signal.SIGKILL, child.output
    before = [(tmp_path / "files" / name).read_bytes() for name in files() if name.endswith("/struck.csv.zip")]
    assert len(before) == POINTS[point]
    shop.store.shift_clock(1000)  # past the lease
    wait_until(lambda: _drained(shop))
    whole = content(shop, run_id)
    assert opened(whole, PASSWORD) == {"quick.csv": content(shop, clean)}
    assert before in ([], [whole])
    assert audit(shop.store, shop.ledgers) == []


def _drained(shop: Effects) -> bool:
    Worker(shop).drain()
    return not rows(shop, "jobs")
