"""`effects jobs`: what it lists and shows, and that its actions act."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from effects import Done, Effects, Refused, Retry, enqueue
from tests.cli.conftest import Run
from tests.cli.test_main import error_line
from tests.support.hands import Hand, row, rows


def put(app: Effects, key: str, **options: object) -> int:
    return enqueue("scripted", {"name": f"secret of {key}"}, key=key, effects=app, **options).job_id  # type: ignore[arg-type]


def test_the_list_is_newest_first_live_and_ended_alike(app: Effects, run: Run) -> None:
    hand = Hand(app)
    first = put(app, "a")
    hand.settle((hand.claim_one(), Done()))
    second = put(app, "b", queue="mails")
    found = run("jobs", "list", "--json").json
    assert [(one["id"], one["status"]) for one in found] == [(second, "queued"), (first, "succeeded")]
    lines = run("jobs", "list").out.splitlines()
    assert lines[0].split()[:3] == ["id", "type", "status"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [str(second), "scripted", "queued"],
        [str(first), "scripted", "succeeded"],
    ]


def test_the_list_is_filtered(app: Effects, run: Run) -> None:
    hand = Hand(app)
    dead = put(app, "dead")
    hand.settle((hand.claim_one(), Refused("no")))
    mail = put(app, "mail", queue="mails")
    plain = put(app, "plain")

    def ids(*options: object) -> list[int]:
        return [one["id"] for one in run("jobs", "list", "--json", *options).json]

    assert ids("--status", "dead") == [dead]
    assert ids("--status", "queued") == [plain, mail]
    assert ids("--queue", "mails") == [mail]
    assert ids("--key", "plain") == [plain]
    assert ids("--type", "webhook.deliver") == []
    assert ids("--limit", 2) == [plain, mail]
    assert run("jobs", "list", "--type", "webhook.deliver").out == "no jobs\n"


def test_a_job_is_shown_with_its_attempts_and_without_its_payload(app: Effects, run: Run) -> None:
    hand = Hand(app)
    job_id = put(app, "k")
    hand.settle((hand.claim_one(), Retry("not now", code="busy", detail={"status": 503})))
    run("jobs", "run-now", job_id, "--reason", "they called")

    shown = run("jobs", "show", job_id, "--json")
    assert shown.json["job"]["status"] == "failed"
    assert shown.json["job"]["run_at"].endswith("Z")
    assert shown.json["state"] == "intended"
    assert [(one["outcome"], one["detail"]) for one in shown.json["attempts"]] == [("failed", {"status": 503})]
    assert [(one["action"], one["reason"]) for one in shown.json["actions"]] == [("run_now", "they called")]
    text = run("jobs", "show", job_id).out
    assert "HTTP 503, not now" in text
    assert "they called" in text
    assert "secret" not in shown.out + text


def test_cancel(app: Effects, run: Run) -> None:
    job_id = put(app, "k")
    assert run("jobs", "cancel", job_id).out == f"job {job_id} is cancelled\n"
    assert row(app, "job_history")["status"] == "cancelled"
    assert str(row(app, "job_actions")["actor"]).startswith("cli:")
    assert f"job {job_id} is cancelled: only a live job" in error_line(run("jobs", "cancel", job_id))


def test_cancel_of_a_running_job_asks_it_to_stop(app: Effects, run: Run) -> None:
    job_id = put(app, "k")
    Hand(app).claim_one()
    assert run("jobs", "cancel", job_id, "--json").json == {"job_id": job_id, "result": "cancel_requested"}
    assert row(app, "jobs")["cancel_requested"]


def test_run_now(app: Effects, run: Run) -> None:
    job_id = put(app, "k", run_at=datetime.now(UTC) + timedelta(days=1))
    assert run("jobs", "run-now", job_id, "--json").json["result"] == "due"
    assert Hand(app).claim_one().id == job_id
    assert "only a waiting job can be run now" in error_line(run("jobs", "run-now", job_id))


def test_requeue(app: Effects, run: Run) -> None:
    hand = Hand(app)
    job_id = put(app, "k")
    hand.settle((hand.claim_one(), Refused("no")))
    made = run("jobs", "requeue", job_id, "--json").json
    assert (made["requeued_from"], made["result"]) == (job_id, "queued")
    assert f"job {made['job_id']} is queued" in error_line(run("jobs", "requeue", job_id))
    hand.settle((hand.claim_one(), Done()))
    assert "only --again" in error_line(run("jobs", "requeue", made["job_id"]))
    assert run("jobs", "requeue", made["job_id"], "--again").exit_code == 0
    assert [one["action"] for one in rows(app, "job_actions")] == ["requeue", "requeue", "send_again"]


def test_a_job_that_is_not_there(run: Run) -> None:
    for command in ("show", "cancel", "requeue", "run-now"):
        assert "there is no job 4711" in error_line(run("jobs", command, 4711))
