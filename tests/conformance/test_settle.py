"""Settle: each attempt's end is written once, by its owner alone, all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, text

from effects import (
    Cancelled,
    Done,
    Effects,
    Job,
    NewJob,
    Outcome,
    Pause,
    Refused,
    Retry,
    Snooze,
    Unknown,
    enqueue,
    enqueue_many,
)
from effects.model.settlement import AttemptEnd, Expired, Returned, TimedOut, Unrouted, WorkerLost
from effects.operate.tables.audit import audit
from effects.operate.tables.lookup import read_job
from effects.store.queue.applies import ApplyFailed
from effects.store.queue.settle import settle
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, all_but_late, everything, row, rows, run_sql
from tests.support.scripted import Scripted
from tests.support.threads import at_once

FACTS = ("status", "attempts", "error_code", "lost_count", "unknown_count", "queue")


class Expected(msgspec.Struct, kw_only=True):
    """Where a job stands after one attempt ended so."""

    status: str
    attempts: int = 1
    error_code: str | None = None
    lost_count: int = 0
    unknown_count: int = 0
    queue: str = "default"
    logged: str | None = None  # the outcome in the attempt log; None: no row
    verdict: str | None = None
    ledger: str = "intended"
    wait: float = 0.0


ENDINGS: list[tuple[AttemptEnd, Expected]] = [
    (Done(), Expected(status="succeeded", logged="succeeded", verdict="done", ledger="done")),
    (
        Retry("busy", code="503", after_seconds=7.0),
        Expected(status="failed", error_code="503", logged="failed", verdict="not_done", wait=7.0),
    ),
    (Snooze(30.0), Expected(status="queued", attempts=0, logged="snoozed", wait=30.0)),
    (
        Refused("no", code="550"),
        Expected(status="dead", error_code="550", logged="refused", verdict="not_done", ledger="refused"),
    ),
    (Cancelled(), Expected(status="cancelled", error_code="cancelled", logged="cancelled", ledger="abandoned")),
    (
        Unknown("no reply"),
        Expected(
            status="failed", error_code="unknown", unknown_count=1, logged="unknown", verdict="unknown",
            ledger="unknown", wait=1.0,
        ),
    ),
    (
        WorkerLost(),
        Expected(
            status="failed", error_code="lost", lost_count=1, unknown_count=1, queue="quarantine", logged="lost",
            verdict="unknown", ledger="unknown",
        ),
    ),
    (
        TimedOut(60.0),
        Expected(
            status="failed", error_code="timed_out", unknown_count=1, logged="timed_out", verdict="unknown",
            ledger="unknown", wait=1.0,
        ),
    ),
    (Returned(), Expected(status="queued", attempts=0)),
    (Expired(), Expected(status="cancelled", attempts=0, error_code="expired", ledger="abandoned")),
    (
        Unrouted(queue="slow", priority=3, group_key=None, limit_key="l"),
        Expected(status="queued", attempts=0, queue="slow"),
    ),
]  # fmt: skip


def by_name(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("ending", "expected"), ENDINGS, ids=by_name)
def test_every_ending_writes_its_own_rows(app: Effects, ending: AttemptEnd, expected: Expected) -> None:
    receipt = enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app, "w1")
    job = manual_worker.claim_one()
    settled = manual_worker.settle((job, ending))
    assert ([settlement.job.id for settlement in settled.accepted], settled.stale) == ([receipt.job_id], [])
    ended = expected.status in ("succeeded", "dead", "cancelled")
    assert len(rows(app, "jobs")) == (not ended)
    written = row(app, "job_history" if ended else "jobs")
    assert {name: written[name] for name in FACTS} == {name: getattr(expected, name) for name in FACTS}
    logged = [
        (attempt["outcome"], attempt["verdict"], attempt["worker"], attempt["attempt"])
        for attempt in rows(app, "job_attempts")
    ]
    assert logged == ([(expected.logged, expected.verdict, "w1", 1)] if expected.logged else [])
    assert row(app, "effect_ledger")["state"] == expected.ledger


@pytest.mark.parametrize(
    ("ending", "expected"),
    [(ending, expected) for ending, expected in ENDINGS if expected.wait or expected.queue != "default"],
    ids=by_name,
)  # fmt: skip
def test_a_job_that_goes_back_waits_where_and_as_long_as_it_should(
    app: Effects, ending: AttemptEnd, expected: Expected
) -> None:
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    manual_worker.settle((job, ending))
    if expected.wait:
        assert manual_worker.claim(queue=expected.queue) == []
    app.store.shift_clock(expected.wait + 1)
    again = manual_worker.claim_one(queue=expected.queue)
    assert again.lease_token > job.lease_token
    assert again.attempts == expected.attempts + 1


def test_history_keeps_the_facts_of_the_job(app: Effects) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    enqueue(
        "scripted", {"name": "x"}, key="k", limit_key="l", group_key="g", priority=2, max_attempts=4,
        expires_at=later, trace_context="00-aa", effects=app,
    )  # fmt: skip
    live = row(app, "jobs")
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    manual_worker.settle((job, Done(detail={"status": 204})))
    ended = row(app, "job_history")
    of_the_attempt = {"started_at", "worker", "verdict", "message", "detail", "result"}
    changed = {"attempts", "lease_token", "status", "finished_at", *of_the_attempt}
    assert {name: ended[name] for name in ended if name not in changed} == {
        name: live[name] for name in ended if name not in changed
    }
    assert ended["lease_token"] == job.lease_token
    assert "204" in str(row(app, "job_attempts")["detail"])


def test_the_attempt_log_has_a_row_an_attempt(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    tokens = []
    for ending in (Retry("a"), Snooze(5), Retry("b"), Done()):
        job = manual_worker.claim_one()
        tokens.append(job.lease_token)
        manual_worker.settle((job, ending))
        app.store.shift_clock(100)
    logged = [(attempt["attempt"], attempt["outcome"]) for attempt in rows(app, "job_attempts")]
    assert logged == [(1, "failed"), (2, "snoozed"), (2, "failed"), (3, "succeeded")]
    assert [attempt["lease_token"] for attempt in rows(app, "job_attempts")] == tokens == sorted(set(tokens))
    assert row(app, "job_history")["attempts"] == 3


def test_a_success_at_the_first_attempt_is_one_row(app: Effects) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app, "first")
    job = manual_worker.claim_one()
    settlement = msgspec.structs.replace(manual_worker.decide(job, Done(detail={"status": 204})), duration_seconds=2.0)
    settle(app.store, [settlement], app.ledgers)
    ended = row(app, "job_history")
    assert rows(app, "attempt_log") == []
    [attempt] = rows(app, "job_attempts")
    assert attempt == {
        **dict.fromkeys(("error_type", "error_code", "message", "stack", "error_text", "late_outcome", "late_verdict")),
        **dict.fromkeys(("late_code", "late_message", "late_at", "result")),
        "job_id": job.id, "lease_token": job.lease_token, "attempt": 1, "worker": "first", "outcome": "succeeded",
        "verdict": "done", "detail": ended["detail"], "started_at": ended["started_at"],
        "finished_at": ended["finished_at"],
    }  # fmt: skip
    with app.store.read() as connection:
        [shown] = read_job(app.store, connection, app.ledgers, job.id).attempts
    assert (shown.seconds, shown.detail) == (2.0, {"status": 204})
    assert audit(app.store, app.ledgers) == []


@pytest.mark.parametrize("earlier", [Retry("busy"), Snooze(5), Pause(5, "later"), WorkerLost()], ids=by_name)
def test_a_success_after_another_attempt_has_a_row_of_its_own(app: Effects, earlier: AttemptEnd) -> None:
    enqueue("scripted", {}, limit_key="l", effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), earlier))
    app.store.shift_clock(100)
    queue = "quarantine" if isinstance(earlier, WorkerLost) else "default"
    manual_worker.settle((manual_worker.claim_one(queue=queue), Done()))
    assert len(rows(app, "attempt_log")) == len(rows(app, "job_attempts")) == 2
    assert row(app, "job_history")["started_at"] is None
    assert audit(app.store, app.ledgers) == []


def test_a_returned_job_that_succeeds_is_still_one_row(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Returned()))
    manual_worker.settle((manual_worker.claim_one(), Done()))
    assert rows(app, "attempt_log") == []
    assert len(rows(app, "job_attempts")) == 1


def test_a_success_with_an_error_has_a_row_of_its_own(app: Effects) -> None:
    """What the handler answered was wrong in part, and its meaning was clear."""
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    decided = manual_worker.decide(manual_worker.claim_one(), Done())
    faulty = msgspec.structs.replace(decided, error_type="TypeError", stack="app.py:3 in perform")
    settle(app.store, [faulty], app.ledgers)
    assert (row(app, "attempt_log")["error_type"], row(app, "job_history")["started_at"]) == ("TypeError", None)


def test_a_batch_of_all_kinds_of_ends_writes_each_attempt_once(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(4)], effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim()
    ends: list[Outcome] = [Done(), Refused("no"), Done(), Cancelled("no")]
    manual_worker.settle(*zip(jobs, ends, strict=True))
    logged = {attempt["job_id"]: attempt["outcome"] for attempt in rows(app, "attempt_log")}
    assert logged == {jobs[1].id: "refused", jobs[3].id: "cancelled"}
    assert [attempt["job_id"] for attempt in rows(app, "job_attempts")] == [job.id for job in jobs]


def test_a_long_message_is_cut(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("x" * 10_000)))
    assert row(app, "job_attempts")["message"] == "x" * 4096


# -- the fence -----------------------------------------------------------------------------------------

LATE: list[AttemptEnd] = [ending for ending, _ in ENDINGS if not isinstance(ending, WorkerLost)]


@pytest.mark.parametrize("ending", LATE, ids=by_name)
@pytest.mark.parametrize("meanwhile", ["rescued", "claimed again", "ended"])
def test_a_stale_token_changes_nothing(app: Effects, ending: AttemptEnd, meanwhile: str) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    zombie, rescuer = ManualWorker(app, "zombie"), ManualWorker(app, "rescuer")
    job = zombie.claim_one()
    run_sql(app, "DELETE FROM effects_workers WHERE id = 'zombie'")
    assert [settlement.job.id for settlement in rescuer.rescue().accepted] == [job.id]
    if meanwhile != "rescued":
        again = rescuer.claim_one(queue="quarantine")
        if meanwhile == "ended":
            rescuer.settle((again, Done()))
    before = all_but_late(app)
    late = zombie.settle((job, ending))
    assert (late.accepted, [settlement.job.id for settlement in late.stale]) == ([], [job.id])
    assert all_but_late(app) == before


def test_a_batch_keeps_its_good_rows_beside_a_stale_one(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(5)], effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim()
    jobs = jobs if len(jobs) == 5 else jobs + manual_worker.claim()
    manual_worker.settle((jobs[2], Returned()))
    settled = manual_worker.settle(*((job, Done()) for job in jobs))
    assert [settlement.job.id for settlement in settled.stale] == [jobs[2].id]
    assert len(settled.accepted) == len(rows(app, "job_history")) == 4


@pytest.mark.parametrize("ending", [Done(), Retry("x"), Refused("x"), Unknown("x"), Snooze(5)], ids=by_name)
def test_repeating_a_settle_whose_answer_was_lost_is_accepted_and_changes_nothing(
    app: Effects, ending: Outcome
) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app)
    settlement = manual_worker.decide(manual_worker.claim_one(), ending)
    settle(app.store, [settlement], app.ledgers)
    before = everything(app)
    repeated = settle(app.store, [settlement], app.ledgers)
    assert (len(repeated.accepted), len(repeated.stale)) == (1, 0)
    assert everything(app) == before


def test_two_workers_settle_each_of_many_jobs_exactly_once(app: Effects, app_factory: AppFactory) -> None:
    count = 600
    enqueue_many([NewJob(job_type="scripted", payload={}, key=f"k{n}") for n in range(count)], effects=app)
    manual_workers = [ManualWorker(app_factory(), f"w{n}") for n in range(2)]
    accepted: list[int] = []

    def work(number: int) -> None:
        manual_worker = manual_workers[number]
        while jobs := manual_worker.claim(64):
            settled = manual_worker.settle(*((job, Done()) for job in jobs))
            accepted.extend(settlement.job.id for settlement in settled.accepted)

    at_once(2, work)
    assert len(accepted) == len(set(accepted)) == count
    assert len(rows(app, "job_history", "status = 'succeeded'")) == count
    assert len(rows(app, "job_attempts")) == len(rows(app, "effect_ledger", "state = 'done'")) == count
    assert rows(app, "jobs") == []


@pytest.mark.parametrize("before", ["intended", "unknown"])
def test_a_release_that_the_attempt_never_heard_of_is_taken_back_with_its_job(app: Effects, before: str) -> None:
    """The worker stopped while the answer to the release was on its way: no effect is under way."""
    enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    if before == "unknown":
        manual_worker.settle((job, Unknown("no reply", after_seconds=0.0)))
        app.store.shift_clock(60)
        job = manual_worker.claim_one()
    manual_worker.release(job)
    assert row(app, "effect_ledger")["state"] == ("released" if before == "intended" else "unknown")
    manual_worker.settle((job, Returned(unheard=True)))
    assert row(app, "jobs")["status"] == "queued"
    assert row(app, "effect_ledger")["state"] == before
    assert audit(app.store, app.ledgers) == []


# -- cancel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "status", "ledger"),
    [
        (Retry("busy"), "cancelled", "abandoned"),
        (Snooze(5), "cancelled", "abandoned"),
        (Returned(), "cancelled", "abandoned"),
        (Unknown("no reply"), "cancelled", "unknown"),
        (WorkerLost(), "cancelled", "unknown"),
        (Done(), "succeeded", "done"),
        (Refused("no"), "dead", "refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else by_name(value),
)
def test_a_cancel_while_it_runs_ends_a_job_that_would_go_back(
    app: Effects, ending: AttemptEnd, status: str, ledger: str
) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    run_sql(app, "UPDATE effects_jobs SET cancel_requested = true")
    assert manual_worker.heartbeat() == (True, {job.id})
    settled = manual_worker.settle((job, ending))
    assert len(settled.accepted) == 1
    assert rows(app, "jobs") == []
    assert row(app, "job_history")["status"] == status
    assert row(app, "effect_ledger")["state"] == ledger


# -- apply ---------------------------------------------------------------------------------------------


def write_mark(connection: Connection) -> None:
    connection.execute(text("INSERT INTO effects_job_groups (group_key) VALUES ('applied')"))


def fail(connection: Connection) -> None:
    write_mark(connection)
    raise ZeroDivisionError


def test_apply_commits_with_the_outcome(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Done(apply=write_mark)))
    assert len(rows(app, "job_groups")) == len(rows(app, "job_history")) == 1


def test_apply_that_fails_takes_the_outcome_with_it(app: Effects) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    before = everything(app)
    with pytest.raises(ApplyFailed) as caught:
        manual_worker.settle((job, Done(apply=fail)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert everything(app) == before
    assert rows(app, "job_groups") == []
    assert len(manual_worker.settle((job, Done())).accepted) == 1


def test_apply_of_a_stale_attempt_is_not_run(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    manual_worker.settle((job, Returned()))
    assert manual_worker.settle((job, Done(apply=fail))).accepted == []
    assert rows(app, "job_groups") == []


def test_apply_may_enqueue_a_follow_up(app: Effects) -> None:
    def follow(connection: Connection) -> None:
        enqueue("scripted", {"name": "second"}, key="k2", session=connection, effects=app)

    enqueue("scripted", {"name": "first"}, key="k1", effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Done(apply=follow)))
    assert row(app, "jobs")["idempotency_key"] == "k2"


# -- policies over a whole life --------------------------------------------------------------------------


def attempts_until_end(
    manual_worker: ManualWorker, answer: Callable[[Job], AttemptEnd], *, released: bool = False
) -> dict[str, Any]:
    for _ in range(50):
        claimed = manual_worker.claim() or manual_worker.claim(queue="quarantine")
        if claimed:
            manual_worker.settle((claimed[0], answer(claimed[0])), released=released)
        ended = rows(manual_worker.app, "job_history")
        if ended:
            return ended[0]
        manual_worker.app.store.shift_clock(3600)
    raise AssertionError("it never ended")


def test_attempts_run_out(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    ended = attempts_until_end(ManualWorker(app), lambda job: Retry("busy"))
    assert (ended["status"], ended["attempts"], ended["error_code"]) == ("dead", 5, "failed")
    assert "gave up after 5 attempts" in ended["last_error"]


def test_the_jobs_own_max_attempts_comes_first(app: Effects) -> None:
    enqueue("scripted", {}, max_attempts=2, effects=app)
    ended = attempts_until_end(ManualWorker(app), lambda job: Retry("busy"))
    assert (ended["status"], ended["attempts"]) == ("dead", 2)


@pytest.mark.parametrize(("policy", "attempts", "code"), [("repeat_once", 2, "unknown"), ("hold", 1, "unknown")])
def test_unknowns_go_by_their_policy(app_factory: AppFactory, policy: Any, attempts: int, code: str) -> None:
    app = app_factory(job_types=[Scripted(on_unknown=policy)])
    enqueue("scripted", {}, key="k", effects=app)
    ended = attempts_until_end(ManualWorker(app), lambda job: Unknown("no reply"), released=True)
    assert (ended["status"], ended["attempts"], ended["error_code"]) == ("dead", attempts, code)
    assert row(app, "effect_ledger")["state"] == "unknown"
