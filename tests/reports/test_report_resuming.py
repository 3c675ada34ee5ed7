"""Runs that are cancelled, refused, resumed or lose their snapshot, in any order: a ready one has all its rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, Integer, MetaData, Table

from effects import Effects, Refused
from effects_reports import Since, cancel_report, repair_reports, report, report_status, request_report, resume_report
from effects_reports.jobs.plan import WAIT_SECONDS
from tests.reports.conftest import Files, ReportWorker, Shop, content, drain
from tests.reports.shop import csv_rows
from tests.reports.steps import assembling, lose_snapshot, second_part, settle, state, undisturbed
from tests.support.manual_workers import row, run_sql
from tests.support.sampling import sample

Step: TypeAlias = Callable[["Story"], None]
metadata = MetaData()
entries = Table("entries", metadata, Column("id", Integer, primary_key=True), sqlite_autoincrement=True)
ROWS = 7  # three chunks


def _every_row() -> sa.Select[Any]:
    return sa.select(entries)


def _new_rows(since: Since) -> sa.Select[Any]:
    return sa.select(entries).where(since.new_rows(entries))


OPTIONS: dict[str, Any] = {"key": ("id",), "chunk_rows": 3, "dialect": "rfc4180"}
REPORTS = (
    report("ranged", **OPTIONS)(_every_row),
    report("frozen", consistency="snapshot", **OPTIONS)(_every_row),
    report("new_ranged", **OPTIONS)(_new_rows),
    report("new_frozen", consistency="snapshot", **OPTIONS)(_new_rows),
)
NAMES = [definition.name for definition in REPORTS]


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    shop = shop_factory(reports=REPORTS)
    metadata.create_all(shop.engine)
    return shop


def replace_entries(app: Effects) -> None:
    """Replace the entries by others, which every transaction sees from now on."""
    with app.engine.begin() as connection:
        connection.execute(entries.delete())
        connection.execute(entries.insert(), [{} for _ in range(ROWS)])
    settle(app)


class Story:
    """One run, and what befalls it."""

    def __init__(self, app: Effects, name: str, folder: Path) -> None:
        self.app, self.folder, self.worker = app, folder, ReportWorker(app)
        self.run_id = request_report(name, key=uuid4().hex, effects=app).run_id

    @property
    def state(self) -> str:
        return state(self.app, self.run_id)

    @property
    def ids(self) -> list[int]:
        return [int(line[0]) for line in csv_rows(content(self.app, self.run_id))[1:]]

    def end(self) -> None:
        """Do its jobs, and resume it where it has ended otherwise, until it is ready; within so many steps."""
        for _ in range(30):
            if self.state == "ready":
                break
            resume(self)
            work(self)
        assert self.state == "ready"
        drain(self.app)


def work(story: Story) -> None:
    for job in story.worker.claim(1):
        story.worker.do(job)


def refuse(story: Story) -> None:
    for job in story.worker.claim(1):
        story.worker.write(story.worker.decide(job, Refused("no", code="broken")))


def cancel(story: Story) -> None:
    if story.state in ("requested", "planning", "running", "assembling"):
        cancel_report(story.run_id, effects=story.app)


def resume(story: Story) -> None:
    if story.state in ("failed", "cancelled"):
        resume_report(story.run_id, effects=story.app)


def lose(story: Story) -> None:
    lose_snapshot(story.app, story.folder)


STEPS: tuple[Step, ...] = (work, work, refuse, cancel, resume, resume, lose)
STORIES: dict[str, list[Step]] = {
    "cancelled twice": [work, cancel, resume, cancel, resume],
    "refused twice": [work, refuse, resume, refuse, resume],
    "lost, then cancelled": [work, lose, work, cancel, resume],
    "lost, then refused": [work, work, lose, work, refuse, resume],
    "cancelled while it is assembled": [work, work, work, work, cancel, resume, cancel, resume],
}


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "name"), sample(product(STORIES, NAMES), 5))
def test_a_run_that_was_resumed_has_all_its_rows(steps: str, name: str, app: Effects, tmp_path: Path) -> None:
    replace_entries(app)
    story = Story(app, name, tmp_path)
    for step in STORIES[steps]:
        step(story)
    story.end()
    assert story.ids == list(range(1, ROWS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", sample(range(40), 1))
def test_after_any_steps_a_run_that_is_ready_has_all_its_rows(
    seed: int, name: str, app: Effects, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    for number in range(2):
        replace_entries(app)
        story, steps = Story(app, name, tmp_path), draw.choices(STEPS, k=10)
        for step in steps:
            step(story)
        story.end()
        before = number * ROWS
        assert story.ids == list(range(before + 1, before + ROWS + 1)), [step.__name__ for step in steps]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_rows_is_resumed_too(name: str, app: Effects, tmp_path: Path) -> None:
    story = Story(app, name, tmp_path)
    for step in (work, refuse, resume, cancel, resume):
        step(story)
    story.end()
    assert story.ids == []


def test_a_run_that_is_planned_again_shows_nothing_of_its_old_plan(app: Effects, tmp_path: Path) -> None:
    replace_entries(app)
    story = Story(app, "frozen", tmp_path)
    for step in (work, cancel, resume):
        step(story)
    status = report_status(story.run_id, effects=app)
    assert (status.state, status.planned_at, status.progress.rows_total) == ("requested", None, None)


def test_a_drain_that_refuses_the_second_plan_of_new_rows_loses_none(app: Effects, tmp_path: Path) -> None:
    replace_entries(app)
    story = Story(app, "new_frozen", tmp_path)
    for step in (work, lose, work):
        step(story)
    drain(app)
    assert report_status(story.run_id, effects=app).error_code == "snapshot_under_drain"
    assert resume_report(story.run_id, effects=app) == "requested"
    story.end()
    assert story.ids == list(range(1, ROWS + 1))


@pytest.mark.parametrize("gone", ["true", "ordinal = '00003'"], ids=["all", "the last"])
def test_a_run_some_of_whose_chunks_are_gone_fails_and_is_planned_again(
    gone: str, app: Effects, tmp_path: Path
) -> None:
    replace_entries(app)
    story = Story(app, "ranged", tmp_path)
    work(story)
    run_sql(app, f"DELETE FROM effects_report_chunks WHERE {gone}")
    repair_reports(effects=app)
    for _ in range(3):
        work(story)
    assert report_status(story.run_id, effects=app).error_code == "chunks_missing"
    assert resume_report(story.run_id, effects=app) == "requested"
    story.end()
    assert story.ids == list(range(1, ROWS + 1))


# -- the assembly of an older round ------------------------------------------------------------------------------


@pytest.mark.parametrize("repairs", [0, 2])
@pytest.mark.slow
def test_an_assembly_from_before_a_resume_that_misses_parts_changes_nothing(
    repairs: int, manual_worker: ReportWorker, files: Files, tmp_path: Path
) -> None:
    app = manual_worker.app
    clean = undisturbed(app)
    run_id, job = assembling(manual_worker)
    run_sql(app, f"UPDATE effects_report_runs SET repairs = {repairs}")
    part = second_part(files, tmp_path)
    part.unlink()
    late = manual_worker.perform(job)
    cancel_report(run_id, effects=app)
    assert resume_report(run_id, effects=app) == "running"
    before = row(app, "report_runs", "id = :id", id=run_id)
    manual_worker.write(late)
    after = row(app, "report_runs", "id = :id", id=run_id)
    assert (after["state"], after["round"], after["repairs"]) == (before["state"], before["round"], 0)
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)


@pytest.mark.slow
def test_an_assembly_from_before_a_resume_does_not_end_the_run_as_superseded(app: Effects, tmp_path: Path) -> None:
    """It is planned again behind the run that has begun with its rows."""
    replace_entries(app)
    story = Story(app, "new_frozen", tmp_path)
    for step in [work] * 4:
        step(story)
    late = story.worker.perform(story.worker.claim_one())
    cancel(story)
    second = Story(app, "new_frozen", tmp_path)
    work(second)
    resume(story)
    story.worker.write(late)
    assert (story.state, second.state) == ("requested", "running")
    second.end()
    app.store.shift_clock(WAIT_SECONDS)
    story.end()
    assert (second.ids, story.ids) == (list(range(1, ROWS + 1)), [])
