"""What fails a run visibly, and what is mended by itself: dead and lost jobs, damaged parts, chunks too large."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Effects
from effects.kit.files.local import boot_id
from effects.operate.tables.audit import audit
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects_reports import (
    Notify,
    repair_reports,
    report,
    report_status,
    resume_report,
)
from tests.reports.conftest import COUNT, Files, ReportWorker, Shop, content, drain
from tests.reports.shop import csv_rows, fill, orders
from tests.reports.steps import assembling, planned, requested, second_part, state, undisturbed
from tests.support.manual_workers import row, rows, run_sql
from tests.support.scripted import Scripted

# -- a dead job --------------------------------------------------------------------------------------------------


class _Broken:
    """A report whose mapping fails for one order until it is mended."""

    def __init__(self) -> None:
        self.broken = True
        self.mapped: list[int] = []

    def __call__(self, record: Any) -> Any:
        if self.broken and record.id == 450:
            raise ValueError("rosebud")
        self.mapped.append(record.id)
        return record

    def definition(self) -> Any:
        declare = report(
            "orders", key=("id",), chunk_rows=100, columns=("id", "customer", "cents"), map_row=self, dialect="rfc4180"
        )
        return declare(lambda params: sa.select(orders))


@pytest.mark.slow
def test_a_chunk_that_dies_fails_the_run_visibly_and_resume_makes_only_that(shop_factory: Shop) -> None:
    broken = _Broken()
    app = shop_factory(reports=[broken.definition()], job_types=[Scripted()])
    fill(app, COUNT)
    notify = Notify(job_type="scripted", payload={"name": "{state}: {error}"})
    run_id = requested(app, notify=notify)
    manual_worker = ReportWorker(app)
    manual_worker.do_next()
    for _ in range(7):  # three chunks, and the broken one four times more
        for job in manual_worker.claim():
            manual_worker.do(job)
        app.store.shift_clock(200)
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "ValueError")
    assert "chunk 00002: ValueError (gave up after 5 attempts)" in str(status.error_text)
    assert "rosebud" not in str(status)
    assert row(app, "generated_reports")["state"] == "refused"
    assert len(rows(app, "jobs", "job_type = 'scripted'")) == 1
    shown = status.progress.fraction
    assert shown > 0
    assert len(_dead_letters(app)) == 1
    broken.broken = False
    broken.mapped.clear()
    assert resume_report(run_id, effects=app) == "running"
    assert report_status(run_id, effects=app).progress.fraction >= shown
    drain(app)
    assert state(app, run_id) == "ready"
    assert broken.mapped == [3 * n for n in range(101, 201)]  # the others were kept
    assert _dead_letters(app) == []
    assert len(csv_rows(content(app, run_id))) == 1 + COUNT


def _dead_letters(app: Effects) -> list[Any]:
    return list_dead(app.store, app.ledgers, DeadFilters())


@pytest.mark.slow
def test_a_chunk_whose_workers_all_die_fails_the_run(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    run_id, jobs = planned(manual_worker)
    for job in jobs[1:]:
        manual_worker.do(job)
    for number in range(5):
        assert state(app, run_id) == "running"
        run_sql(app, f"UPDATE {app.store.sql.workers} SET seen_at = {app.store.sql.after('-3600')}")
        manual_worker.rescue()
        ReportWorker(app, f"next-{number}").claim(queue="quarantine")
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "poison")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert state(app, run_id) == "ready"


@pytest.mark.slow
def test_a_chunk_job_that_an_operator_cancels_fails_the_run(manual_worker: ReportWorker) -> None:
    """A file without its rows would be worse."""
    app = manual_worker.app
    run_id, jobs = planned(manual_worker)
    for job in jobs[:2]:
        manual_worker.do(job)
    manual_worker.write(manual_worker.decide_cancelled(jobs[2]))
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "chunk_cancelled")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert len(csv_rows(content(app, run_id))) == 1 + COUNT


@pytest.mark.slow
def test_a_plan_that_dies_fails_the_run(manual_worker: ReportWorker) -> None:
    app, run_id = manual_worker.app, requested(manual_worker.app)
    run_sql(app, "DROP TABLE orders")
    manual_worker.do_next()
    assert state(app, run_id) == "failed"
    fill(app, 10)
    assert resume_report(run_id, effects=app) == "requested"
    drain(app)
    assert state(app, run_id) == "ready"


# -- the repair --------------------------------------------------------------------------------------------------


def test_repair_leaves_a_running_run_alone(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    run_id, jobs = planned(manual_worker)
    for job in [*jobs]:
        assert sum(_counts(app)) == 0
        manual_worker.do(job)
    assert sum(_counts(app)) == 0
    manual_worker.do_next()
    assert sum(_counts(app)) == 0
    assert state(app, run_id) == "ready"


def _counts(app: Effects) -> list[int]:
    swept = repair_reports(effects=app)
    return [swept.restarted, swept.failed, swept.chunks, swept.closed, swept.copies]


@pytest.mark.slow
def test_a_repair_fails_a_run_whose_chunk_job_is_gone(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    run_id, jobs = planned(manual_worker)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=jobs[1].id)
    assert repair_reports(effects=app).chunks == 1
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "job_gone")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert state(app, run_id) == "ready"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["requested", "planning", "assembling"])
def test_repair_enqueues_a_lost_job_again(when: str, manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    if when == "assembling":
        run_id, job = assembling(manual_worker)
    else:
        run_id, job = requested(app), manual_worker.claim_one()
    if when == "planning":
        manual_worker.perform(job)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=job.id)
    assert state(app, run_id) == when
    assert repair_reports(effects=app).restarted == 1
    assert repair_reports(effects=app).restarted == 0
    drain(app)
    assert state(app, run_id) == "ready"


@pytest.mark.slow
def test_repairs_at_once_write_one_job(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    run_id, job = assembling(manual_worker)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=job.id)
    with ThreadPoolExecutor(4) as pool:
        swept = list(pool.map(lambda _: repair_reports(effects=app), range(8)))
    assert sum(repair.restarted for repair in swept) == 1
    assert len(rows(app, "jobs")) == 1
    drain(app)
    assert state(app, run_id) == "ready"


@pytest.mark.slow
def test_a_repair_finishes_a_run_whose_chunks_are_all_done(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    run_id, job = assembling(manual_worker)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=job.id)
    run_sql(app, "UPDATE effects_report_runs SET state = 'running'")
    assert repair_reports(effects=app).closed == 1
    drain(app)
    assert state(app, run_id) == "ready"


def test_the_repair_is_a_schedule_of_apps_with_reports(shop: Effects, shop_factory: Shop) -> None:
    assert shop.schedules["reports.repair"].cron == "*/5 * * * *"
    assert "reports.repair" not in shop_factory(reports=[]).schedules


# -- parts -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_part_is_produced_again_before_it_is_joined(
    damage: str, manual_worker: ReportWorker, files: Files, tmp_path: Path
) -> None:
    app = manual_worker.app
    clean = undisturbed(app)
    run_id, job = assembling(manual_worker)
    part = second_part(files, tmp_path)
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes().replace(b"4", b"5", 1))
        _boot(app)
    manual_worker.do(job)
    assert state(app, run_id) == "running"
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)


def _boot(app: Effects) -> None:
    """The parts were written before the machine was booted."""
    run_sql(app, "UPDATE effects_report_chunks SET boot = 'the one before'")


@pytest.mark.slow
def test_a_part_of_this_boot_is_joined_unread_unless_it_has_another_size(
    manual_worker: ReportWorker, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = manual_worker.app
    clean = undisturbed(app)
    run_id, job = assembling(manual_worker)
    boots = {chunk["boot"] for chunk in rows(app, "report_chunks") if chunk["run_id"] == run_id}
    assert boots == {boot_id()}
    part = second_part(files, tmp_path)
    part.write_bytes(part.read_bytes()[:-1])
    manual_worker.do(job)
    assert state(app, run_id) == "running"
    reads: list[str] = []
    monkeypatch.setattr(type(app.storage), "read", lambda storage, name: reads.append(name))
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256, reads) == ("ready", clean, [])


@pytest.mark.slow
@pytest.mark.parametrize("left", [b"", b"\0"], ids=["empty", "zeros"])
def test_all_parts_lost_in_a_power_cut_are_produced_again_at_once(
    left: bytes, manual_worker: ReportWorker, files: Files, tmp_path: Path
) -> None:
    """Parts are not synced: a file system may keep their names, and their sizes too."""
    app = manual_worker.app
    clean = undisturbed(app)
    run_id, job = assembling(manual_worker)
    parts = [tmp_path / "files" / name for name in files() if "/parts/" in name]
    for part in parts:
        part.write_bytes(left * part.stat().st_size)
    _boot(app)
    manual_worker.do(job)
    chunks = manual_worker.claim()
    assert [chunk.job_type for chunk in chunks] == ["report.chunk"] * len(parts) == ["report.chunk"] * 3
    for chunk in chunks:
        manual_worker.do(chunk)
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)


def test_parts_that_are_damaged_again_and_again_fail_the_run(
    manual_worker: ReportWorker, files: Files, tmp_path: Path
) -> None:
    app = manual_worker.app
    run_id, job = assembling(manual_worker)
    for _ in range(3):
        for name in files():
            (tmp_path / "files" / name).unlink()
        manual_worker.do(job)
        if state(app, run_id) == "failed":
            break
        for chunk in manual_worker.claim():
            manual_worker.do(chunk)
        job = manual_worker.claim_one()
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "parts_missing")


# -- splitting ---------------------------------------------------------------------------------------------------


class _Hungry:
    """A mapping that runs out of memory for more than so many rows at once."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max

    def __call__(self, batch: Any) -> Any:
        if len(batch) > self.rows_max:
            raise MemoryError
        return batch


@pytest.mark.slow
def test_a_chunk_without_memory_is_halved_until_it_fits(shop_factory: Shop) -> None:
    declare = report(
        "orders", key=("id",), chunk_rows=100, columns=("id", "customer", "cents"), map_batch=_Hungry(30),
        dialect="rfc4180",
    )  # fmt: skip
    app = shop_factory(reports=[declare(lambda params: sa.select(orders))])
    fill(app, COUNT)
    run_id = requested(app)
    shown = []
    manual_worker = ReportWorker(app)
    while state(app, run_id) not in ("ready", "failed"):
        manual_worker.do_next()
        shown.append(report_status(run_id, effects=app).progress.fraction)
    assert state(app, run_id) == "ready"
    assert shown == sorted(shown)
    ids = [int(line[0]) for line in csv_rows(content(app, run_id))[1:]]
    assert ids == [3 * n for n in range(1, COUNT + 1)]
    ordinals = {chunk["ordinal"]: chunk["state"] for chunk in rows(app, "report_chunks")}
    assert (ordinals["00001"], ordinals["00001.1"], ordinals["00001.1.2"]) == ("split", "split", "done")
    assert audit(app.store, app.ledgers) == []


@pytest.mark.slow
def test_a_chunk_that_takes_too_long_is_halved(shop_factory: Shop) -> None:
    """The reader's time is counted from the attempt's start: a limit of nothing is over at the first look."""
    app = shop_factory()
    fill(app, 2)
    run_id = requested(app)
    manual_worker = ReportWorker(app)
    manual_worker.do_next()
    chunk_type = app.job_types.get("report.chunk")
    job, limit = manual_worker.claim_one(), chunk_type.time_limit_seconds
    chunk_type.time_limit_seconds = 1e-9
    manual_worker.do(job)
    chunk_type.time_limit_seconds = limit
    assert sorted(chunk["state"] for chunk in rows(app, "report_chunks")) == ["pending", "pending", "split"]
    drain(app)
    assert state(app, run_id) == "ready"
    assert len(csv_rows(content(app, run_id))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_statement_that_takes_too_long_is_ended_by_the_server_and_halved(shop_factory: Shop) -> None:
    slow = report("orders", key="id", chunk_rows=6, dialect="rfc4180")(
        lambda params: sa.select(orders.c.id, sa.func.nap(orders.c.id, type_=sa.Text).label("slept"))
    )
    app = shop_factory(reports=[slow])
    fill(app, 6)
    nap = "BEGIN PERFORM pg_sleep(0.2); RETURN id; END"
    run_sql(app, f"CREATE FUNCTION nap(id int) RETURNS text LANGUAGE plpgsql STABLE AS $${nap}$$")
    run_id = requested(app)
    app.job_types.get("report.chunk").time_limit_seconds = 2.0
    manual_worker = ReportWorker(app)
    manual_worker.do_next()
    manual_worker.do_next()
    drain(app)
    assert {chunk["state"] for chunk in rows(app, "report_chunks")} == {"split", "done"}
    assert [line[0] for line in csv_rows(content(app, run_id))] == ["id", "3", "6", "9", "12", "15", "18"]


def test_a_single_row_that_takes_too_long_fails_the_run(shop_factory: Shop) -> None:
    app = shop_factory()
    fill(app, 1)
    run_id = requested(app)
    app.job_types.get("report.chunk").time_limit_seconds = 1e-9
    manual_worker = ReportWorker(app)
    manual_worker.do_next()
    manual_worker.do_next()
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "chunk_too_long")
