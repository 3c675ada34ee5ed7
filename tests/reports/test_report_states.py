"""The states of a run, step by step: what happens twice, too late, out of turn or not at all changes nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Effects, Job
from effects.storage.local import LocalStorage
from effects.store.audit import audit
from effects.store.dead_letters import DeadFilters, list_dead
from effects_reports import (
    Notify,
    ReportNotFound,
    cancel_report,
    report,
    report_status,
    request_report,
    resume_report,
    sweep_reports,
)
from tests.reports.conftest import Hands, Shop, content, drain
from tests.reports.shop import csv_rows, fill, orders
from tests.support.hands import row, rows, run_sql
from tests.support.scripted import Scripted

Files = Callable[[], list[str]]
COUNT = 250  # three chunks


@pytest.fixture
def hands(shop: Effects) -> Hands:
    """On a database with 250 orders."""
    fill(shop, COUNT)
    return Hands(shop)


def requested(app: Effects, **options: Any) -> str:
    return request_report("orders", effects=app, **options).run_id


def state(app: Effects, run_id: str) -> str:
    return report_status(run_id, effects=app).state


def undisturbed(app: Effects) -> str:
    """The SHA-256 of the same report, made without trouble."""
    run_id = requested(app)
    drain(app)
    return str(report_status(run_id, effects=app).sha256)


def planned(hands: Hands) -> tuple[str, list[Job]]:
    """A run whose three chunk jobs have been claimed, and none performed."""
    run_id = requested(hands.app)
    hands.do_next()
    jobs = hands.claim()
    assert [job.job_type for job in jobs] == ["report.chunk"] * 3
    return run_id, jobs


def assembling(hands: Hands) -> tuple[str, Job]:
    """A run whose chunks are done, and its assemble job, claimed."""
    run_id, jobs = planned(hands)
    for job in jobs:
        hands.do(job)
    return run_id, hands.claim_one()


# -- exactly once ------------------------------------------------------------------------------------------------


def test_the_states_in_their_order(hands: Hands) -> None:
    app, run_id = hands.app, requested(hands.app)
    seen = [state(app, run_id)]
    while seen[-1] != "ready":
        hands.do_next()
        seen.append(state(app, run_id))
    assert seen == ["requested", "running", "running", "running", "assembling", "ready"]
    assert row(app, "generated_reports")["state"] == "done"
    hands.do_next()  # the clearing away of its parts
    assert hands.claim() == []
    assert audit(app) == []


def test_every_chunk_and_the_assembler_executed_twice_give_the_same_file(hands: Hands, files: Files) -> None:
    app = hands.app
    clean = undisturbed(app)
    run_id, jobs = planned(hands)
    for job in jobs:
        first, second = hands.perform(job), hands.perform(job)
        hands.write(first)
        hands.write(second)  # taken for the same answer, repeated: nothing of it is written
    job = hands.claim_one()
    first, second = hands.perform(job), hands.perform(job)
    hands.write(second)
    hands.write(first)
    status = report_status(run_id, effects=app)
    assert (status.state, status.sha256, status.rows) == ("ready", clean, COUNT)
    assert hashlib.sha256(content(app, run_id)).hexdigest() == clean
    assert len(rows(app, "report_chunks", "run_id = :id", id=run_id)) == 3
    drain(app)
    assert [name for name in files() if run_id in name] == [status.artifact]
    assert audit(app) == []


def test_both_attempts_of_a_rescued_chunk_finish_and_one_counts(hands: Hands) -> None:
    app = hands.app
    clean = undisturbed(app)
    run_id, jobs = planned(hands)
    late = hands.perform(jobs[0])  # its worker is then thought dead
    run_sql(app, f"UPDATE {app.store.sql.workers} SET seen_at = {app.store.sql.after('-3600')}")
    hands.rescue()
    other = Hands(app, "other")
    for again in other.claim(queue="quarantine"):
        other.do(again)
    assert hands.write(late).accepted == []
    other.do_next()
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)


def test_a_late_attempt_deletes_its_own_part(hands: Hands, files: Files) -> None:
    app = hands.app
    run_id, jobs = planned(hands)
    run_sql(app, "UPDATE effects_report_chunks SET job_id = job_id + 1000")
    settlement = hands.perform(jobs[0])
    assert settlement.outcome == "cancelled"
    assert files() == []
    assert state(app, run_id) == "running"


def test_an_attempt_that_finds_out_at_the_end_deletes_its_part(
    hands: Hands, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = hands.app
    _, jobs = planned(hands)
    begin = LocalStorage.writer

    def writer(self: LocalStorage, name: str, **options: Any) -> Any:
        run_sql(app, "UPDATE effects_report_chunks SET token = token + 1")  # another attempt has begun meanwhile
        return begin(self, name, **options)

    monkeypatch.setattr(LocalStorage, "writer", writer)
    assert hands.perform(jobs[0]).outcome == "cancelled"
    assert files() == []


def test_a_plan_made_twice_is_one_plan(hands: Hands) -> None:
    app, run_id = hands.app, requested(hands.app)
    job = hands.claim_one()
    first, second = hands.perform(job), hands.perform(job)
    hands.write(first)
    hands.write(second)
    assert report_status(run_id, effects=app).progress.chunks_total == 3
    assert len(hands.claim()) == 3


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


# -- cancel and resume -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(6))
def test_cancelled_in_every_state_and_taken_up_again(steps: int, hands: Hands, files: Files) -> None:
    """After the request, the plan, each of the three chunks: no job of it does anything more, until it is resumed."""
    app = hands.app
    clean = undisturbed(app)
    run_id = requested(app)
    for _ in range(steps):
        hands.do_next()
    if steps == 5:
        with pytest.raises(ReportNotFound, match="is ready: only a run that is under way can be cancelled"):
            cancel_report(run_id, effects=app)
        return
    assert cancel_report(run_id, effects=app) == "cancelled"
    parts = [name for name in files() if run_id in name]
    drain(app)
    assert [name for name in files() if run_id in name] == parts
    status = report_status(run_id, effects=app)
    assert status.state == "cancelled"
    with pytest.raises(ReportNotFound, match="is cancelled"):
        cancel_report(run_id, effects=app)
    assert resume_report(run_id, effects=app) == ("requested" if steps == 0 else "running")
    assert report_status(run_id, effects=app).progress.fraction >= status.progress.fraction
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)
    assert row(app, "generated_reports", "run_id = :id", id=run_id)["state"] == "done"
    assert audit(app) == []


def test_cancelled_while_a_chunk_is_under_way(hands: Hands, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt notices at its next look, and deletes what it has written."""
    app = hands.app
    run_id, jobs = planned(hands)
    answers = []
    monkeypatch.setattr("effects_reports.chunk.FLUSH_SECONDS", 0.0)
    _when_written(monkeypatch, lambda: answers.append(cancel_report(run_id, effects=app)))
    settlement = hands.do(jobs[0])
    assert answers == ["cancelling"]
    assert (settlement.outcome, state(app, run_id), files()) == ("cancelled", "cancelled", [])
    for job in jobs[1:]:
        assert hands.do(job).outcome == "cancelled"
    assert row(app, "generated_reports")["state"] == "abandoned"


def _when_written(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once, when the first part is begun."""
    begin = LocalStorage.writer
    done: list[object] = []

    def writer(self: LocalStorage, name: str, **options: Any) -> Any:
        if not done:
            done.append(act())
        return begin(self, name, **options)

    monkeypatch.setattr(LocalStorage, "writer", writer)


def test_cancelled_while_it_is_assembled(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    app = hands.app
    run_id, job = assembling(hands)
    answers = []
    monkeypatch.setattr("effects_reports.assemble.LOOK_SECONDS", 0.0)
    _when_written(monkeypatch, lambda: answers.append(cancel_report(run_id, effects=app)))
    assert hands.do(job).outcome == "cancelled"
    assert (answers, state(app, run_id)) == (["cancelled"], "cancelled")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert state(app, run_id) == "ready"


def test_a_plan_that_was_cancelled_meanwhile_makes_no_chunk(hands: Hands) -> None:
    app, run_id = hands.app, requested(hands.app)
    settlement = hands.perform(hands.claim_one())
    cancel_report(run_id, effects=app)
    hands.write(settlement)
    assert (state(app, run_id), rows(app, "report_chunks"), hands.claim()) == ("cancelled", [], [])


def test_only_what_has_failed_or_was_cancelled_is_taken_up(hands: Hands) -> None:
    run_id = requested(hands.app)
    with pytest.raises(ReportNotFound, match="is requested: only a run that failed or was cancelled"):
        resume_report(run_id, effects=hands.app)
    with pytest.raises(ReportNotFound, match="there is no run"):
        resume_report("rep_x", effects=hands.app)


def test_cancel_and_resume_in_the_callers_transaction(hands: Hands) -> None:
    app, run_id = hands.app, requested(hands.app)
    with app.engine.connect() as connection:
        cancel_report(run_id, session=connection, effects=app)
        connection.rollback()
    assert state(app, run_id) == "requested"


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


# -- fairness ----------------------------------------------------------------------------------------------------


def test_four_chunks_of_a_report_run_at_once_in_a_lane_of_their_own(hands: Hands) -> None:
    app = hands.app
    fill_more = [{"id": 3 * n, "customer": "c", "cents": 1} for n in range(COUNT + 1, 1000)]
    with app.engine.begin() as connection:
        connection.execute(orders.insert(), fill_more)
    runs = [requested(app), requested(app)]
    for job in hands.claim():
        hands.do(job)
    assert [state(app, run_id) for run_id in runs] == ["running", "running"]
    assert len(hands.claim()) == 4
    assert hands.claim() == []
    assert {job["queue"] for job in rows(app, "jobs")} == {"reports"}
    assert row(app, "limits")["max_in_flight"] == 4
