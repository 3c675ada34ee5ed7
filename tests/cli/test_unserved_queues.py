"""A queue with due jobs that no worker serves is named wherever someone looks, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from effects import ConfigurationError, Effects
from effects.model.alerts import Alert, DeadLetters, OldDueJobs
from effects.model.schedules import Schedule
from effects.operate.doctor import check_all_declared
from effects.web import Person, dashboard
from tests.cli.conftest import Run
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.web.browsing import Visitor, plain

APP = ("--app", "tests.cli.watched_app:app")


@pytest.fixture
def visitor(app: Effects) -> Iterator[Visitor]:
    board = dashboard(guard=lambda request: Person("ann", role="viewer"), effects=app)
    yield Visitor(board)
    board.close()


def _everywhere(app: Effects, run: Run, visitor: Visitor) -> dict[str, str]:
    """What each of them says."""
    [job] = rows(app, "jobs")
    commands = {name: run(*APP, *name.split()).out for name in ("status", "doctor", f"why {job['id']}")}
    pages = {page: plain(visitor.send("GET", page).text) for page in ("/", "/health")}
    return {**commands, **pages}


def _put(app: Effects, queue: str) -> None:
    run_sql(app, f"INSERT INTO effects_jobs (job_type, payload, queue) VALUES ('scripted', '{{}}', '{queue}')")


@pytest.mark.parametrize(
    ("queue", "worker", "is_named"),
    [
        ("emials", None, True),
        ("emials", "default", True),
        ("emials", "default,emials", False),
        ("emails", "default", True),  # one that this app names, too
        ("default", None, False),  # between two drains by cron
        ("effects", "default", True),  # of workers that run with --no-housekeeping
    ],
)
def test_it_is_named_everywhere(
    app: Effects, run: Run, visitor: Visitor, queue: str, worker: str | None, is_named: bool
) -> None:
    _put(app, queue)
    if worker is not None:
        ManualWorker(app, queue=worker)
    answers = _everywhere(app, run, visitor)
    named = {where: f"effects {' '.join(APP)} work --queue {queue}" in text or f"effects work --queue {queue}" in text
             for where, text in answers.items()}  # fmt: skip
    assert named == dict.fromkeys(answers, is_named), answers
    said = {where for where, text in answers.items() if f"queue {queue}: 1 job due, no worker serves it" in text}
    assert said == ({where for where in answers if not where.startswith("why")} if is_named else set())


def test_the_command_that_is_advised_serves_it(app: Effects, run: Run) -> None:
    _put(app, "emials")
    answer = run(*APP, "work", "--drain")
    assert (answer.exit_code, rows(app, "jobs") != []) == (3, True)
    assert run(*APP, "work", "--drain", "--queue", "default").exit_code == 0  # asked for one queue
    assert run(*APP, "work", "--drain", "--queue", "emials").exit_code == 0
    assert run(*APP, "work", "--drain").exit_code == 0
    assert rows(app, "jobs") == []


def test_a_living_worker_of_it_is_left_to_do_it(app: Effects, run: Run) -> None:
    _put(app, "emials")
    ManualWorker(app, queue="emials")
    assert run(*APP, "work", "--drain").exit_code == 0


RULE = Alert("late", OldDueJobs(queue="emials"), notify="scripted")
ROUTED = Schedule("nightly", "scripted", {"queue": "emials"}, cron="0 3 * * *")
ROUTED_ALERT = Alert("dead", DeadLetters(), notify="scripted", payload={"queue": "emials"})


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({"alerts": [RULE]}, "alert 'late'"), ({"alerts": [ROUTED_ALERT]}, "alert 'dead'"),
        ({"schedules": [ROUTED]}, "schedule 'nightly'"),
    ],
    ids=["rule", "routed alert", "schedule"],
)  # fmt: skip
def test_what_is_declared_for_a_queue_that_no_one_serves_is_refused(
    app_factory: AppFactory, options: dict[str, Any], who: str
) -> None:
    app = app_factory(**options)
    with app.store.read() as connection:
        with pytest.raises(ConfigurationError, match=rf"{who}: queue 'emials': .*; is it 'emails'\?"):
            check_all_declared(app, connection)
        ManualWorker(app, queue="emials")
    with app.store.read() as connection:
        check_all_declared(app, connection)


def test_init_names_the_async_types_of_a_mixed_queue(run: Run) -> None:
    answer = run("--app", "tests.cli.mixed_app:app", "init", "--json")
    assert answer.json["mixed_queues"] == {"default": ["calls"]}
    assert "queue default has blocking and async job types" in run("--app", "tests.cli.mixed_app:app", "init").out
