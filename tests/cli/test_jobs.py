"""`effects jobs`: what it lists and shows, and that its actions act."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effects import Done, Effects, Refused, Retry, Unknown, enqueue
from effects.kit.exit_codes import ExitCode
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, row, rows

NAMED_QUEUES = ("mails",)


def put(app: Effects, key: str, **options: object) -> int:
    return enqueue("scripted", {"name": f"secret of {key}"}, key=key, effects=app, **options).job_id  # type: ignore[arg-type]


def test_the_list_is_newest_first_live_and_ended_alike(app: Effects, run: Run) -> None:
    manual_worker = ManualWorker(app)
    first = put(app, "a")
    manual_worker.settle((manual_worker.claim_one(), Done()))
    second = put(app, "b", queue="mails")
    listed = run("jobs", "list", "--json").json
    assert [(job["id"], job["status"]) for job in listed] == [(second, "queued"), (first, "succeeded")]
    lines = run("jobs", "list").out.splitlines()
    assert lines[0].split()[:3] == ["id", "type", "status"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [str(second), "scripted", "queued"],
        [str(first), "scripted", "succeeded"],
    ]


def test_the_list_is_filtered(app: Effects, run: Run) -> None:
    manual_worker = ManualWorker(app)
    dead = put(app, "dead")
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    mail = put(app, "mail", queue="mails")
    plain = put(app, "plain")

    def ids(*options: object) -> list[int]:
        return [job["id"] for job in run("jobs", "list", "--json", *options).json]

    assert ids("--status", "dead") == [dead]
    assert ids("--status", "queued") == [plain, mail]
    assert ids("--queue", "mails") == [mail]
    assert ids("--key", "plain") == [plain]
    assert ids("--type", "webhook.deliver") == []
    assert ids("--limit", 2) == [plain, mail]
    assert run("jobs", "list", "--type", "webhook.deliver").out == "no jobs\n"
    assert ids("--text", "N", "--code", "refused") == ids("--word", "no") == ids("--worker", "manual") == [dead]
    assert ids("--group", "none") == ids("--limit-key", "none") == ids("--tenant", "none") == []
    assert "is not a word" in run("jobs", "list", "--word", "a b").err


def test_a_page_shows_how_to_list_the_next_one(app: Effects, run: Run) -> None:
    first, second = put(app, "a"), put(app, "b")
    page = run("jobs", "list", "--json", "--limit", 1)
    assert [job["id"] for job in page.json] == [second]
    assert page.err == f"There are more: --before {second} shows older ones.\n"
    last = run("jobs", "list", "--json", "--before", second)
    assert ([job["id"] for job in last.json], last.err) == ([first], "")


def test_a_job_is_shown_with_its_attempts_and_without_its_payload(app: Effects, run: Run) -> None:
    manual_worker = ManualWorker(app)
    job_id = put(app, "k")
    manual_worker.settle((manual_worker.claim_one(), Retry("not now", code="busy", detail={"status": 503})))
    run("jobs", "run-now", job_id, "--reason", "they called")

    shown = run("jobs", "show", job_id, "--json")
    assert shown.json["facts"]["jobs"][0]["status"] == "retrying"
    assert shown.json["facts"]["jobs"][0]["run_at"].endswith("Z")
    assert (shown.json["state"], shown.json["facts"]["ledger_state"]) == ("waiting", "intended")
    assert [(attempt["outcome"], attempt["detail"]) for attempt in shown.json["facts"]["attempts"]] == [
        ("failed", {"status": 503})
    ]
    assert [(action["action"], action["reason"]) for action in shown.json["facts"]["actions"]] == [
        ("run_now", "they called")
    ]
    text = run("jobs", "show", job_id).out
    assert "retrying" in text
    assert "HTTP 503, not now" in text
    assert "they called" in text
    assert "secret" not in shown.out + text


def test_cancel(app: Effects, run: Run) -> None:
    job_id = put(app, "k")
    assert run("jobs", "cancel", job_id).out == f"job {job_id} cancelled\n"
    assert row(app, "job_history")["status"] == "cancelled"
    assert str(row(app, "job_actions")["actor"]).startswith("cli:")
    assert f"job {job_id} is cancelled: only a live job" in error_line(run("jobs", "cancel", job_id), ExitCode.FINDINGS)


def test_cancel_of_a_running_job_asks_it_to_stop(app: Effects, run: Run) -> None:
    job_id = put(app, "k")
    ManualWorker(app).claim_one()
    assert run("jobs", "cancel", job_id, "--json").json == {
        "job_id": job_id,
        "result": "cancel_requested",
        "unresolved": False,
    }
    assert row(app, "jobs")["cancel_requested"]


def test_a_key_takes_the_place_of_the_id(app: Effects, run: Run) -> None:
    job_id = put(app, "k", run_at=datetime.now(UTC) + timedelta(days=1))
    assert f'"id": {job_id}' in run("jobs", "show", "--key", "k", "--json").out
    assert run("jobs", "run-now", "--key", "k", "--type", "scripted", "--json").json["job_id"] == job_id
    document = run("jobs", "cancel", "--key", "k", "--reason", "paid", "--json").json
    assert document == {
        "job_id": job_id,
        "result": "cancelled",
        "prevented": True,
        "state": "abandoned",
        "unresolved": False,
    }
    assert "is cancelled: only a live job" in error_line(run("jobs", "cancel", "--key", "k"), ExitCode.FINDINGS)
    assert "no effect with key 'none'" in error_line(run("jobs", "cancel", "--key", "none"))
    for arguments in ([], [job_id, "--key", "k"], [job_id, "--type", "scripted"]):
        assert run("jobs", "cancel", *arguments).exit_code == ExitCode.ERROR


def test_cancel_by_key_says_that_it_came_too_late(app: Effects, run: Run) -> None:
    put(app, "k")
    ManualWorker(app).claim_one()
    assert "its effect may happen" in run("jobs", "cancel", "--key", "k").out


def test_a_cancelled_job_whose_effect_may_have_happened_names_the_decision(app: Effects, run: Run) -> None:
    """Before it was tried again it was unknown, and so it stays: the printed commands decide it."""
    job_id = put(app, "k", on_unknown="repeat")
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), Unknown("no reply", code="lost")), released=True)
    answer = run("jobs", "cancel", job_id)
    resolve = f"effects dead resolve {job_id} --as mark-done"
    assert answer.out.startswith(f"job {job_id} cancelled. Its effect may have happened")
    assert f"`{resolve}`" in answer.out
    assert f"`{resolve}`" in run("why", "k").out
    assert run(*resolve.split()[1:]).exit_code == 0
    assert "k (scripted) was done" in run("why", "k").out


def test_cancel_of_a_running_job_names_what_may_remain(app: Effects, run: Run) -> None:
    job_id = put(app, "k", on_unknown="hold")
    worker = ManualWorker(app)
    job = worker.claim_one()
    answer = run("jobs", "cancel", job_id)
    assert f"an unresolved dead letter remains: see `effects why {job_id}` then" in answer.out
    worker.settle((job, Unknown("no reply", code="lost")), released=True)
    assert f"`effects dead resolve {job_id} --as requeue`" in run("why", "k").out
    assert run("dead", "resolve", job_id, "--as", "requeue").exit_code == 0


def test_reschedule(app: Effects, run: Run) -> None:
    job_id = put(app, "k", run_at=datetime.now(UTC) + timedelta(days=1))
    moved = run("jobs", "reschedule", "--key", "k", "--at", "2026-01-01T08:00:00Z", "--reason", "they called")
    assert moved.out == f"job {job_id} is due at 2026-01-01 08:00:00+0000\n"
    assert [row(app, "job_actions")[name] for name in ("action", "reason")] == ["reschedule", "they called"]
    ManualWorker(app).claim_one()
    refused = run("jobs", "reschedule", "--key", "k", "--at", "2026-01-01")
    assert f"job {job_id} is running: only a waiting job can be rescheduled" in error_line(refused, ExitCode.FINDINGS)


@pytest.mark.slow
def test_wait_exits_by_how_it_ended(app: Effects, run: Run) -> None:
    manual_worker = ManualWorker(app)
    for key, ending, exit_code in (("a", Done(), ExitCode.DONE), ("b", Refused("no"), ExitCode.FINDINGS)):
        put(app, key)
        manual_worker.settle((manual_worker.claim_one(), ending))
        assert run("jobs", "wait", "--key", key).exit_code == exit_code
    put(app, "c")
    waited = run("jobs", "wait", "--key", "c", "--timeout", "1s")
    assert (waited.exit_code, "still queued" in waited.out) == (ExitCode.TIME_RAN_OUT, True)


def test_run_now(app: Effects, run: Run) -> None:
    job_id = put(app, "k", run_at=datetime.now(UTC) + timedelta(days=1))
    assert run("jobs", "run-now", job_id, "--json").json["result"] == "due"
    assert ManualWorker(app).claim_one().id == job_id
    assert "only a waiting job can be run now" in error_line(run("jobs", "run-now", job_id), ExitCode.FINDINGS)


def test_requeue(app: Effects, run: Run) -> None:
    manual_worker = ManualWorker(app)
    job_id = put(app, "k")
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    successor = run("jobs", "requeue", job_id, "--json").json
    assert (successor["requeued_from"], successor["result"]) == (job_id, "queued")
    assert f"job {successor['job_id']} is queued" in error_line(run("jobs", "requeue", job_id), ExitCode.FINDINGS)
    manual_worker.settle((manual_worker.claim_one(), Done()))
    assert "only --even-if-done" in error_line(run("jobs", "requeue", successor["job_id"]), ExitCode.FINDINGS)
    assert run("jobs", "requeue", successor["job_id"], "--even-if-done").exit_code == 0
    assert [action["action"] for action in rows(app, "job_actions")] == ["requeue", "requeue", "even_if_done"]


def test_a_job_that_is_not_there(run: Run) -> None:
    for command in ("show", "cancel", "requeue", "run-now"):
        assert "job 4711 not found" in error_line(run("jobs", command, 4711))


@pytest.mark.parametrize("command", [("jobs", "list"), ("log",), ("webhooks", "deliveries")], ids=" ".join)
def test_the_next_page_begins_at_an_id_that_a_database_can_hold(command: tuple[str, ...], run: Run) -> None:
    answer = run(*command, "--before", 2**63)
    assert answer.exit_code == ExitCode.ERROR
    assert "'--before': 9223372036854775808 is not in the range" in error_line(answer)
