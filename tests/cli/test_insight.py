"""`effects status`, `why` and `audit`: the words and the numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from effects import Done, Effects, Refused, Retry, Unknown, enqueue
from effects.store.effects.requeue import requeue
from effects.store.queue.cancellation import cancel
from tests.cli.conftest import Run
from tests.conftest import AppFactory
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.scripted import Scripted


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


def live(app: Effects, *endings: Any, key: str = "k", job_type: str = "scripted", **options: Any) -> int:
    """A job after these attempts."""
    job_id = enqueue(job_type, {}, key=key, effects=app, **options).job_id
    manual_worker = ManualWorker(app, f"manual of {job_id}")
    for ending in endings:
        app.store.shift_clock(600)
        manual_worker.settle((manual_worker.claim_one(), ending))
    app.store.shift_clock(-600 * len(endings))
    return job_id


def why(run: Run, key: str = "k") -> str:
    """The sentence, which the JSON form repeats."""
    text = run("why", key).out.splitlines()[0]
    repeated = run("why", key, "--json").json[0]["sentence"]
    first, again = (re.sub(r"\d+ s\b", "N s", each).split(" in ")[0].split(" for ")[0] for each in (text, repeated))
    assert first == again  # a second may pass between the two
    return text


def test_done(app: Effects, run: Run) -> None:
    live(app, Retry("not now", detail={"status": 503}), Done(detail={"status": 200}))
    sentence = why(run)
    assert sentence.startswith("k (scripted) was done at 20")
    assert sentence.endswith("after 2 attempts, last answer: HTTP 200. Nothing left to do.")


def test_refused(app: Effects, run: Run) -> None:
    job_id = live(app, Refused("the address does not exist", detail={"status": 410}))
    sentence = why(run)
    assert "k (scripted) was refused at 20" in sentence
    assert "after 1 attempt, last answer: HTTP 410, the address does not exist" in sentence
    assert f"is dead; to retry it, run `effects retry {job_id}`." in sentence


def test_unknown_and_held(app: Effects, run: Run) -> None:
    job_id = live(app, Unknown("no reply came"), job_type="held")
    sentence = why(run)
    assert "is unknown (it may or may not have happened) after 1 attempt" in sentence
    assert "no reply came" in sentence
    assert f"Job {job_id} is dead; to resolve it, run `effects resolve {job_id} --as done` if" in sentence


def test_unknown_and_repeated(app: Effects, run: Run) -> None:
    live(app, Unknown("no reply came"))
    sentence = why(run)
    assert "is unknown" in sentence
    assert "Its next attempt is due at 20" in sentence


def test_waiting(app: Effects, run: Run) -> None:
    live(app)
    assert re.search(
        r"is queued \(0 attempts\)\. It has been due for \d+ s and waits for a worker with its job type scripted, "
        r"which is not registered here: name the app that has it \(--app\)\.$",
        why(run),
    )
    assert "no attempts" in run("why", "k").out


def test_waiting_to_be_tried_again(app: Effects, run: Run) -> None:
    live(app, Retry("come back later", code="busy"))
    sentence = why(run)
    assert "is retrying (1 attempt, last answer: come back later). Its next attempt is due at 20" in sentence


def test_waiting_behind_a_pause(app: Effects, run: Run) -> None:
    live(app, limit_key="partner")
    pause(app, "partner")
    sentence = why(run)
    assert "Its limit key partner is paused until 20" in sentence
    assert "(they asked us to slow down)." in sentence


def pause(app: Effects, key: str) -> None:
    until = app.store.sql.after("600")
    run_sql(
        app,
        "INSERT INTO effects_limits (limit_key, paused_until, pause_reason) "
        f"VALUES (:key, {until}, 'they asked us to slow down')",
        key=key,
    )


def test_running(app: Effects, run: Run) -> None:
    live(app)
    ManualWorker(app, "worker-7").claim_one()
    sentence = why(run)
    assert "is running (0 attempts before). Attempt 1 has been running since 20" in sentence
    assert sentence.endswith("in worker worker-7.")


def test_given_up(app: Effects, run: Run) -> None:
    job_id = live(app)
    cancel(app.store, app.ledgers, job_id, actor="ann", reason="a mistake")
    sentence = why(run)
    assert "was cancelled at 20" in sentence
    assert "(cancelled by ann) after 0 attempts. " in sentence
    assert "a mistake" in run("why", "k").out


def test_why_covers_requeued_jobs(app: Effects, run: Run) -> None:
    first = live(app, Refused("no"))
    second = requeue(app.store, app.job_types, first, actor="ann").job_id
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Done()))
    assert "after 2 attempts in 2 jobs" in why(run)
    [story] = run("why", "k", "--json").json
    assert [attempt["job_id"] for attempt in story["facts"]["attempts"]] == [first, second]
    assert [job["id"] for job in story["facts"]["jobs"]] == [second, first]
    assert story["facts"]["actions"][0]["actor"] == "ann"


def test_one_key_of_two_job_types_is_two_effects(app: Effects, run: Run) -> None:
    live(app)
    live(app, job_type="held")
    assert [effect["job_type"] for effect in run("why", "k", "--json").json] == ["held", "scripted"]


def test_an_unknown_key(run: Run) -> None:
    assert "no effect with key 'nobody'" in error_line(run("why", "nobody"))


def test_text_of_a_peer_cannot_move_the_cursor(app: Effects, run: Run) -> None:
    live(app, Refused("no\x1b[2J\r\nerror: all is lost"))
    out = run("why", "k").out
    assert "\x1b" not in out
    assert "\nerror" not in out


def test_status(app: Effects, run: Run) -> None:
    live(app, Done(), key="a")
    live(app, Refused("no", code="gone"), key="b")
    live(app, Retry("not now", code="busy"), key="c")
    live(app, key="d", limit_key="partner")
    pause(app, "partner")
    status = run("status", "--json").json
    counts = {(count["job_type"], count["status"]): count["jobs"] for count in status["counts"]}
    assert counts == {
        ("scripted", "succeeded"): 1, ("scripted", "dead"): 1, ("scripted", "retrying"): 1, ("scripted", "queued"): 1,
    }  # fmt: skip
    assert status["oldest_due_seconds"] >= 0
    assert status["dead_last_hour"] == 1
    assert {(error["error_code"], error["jobs"]) for error in status["errors"]} == {("gone", 1), ("busy", 1)}
    assert [(held["name"], held["jobs"]) for held in status["held_up"]] == [("partner", 1), ("scripted", 2)]
    assert {worker["alive"] for worker in status["workers"]} == {True}
    text = run("status").out
    for word in ("scripted", "oldest due job", "gone", "they asked us to slow down", "alive"):
        assert word in text


def test_failed_is_shown_as_retrying(app: Effects, run: Run) -> None:
    live(app, Retry("not now", code="busy"), key="c")
    header = run("status").out.splitlines()[0].split()
    assert header == ["type", "queued", "running", "retrying", "succeeded", "dead", "cancelled"]
    listed = run("jobs", "list", "--status", "retrying")
    assert " retrying " in listed.out
    assert " failed " not in listed.out
    assert [job["status"] for job in run("jobs", "list", "--status", "retrying", "--json").json] == ["retrying"]
    refused = run("jobs", "list", "--status", "failed")
    assert "'failed' is what the column has; the status is 'retrying'" in refused.err


def test_a_silent_worker_is_called_silent(app: Effects, run: Run) -> None:
    ManualWorker(app, "quiet")
    run_sql(app, f"UPDATE effects_workers SET seen_at = {app.store.sql.after('-600')}")
    [worker] = run("status", "--json").json["workers"]
    assert (worker["id"], worker["alive"]) == ("quiet", False)
    assert "silent" in run("status").out


def test_status_of_nothing(run: Run) -> None:
    text = run("status").out
    assert "no jobs" in text
    assert re.search(r"oldest due job +none$", text, re.MULTILINE)
    assert "no workers running" in text


def test_a_clean_audit(app: Effects, run: Run) -> None:
    live(app, Done())
    assert run("audit").out == "clean: 16 checks, no findings\n"
    answer = run("audit", "--json")
    assert (answer.exit_code, answer.json) == (0, {"clean": True, "checks": 16, "findings": []})


def test_an_audit_with_a_finding_ends_with_1(app: Effects, run: Run) -> None:
    job_id = live(app, Done())
    run_sql(app, "UPDATE effects_job_history SET started_at = NULL")
    answer = run("audit")
    assert answer.exit_code == 1
    sentence = "Every effect that is done has an attempt that did it, or an operator marked it done."
    assert f"done_proved: {sentence} Violated by 1: {job_id}" in answer.out
    as_json = run("audit", "--json")
    assert as_json.exit_code == 1
    assert as_json.json["clean"] is False
    assert {"check", "sentence", "count", "job_ids"} == set(as_json.json["findings"][0])
