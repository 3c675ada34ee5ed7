"""The storage away, the disk full, files whose time is over: clean errors, and nothing orphaned after one prune."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from effects import Effects, StorageUnavailable
from effects.app.retention import prune
from effects.kit.files.base import Writer
from effects.kit.files.local import LocalStorage, UnfinishedFile
from effects.operate.tables.queue_status import read_status
from effects.retry import DAY_SECONDS
from effects.worker import Worker
from effects_reports import (
    ReportStateError,
    cancel_report,
    open_result,
    report_status,
    request_report,
    resume_report,
)
from effects_reports.admin import resume_failed
from tests.reports.conftest import ReportWorker, content, drain
from tests.reports.shop import csv_rows, fill
from tests.support.manual_workers import row, rows, run_sql
from tests.support.processes import fleet

Files = Callable[[], list[str]]


# -- the storage is away -------------------------------------------------------------------------------------------


class Away(LocalStorage):
    """A storage that is away while it is told so; a part that was begun stays unfinished."""

    away = False

    def writer(self, name: str, **options: Any) -> Any:
        if self.away:
            raise StorageUnavailable(f"the storage failed on {name!r}", code="storage_unavailable")
        return super().writer(name, **options)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Any:
        if self.away:
            raise StorageUnavailable(f"the storage failed on {name!r}", code="storage_unavailable")
        return super().read(name, start, stop)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 2, 4], ids=["plan", "first-chunk", "second-chunk", "assembly"])
def test_a_storage_outage_of_a_minute_delays_a_run_by_a_minute(
    steps: int, shop: Effects, tmp_path: Path, files: Files
) -> None:
    """The step is tried again after 10, 20, 40 and 80 s; whatever was under way goes on where it stood."""
    storage = Away(tmp_path / "files")
    shop.storage = storage
    fill(shop, 250)
    run_id = request_report("orders", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    for _ in range(steps):
        manual_worker.do_next()
    before = report_status(run_id, effects=shop)
    storage.away = True
    for _ in range(3):
        assert {manual_worker.do(job).error_code for job in manual_worker.claim()} == {"storage_unavailable"}
        shop.store.shift_clock(50)
    now = report_status(run_id, effects=shop)
    assert now.state == ("planning" if steps == 0 else before.state)
    assert now.progress.fraction >= before.progress.fraction
    storage.away = False
    shop.store.shift_clock(50)
    drain(shop)
    assert report_status(run_id, effects=shop).state == "ready"
    assert len(csv_rows(content(shop, run_id))) == 251
    assert [name for name in files() if "unfinished" in name] == []


# -- the disk is full ----------------------------------------------------------------------------------------------


class FullDisk(LocalStorage):
    """A folder on a disk without room, as long as it is told so: the kernel answers ENOSPC, as `/dev/full` does."""

    full = True

    @contextmanager
    def writer(self, name: str, **options: Any) -> Iterator[UnfinishedFile]:
        with super().writer(name, **options) as writing:
            if self.full:
                with Path("/dev/full").open("wb", buffering=0) as disk:
                    os.dup2(disk.fileno(), writing._file.fileno())
            yield writing


@pytest.mark.parametrize("steps", [1, 4], ids=["chunk", "assembly"])
def test_a_full_disk_waits_for_a_day_without_costing_an_attempt(steps: int, shop: Effects, tmp_path: Path) -> None:
    shop.storage = disk = FullDisk(tmp_path / "files")
    fill(shop, 250)
    run_id = request_report("orders", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    disk.full = False
    for _ in range(steps):
        manual_worker.do_next()
    disk.full = True
    waiting = manual_worker.claim()
    for hours in (0, 23):
        shop.store.shift_clock(hours * 3600)
        settled = [manual_worker.do(job) for job in waiting or manual_worker.claim()]
        assert {(each.outcome, each.error_code) for each in settled} == {("snoozed", "storage_full")}
        waiting = []
    status = read_status(shop.store, 30, shop.job_types, ["reports"])
    [held] = [held for held in status.held_up if held.kind == "put_off"]
    assert f"(storage_full): the storage {disk.url} is full: no space is left: make room" in held.text
    assert held.needs_attention
    assert {job["attempts"] for job in rows(shop, "jobs")} == {0}
    shop.store.shift_clock(2 * 3600)
    manual_worker.do_next()
    assert (report_status(run_id, effects=shop).error_code, disk.full) == ("storage_full", True)

    disk.full = False
    assert resume_failed("another", effects=shop) == {}
    assert resume_failed("storage_full", effects=shop) == {run_id: "running"}
    drain(shop)
    assert len(csv_rows(content(shop, run_id))) == 251


def test_no_file_is_begun_where_there_is_no_room_beside_its_parts(shop: Effects, tmp_path: Path) -> None:
    class Small(FullDisk):
        def has_room(self, size_bytes: int) -> bool:
            return super().has_room(size_bytes * 2**60)

    shop.storage = disk = Small(tmp_path / "files")
    disk.full = False
    fill(shop, 10)
    run_id = request_report("orders", effects=shop).run_id
    drain(shop)
    assert report_status(run_id, effects=shop).state == "assembling"
    [job] = rows(shop, "jobs")
    assert (job["error_code"], job["attempts"]) == ("storage_full", 0)
    assert "a file needs" in job["last_error"]
    shop.storage = LocalStorage(tmp_path / "files")
    shop.store.shift_clock(120)
    drain(shop)
    assert report_status(run_id, effects=shop).state == "ready"


def drain_with_files_of_at_most(size: int, url: str, storage: str) -> None:
    """A worker that can write no larger file, as on a full disk: SIGXFSZ ignored, the write fails."""
    from tests.reports.crash_app import make  # noqa: PLC0415 - in the child, whose environment names the database

    app = make(url, storage_url=storage)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    Worker(app).drain(30)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("size", [300, 9000], ids=["a-part", "the-file"])
def test_a_full_disk_is_a_clean_error_and_resumable(
    size: int, database_url: str, tmp_path: Path, shop: Effects, files: Files
) -> None:
    """On PostgreSQL, whose own files are another process's: a SQLite database would be full as well."""
    fill(shop, 400)
    run_id = request_report("orders", effects=shop).run_id
    with fleet(database_url, tmp_path) as processes:
        child = processes.start(drain_with_files_of_at_most, size, database_url, str(tmp_path / "files"))
        child.wait()
    status = report_status(run_id, effects=shop)
    assert status.state == ("running" if size == 300 else "assembling"), child.output
    assert "Traceback" not in child.output
    named = {chunk["part"] for chunk in rows(shop, "report_chunks") if chunk["part"]}
    assert named == set(files())  # finished parts, no half one
    assert len(named) == (0 if size == 300 else 4)
    assert {job["attempts"] for job in rows(shop, "jobs")} == {0}
    shop.store.shift_clock(120)
    drain(shop)
    assert len(csv_rows(content(shop, run_id))) == 401


# -- retention -----------------------------------------------------------------------------------------------------


def test_a_file_is_kept_for_seven_days_and_then_shown_as_expired(shop: Effects, files: Files) -> None:
    fill(shop, 10)
    run_id = request_report("orders", key="k", effects=shop).run_id
    drain(shop)
    shop.store.shift_clock(7 * DAY_SECONDS - 3600)
    assert prune(shop).packages == {}
    assert content(shop, run_id)
    shop.store.shift_clock(7200)
    assert prune(shop, dry_run=True).packages == {"report.cleanup": 1}
    assert prune(shop).packages == {"report.cleanup": 1}
    assert files() == []
    status = report_status(run_id, effects=shop)
    assert (status.state, status.artifact, status.progress.fraction) == ("expired", None, 1.0)
    with pytest.raises(ReportStateError, match="is expired: its file has expired: request it again"):
        open_result(run_id, effects=shop)
    again = request_report("orders", key="k", effects=shop)
    assert (again.existing, again.generation) == (False, 2)


def test_rows_are_kept_for_ninety_days(shop: Effects) -> None:
    fill(shop, 10)
    request_report("orders", effects=shop)
    drain(shop)
    shop.store.shift_clock(8 * DAY_SECONDS)
    prune(shop)
    shop.store.shift_clock(80 * DAY_SECONDS)
    prune(shop)
    assert len(rows(shop, "report_runs")) == 1
    shop.store.shift_clock(12 * DAY_SECONDS)
    prune(shop)
    assert (rows(shop, "report_runs"), rows(shop, "report_chunks"), rows(shop, "generated_reports")) == ([], [], [])


@pytest.mark.slow
def test_the_parts_of_a_cancelled_run_are_kept_for_a_day(shop: Effects, files: Files) -> None:
    fill(shop, 250)
    run_id = request_report("orders", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    manual_worker.do_next()
    manual_worker.do_next()
    cancel_report(run_id, effects=shop)
    drain(shop)
    shop.store.shift_clock(DAY_SECONDS - 60)
    prune(shop)
    assert len(files()) == 1
    shop.store.shift_clock(120)
    prune(shop)
    assert files() == []
    assert resume_report(run_id, effects=shop) == "running"
    drain(shop)
    assert len(csv_rows(content(shop, run_id))) == 251


@pytest.mark.slow
def test_orphaned_objects_are_deleted_after_a_day_and_others_stay(shop: Effects, files: Files) -> None:
    fill(shop, 250)
    ready = request_report("orders", effects=shop).run_id
    drain(shop)
    under_way = request_report("orders", key="another", effects=shop).run_id
    manual_worker = ReportWorker(shop)
    manual_worker.do_next()
    manual_worker.do_next()
    kept = files()
    prefix = row(shop, "report_runs", "id = :id", id=under_way)["prefix"]
    ready_prefix = row(shop, "report_runs", "id = :id", id=ready)["prefix"]
    _put(shop.storage.writer(f"{ready_prefix}/parts/00001.7.beef"))
    _put(shop.storage.writer("reports/orders/rep_unknown-1/parts/00001.1.beef"))
    _put(shop.storage.writer("attachments/theirs.pdf"))
    _put(shop.storage.writer(f"{prefix}/parts/00002.7.beef"))  # of an attempt under way, for all that is known
    prune(shop)
    assert len(files()) == len(kept) + 4
    shop.store.shift_clock(2 * DAY_SECONDS)
    prune(shop)
    assert files() == sorted([*kept, "attachments/theirs.pdf", f"{prefix}/parts/00002.7.beef"])
    drain(shop)
    assert report_status(under_way, effects=shop).state == "ready"
    assert not [name for name in files() if "/parts/" in name]


def _put(opened: AbstractContextManager[Writer]) -> None:
    with opened as out:
        out.write(b"x")
        out.finish()


@pytest.mark.slow
def test_a_crash_between_the_object_and_its_row_is_found_by_the_next_pruning(shop: Effects, files: Files) -> None:
    fill(shop, 10)
    run_id = request_report("orders", effects=shop).run_id
    drain(shop)
    shop.storage.delete(files())  # pruning has come so far, and died
    shop.store.shift_clock(8 * DAY_SECONDS)
    prune(shop)
    assert report_status(run_id, effects=shop).state == "expired"


def test_an_app_without_reports_does_not_touch_the_storage(shop: Effects, files: Files, tmp_path: Path) -> None:
    app = Effects(shop.settings.database_url, storage_url=str(tmp_path / "none"))
    prune(app)
    app.dispose()
    assert not (tmp_path / "none").exists()


def test_a_run_whose_job_was_pruned_by_hand_is_pruned_too(shop: Effects) -> None:
    run_id = request_report("primes", effects=shop).run_id
    drain(shop)
    run_sql(shop, "DELETE FROM effects_generated_reports WHERE run_id = :id", id=run_id)
    assert report_status(run_id, effects=shop).state == "ready"
    shop.store.shift_clock(8 * DAY_SECONDS)
    prune(shop)
    assert report_status(run_id, effects=shop).state == "expired"
