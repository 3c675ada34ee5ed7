"""What fails a run visibly, and what is mended by itself: dead and lost jobs, damaged parts, chunks too large."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Effects
from effects.store.audit import audit
from effects.store.dead_letters import DeadFilters, list_dead
from effects_reports import (
    Notify,
    report,
    report_status,
    resume_report,
    sweep_reports,
)
from tests.reports.conftest import COUNT, Files, Hands, Shop, content, drain
from tests.reports.shop import csv_rows, fill, orders
from tests.reports.steps import assembling, planned, requested, state, undisturbed
from tests.support.hands import row, rows, run_sql
from tests.support.scripted import Scripted

# -- a dead job --------------------------------------------------------------------------------------------------


class _Broken:
    """A report whose mapping fails for one order until it is mended."""

    def __init__(self) -> None:
        self.broken = True
        self.mapped: list[int] = []

    def __call__(self, found: Any) -> Any:
        if self.broken and found.id == 450:
            raise ValueError("rosebud")
        self.mapped.append(found.id)
        return found

    def definition(self) -> Any:
        declare = report(
            "orders", key=("id",), chunk_rows=100, columns=("id", "customer", "cents"), map_row=self, dialect="rfc4180"
        )
        return declare(lambda params: sa.select(orders))


def test_a_chunk_that_dies_fails_the_run_visibly_and_resume_makes_only_that(shop_factory: Shop) -> None:
    broken = _Broken()
    app = shop_factory(reports=[broken.definition()], job_types=[Scripted()])
    fill(app, COUNT)
    notify = Notify(job_type="scripted", payload={"name": "{state}: {error}"})
    run_id = requested(app, notify=notify)
    hands = Hands(app)
    hands.do_next()
    for _ in range(7):  # three chunks, and the broken one four times more
        for job in hands.claim():
            hands.do(job)
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


def test_a_chunk_whose_workers_all_die_fails_the_run(hands: Hands) -> None:
    app = hands.app
    run_id, jobs = planned(hands)
    for job in jobs[1:]:
        hands.do(job)
    for number in range(5):
        assert state(app, run_id) == "running"
        run_sql(app, f"UPDATE {app.store.sql.workers} SET seen_at = {app.store.sql.after('-3600')}")
        hands.rescue()
        Hands(app, f"next-{number}").claim(queue="quarantine")
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "poison")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert state(app, run_id) == "ready"


def test_a_chunk_job_that_an_operator_cancels_fails_the_run(hands: Hands) -> None:
    """A file without its rows would be worse."""
    app = hands.app
    run_id, jobs = planned(hands)
    for job in jobs[:2]:
        hands.do(job)
    hands.write(hands.decide_cancelled(jobs[2]))
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "chunk_cancelled")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert len(csv_rows(content(app, run_id))) == 1 + COUNT


def test_a_plan_that_dies_fails_the_run(hands: Hands) -> None:
    app, run_id = hands.app, requested(hands.app)
    run_sql(app, "DROP TABLE orders")
    for _ in range(5):
        hands.do_next()
        app.store.shift_clock(200)
    assert state(app, run_id) == "failed"
    fill(app, 10)
    assert resume_report(run_id, effects=app) == "requested"
    drain(app)
    assert state(app, run_id) == "ready"


# -- the sweep ---------------------------------------------------------------------------------------------------


def test_a_sweep_finds_nothing_to_do_in_a_run_that_goes_on(hands: Hands) -> None:
    app = hands.app
    run_id, jobs = planned(hands)
    for job in [*jobs]:
        assert sum(_counts(app)) == 0
        hands.do(job)
    assert sum(_counts(app)) == 0
    hands.do_next()
    assert sum(_counts(app)) == 0
    assert state(app, run_id) == "ready"


def _counts(app: Effects) -> list[int]:
    swept = sweep_reports(effects=app)
    return [swept.restarted, swept.failed, swept.chunks, swept.closed, swept.copies]


def test_a_sweep_fails_a_run_whose_chunk_job_is_gone(hands: Hands) -> None:
    app = hands.app
    run_id, jobs = planned(hands)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=jobs[1].id)
    assert sweep_reports(effects=app).chunks == 1
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "job_gone")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert state(app, run_id) == "ready"


@pytest.mark.parametrize("when", ["requested", "planning", "assembling"])
def test_a_sweep_writes_a_job_anew_that_is_gone(when: str, hands: Hands) -> None:
    app = hands.app
    if when == "assembling":
        run_id, job = assembling(hands)
    else:
        run_id, job = requested(app), hands.claim_one()
    if when == "planning":
        hands.perform(job)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=job.id)
    assert state(app, run_id) == when
    assert sweep_reports(effects=app).restarted == 1
    assert sweep_reports(effects=app).restarted == 0
    drain(app)
    assert state(app, run_id) == "ready"


def test_sweeps_at_once_write_one_job(hands: Hands) -> None:
    app = hands.app
    run_id, job = assembling(hands)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=job.id)
    with ThreadPoolExecutor(4) as pool:
        swept = list(pool.map(lambda _: sweep_reports(effects=app), range(8)))
    assert sum(one.restarted for one in swept) == 1
    assert len(rows(app, "jobs")) == 1
    drain(app)
    assert state(app, run_id) == "ready"


def test_a_sweep_closes_a_run_all_of_whose_chunks_are_done(hands: Hands) -> None:
    app = hands.app
    run_id, job = assembling(hands)
    run_sql(app, "DELETE FROM effects_jobs WHERE id = :id", id=job.id)
    run_sql(app, "UPDATE effects_report_runs SET state = 'running'")
    assert sweep_reports(effects=app).closed == 1
    drain(app)
    assert state(app, run_id) == "ready"


def test_the_sweep_is_a_schedule_of_apps_with_reports(shop: Effects, shop_factory: Shop) -> None:
    assert shop.schedules["reports.sweep"].cron == "*/5 * * * *"
    assert "reports.sweep" not in shop_factory(reports=[]).schedules


# -- parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_part_is_made_anew_before_it_is_joined(
    damage: str, hands: Hands, files: Files, tmp_path: Path
) -> None:
    app = hands.app
    clean = undisturbed(app)
    run_id, job = assembling(hands)
    part = tmp_path / "files" / next(name for name in files() if "/parts/00002." in name)
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes().replace(b"4", b"5", 1))
    hands.do(job)
    assert state(app, run_id) == "running"
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)


@pytest.mark.parametrize("left", [b"", b"\0"], ids=["empty", "zeros"])
def test_all_parts_that_a_power_cut_took_are_made_anew_at_once(
    left: bytes, hands: Hands, files: Files, tmp_path: Path
) -> None:
    """Parts are not synced: a file system may keep their names, and their sizes too."""
    app = hands.app
    clean = undisturbed(app)
    run_id, job = assembling(hands)
    parts = [tmp_path / "files" / name for name in files() if "/parts/" in name]
    for part in parts:
        part.write_bytes(left * part.stat().st_size)
    hands.do(job)
    anew = hands.claim()
    assert [one.job_type for one in anew] == ["report.chunk"] * len(parts) == ["report.chunk"] * 3
    for one in anew:
        hands.do(one)
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)


def test_parts_that_are_damaged_again_and_again_fail_the_run(hands: Hands, files: Files, tmp_path: Path) -> None:
    app = hands.app
    run_id, job = assembling(hands)
    for _ in range(3):
        for name in files():
            (tmp_path / "files" / name).unlink()
        hands.do(job)
        if state(app, run_id) == "failed":
            break
        for chunk in hands.claim():
            hands.do(chunk)
        job = hands.claim_one()
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


def test_a_chunk_without_memory_is_halved_until_it_fits(shop_factory: Shop) -> None:
    declare = report(
        "orders", key=("id",), chunk_rows=100, columns=("id", "customer", "cents"), map_batch=_Hungry(30),
        dialect="rfc4180",
    )  # fmt: skip
    app = shop_factory(reports=[declare(lambda params: sa.select(orders))])
    fill(app, COUNT)
    run_id = requested(app)
    shown = []
    hands = Hands(app)
    while state(app, run_id) not in ("ready", "failed"):
        hands.do_next()
        shown.append(report_status(run_id, effects=app).progress.fraction)
    assert state(app, run_id) == "ready"
    assert shown == sorted(shown)
    ids = [int(line[0]) for line in csv_rows(content(app, run_id))[1:]]
    assert ids == [3 * n for n in range(1, COUNT + 1)]
    ordinals = {chunk["ordinal"]: chunk["state"] for chunk in rows(app, "report_chunks")}
    assert (ordinals["00001"], ordinals["00001.1"], ordinals["00001.1.2"]) == ("split", "split", "done")
    assert audit(app) == []


def test_a_chunk_that_takes_too_long_is_halved(shop_factory: Shop) -> None:
    """The reader's time is counted from the attempt's start: a limit of nothing is over at the first look."""
    app = shop_factory()
    fill(app, 2)
    run_id = requested(app)
    hands = Hands(app)
    hands.do_next()
    chunk_type = app.job_types.get("report.chunk")
    job, limit = hands.claim_one(), chunk_type.time_limit_seconds
    chunk_type.time_limit_seconds = 1e-9
    hands.do(job)
    chunk_type.time_limit_seconds = limit
    assert sorted(chunk["state"] for chunk in rows(app, "report_chunks")) == ["pending", "pending", "split"]
    drain(app)
    assert state(app, run_id) == "ready"
    assert len(csv_rows(content(app, run_id))) == 3


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
    hands = Hands(app)
    hands.do_next()
    hands.do_next()
    drain(app)
    assert {chunk["state"] for chunk in rows(app, "report_chunks")} == {"split", "done"}
    assert [line[0] for line in csv_rows(content(app, run_id))] == ["id", "3", "6", "9", "12", "15", "18"]


def test_a_single_row_that_takes_too_long_fails_the_run(shop_factory: Shop) -> None:
    app = shop_factory()
    fill(app, 1)
    run_id = requested(app)
    app.job_types.get("report.chunk").time_limit_seconds = 1e-9
    hands = Hands(app)
    hands.do_next()
    hands.do_next()
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "chunk_too_long")
