"""`effects queues`, and who else says that a queue is paused."""

from __future__ import annotations

import psycopg
import pytest

from effects import Effects, enqueue
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker


@pytest.mark.slow
def test_a_pause_is_shown_until_it_is_resumed(app: Effects, run: Run) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    answer = run("queues", "pause", "default", "--for", "15m", "--reason", "their release")
    assert answer.exit_code == 0
    assert answer.out.startswith("queue default is paused by cli:")
    assert ManualWorker(app).claim() == []
    sentence = answer.out.strip()
    assert f"Its {sentence}." in run("why", "k").out
    waits = run("why", "k", "--json").json[0]["waits"]
    assert (waits["reason"], waits["name"], waits["cause"]) == ("queue_paused", "default", "their release")
    assert f"{sentence}; 1 job waits" in run("status").out
    held_up = run("status", "--json").json["held_up"]  # without --app its job type is not registered, which is another
    assert [(held["name"], held["jobs"]) for held in held_up if held["kind"] == "queue_paused"] == [("default", 1)]
    assert sentence in run("doctor").out
    assert "effects queues resume default" in run("doctor").out
    [listed] = [state for state in run("queues", "list", "--json").json if state["queue"] == "default"]
    assert (listed["waiting"], listed["running"], listed["reason"]) == (1, 0, "their release")
    assert listed["paused_until"] is not None
    assert "their release" in run("queues", "list").out

    assert "effects_paused_queues 1" in run("metrics").out.splitlines()
    assert run("queues", "resume", "default").out == "queue default resumed\n"
    assert run("queues", "resume", "default", "--json").json["was_paused"] is False
    assert "no queue is paused" in run("doctor").out
    assert "queue_paused" not in {held["kind"] for held in run("status", "--json").json["held_up"]}
    assert "effects_paused_queues 0" in run("metrics").out.splitlines()
    assert " and waits for a worker " in run("why", "k").out
    assert len(ManualWorker(app).claim()) == 1


@pytest.mark.slow
def test_a_drain_leaves_a_paused_queue_alone(app: Effects, run: Run) -> None:
    job_id = enqueue("scripted", {}, effects=app).job_id
    run("queues", "pause", "default")
    assert run("work", "--drain", "--max-seconds", "30").exit_code == 0
    assert run("jobs", "show", job_id, "--json").json["facts"]["jobs"][0]["status"] == "queued"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_an_unknown_queue_is_an_error_that_names_the_nearest(app: Effects, run: Run, command: str) -> None:
    answer = run("queues", command, "defualt")
    assert answer.exit_code == 2
    advice = "is it 'default'? (see `effects queues list`)"
    assert error_line(answer) == f"error: no job and no job type has the queue 'defualt'; {advice}"
    assert run("queues", "pause", "soon", "--create", "--json").json["result"] == "paused"
    assert run("queues", "resume", "soon").out == "queue soon resumed\n"


def test_a_wrong_length_of_time_is_refused(app: Effects, run: Run) -> None:
    answer = run("queues", "pause", "default", "--for", "soon")
    assert answer.exit_code == 2
    assert "such as 6h" in error_line(answer)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_resume_notifies_the_idle_workers(app: Effects, run: Run, database_url: str) -> None:
    run("queues", "pause", "default")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("LISTEN effects")
        run("queues", "resume", "default")
        [hint] = connection.notifies(timeout=30, stop_after=1)
    assert "default" in hint.payload.split(",")
