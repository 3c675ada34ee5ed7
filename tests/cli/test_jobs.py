"""`effects jobs`: what it lists and shows, and that its actions act."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effects import Done, Effects, Refused, Retry, enqueue
from effects.kit.exit_codes import ExitCode
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, row

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
    run("retry", job_id, "--reason", "they called")

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


def test_a_key_takes_the_place_of_the_id(app: Effects, run: Run) -> None:
    job_id = put(app, "k", run_at=datetime.now(UTC) + timedelta(days=1))
    assert f'"id": {job_id}' in run("jobs", "show", "--key", "k", "--json").out
    for arguments in ([], [job_id, "--key", "k"], [job_id, "--type", "scripted"]):
        assert run("jobs", "show", *arguments).exit_code == ExitCode.ERROR


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


def test_a_job_that_is_not_there(run: Run) -> None:
    assert "job 4711 not found" in error_line(run("jobs", "show", 4711))


@pytest.mark.parametrize("command", [("jobs", "list"), ("log",), ("webhooks", "deliveries")], ids=" ".join)
def test_the_next_page_begins_at_an_id_that_a_database_can_hold(command: tuple[str, ...], run: Run) -> None:
    answer = run(*command, "--before", 2**63)
    assert answer.exit_code == ExitCode.ERROR
    assert "'--before': 9223372036854775808 is not in the range" in error_line(answer)
