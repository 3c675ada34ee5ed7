"""The audit finds nothing in what the store itself writes, and every violation that is planted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sqlalchemy import event, text

from effects import Cancelled, Done, Effects, NewJob, Refused, Retry, Snooze, Unknown, enqueue_many
from effects.model.ledger import fold
from effects.model.settlement import Expired, Returned, TimedOut, WorkerLost
from effects.operate.tables.audit import CHECKS, IDS_MAX, audit
from effects.store.effects.requeue import requeue
from effects.store.queue.cancellation import cancel
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.scripted import Scripted

MOVES: dict[str, Any] = {
    "done": Done(),
    "retry": Retry("not now"),
    "refuse": Refused("no"),
    "unknown": Unknown("no reply"),
    "cancel": Cancelled(),
    "snooze": Snooze(0),
    "lost": WorkerLost(),
    "timed out": TimedOut(1),
    "given back": Returned(),
    "expired": Expired(),
}


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(
        job_types=[Scripted(), Scripted("once", on_unknown="repeat_once"), Scripted("held", on_unknown="hold")]
    )


def enqueue_keys(app: Effects, keys: list[str], job_type: str = "scripted") -> list[int]:
    jobs = [NewJob(job_type=job_type, payload={}, key=key) for key in keys]
    return [receipt.job_id for receipt in enqueue_many(jobs, effects=app)]


@pytest.mark.slow
@pytest.mark.parametrize("job_type", ["scripted", "once", "held"])
@pytest.mark.parametrize("release", [False, True])
def test_every_short_life_of_a_job_is_clean_and_folds_to_its_state(app: Effects, job_type: str, release: bool) -> None:
    """All lives of up to two attempts, each of the ten endings, then requeued and cancelled."""
    lives = {"-".join(life): life for life in itertools.product(MOVES, repeat=2)}
    enqueue_keys(app, list(lives), job_type)
    manual_worker = ManualWorker(app)
    for turn in range(2):
        app.store.shift_clock(120)
        claimed = manual_worker.claim() + manual_worker.claim(queue="quarantine")
        if release:
            manual_worker.release(*claimed)
        for job in claimed:
            assert job.key is not None
            ending = MOVES[lives[job.key][turn]]
            if release and isinstance(ending, Snooze | Returned | Expired):
                ending = Retry("released, so it was tried")
            manual_worker.settle((job, ending), released=release)
        assert audit(app.store, app.ledgers) == []
    for dead in rows(app, "job_history", "status IN ('dead', 'cancelled')"):
        requeue(app.store, app.job_types, dead["id"], confirm_unknown=True, actor="test")
    assert audit(app.store, app.ledgers) == []
    for job in rows(app, "jobs"):
        cancel(app.store, app.ledgers, job["id"], actor="test")
    assert audit(app.store, app.ledgers) == []
    assert rows(app, "jobs") == []
    assert_folded(app)


def assert_folded(app: Effects) -> None:
    """The pure function says what the audit's SQL says, for effects whose newest job was cancelled at the end."""
    verdicts: dict[str, list[Any]] = {}
    keys = {job["id"]: job["idempotency_key"] for job in rows(app, "job_history")}
    for attempt in rows(app, "job_attempts"):
        verdicts.setdefault(keys[attempt["job_id"]], []).append(attempt["verdict"])
    for effect in rows(app, "effect_ledger"):
        newest = row(app, "job_history", "id = :id", id=effect["job_id"])
        history = verdicts.get(effect["key"], [])
        if newest["status"] == "cancelled":
            history = [*history, None]
        assert effect["state"] == fold(history, ended=True), effect["key"]


@pytest.fixture
def busy(app: Effects) -> dict[str, int]:
    """A job of every kind: queued, running, failed, succeeded, dead, requeued, without a key."""
    manual_worker = ManualWorker(app)
    done, dead = enqueue_keys(app, ["done", "dead"])
    for job in manual_worker.claim():
        manual_worker.settle((job, Done() if job.id == done else Refused("no")))
    failed = enqueue_keys(app, ["failed"])[0]
    manual_worker.settle((manual_worker.claim_one(), Retry("not now")))
    running = enqueue_keys(app, ["running"])[0]
    manual_worker.claim_one()
    queued = enqueue_keys(app, ["queued"])[0]
    requeued = requeue(app.store, app.job_types, dead, actor="test").job_id
    keyless = enqueue_many([NewJob(job_type="scripted", payload={})], effects=app)[0].job_id
    assert audit(app.store, app.ledgers) == []
    return {"done": done, "dead": dead, "failed": failed, "running": running, "queued": queued,
            "requeued": requeued, "keyless": keyless}  # fmt: skip


PLANTED = [
    ("one_place", "queued", "INSERT INTO effects_job_history (id, job_type, status) VALUES (:id, 'x', 'cancelled')"),
    ("running_leased", "running", "UPDATE effects_jobs SET locked_by = NULL WHERE id = :id"),
    ("running_leased", "running", "UPDATE effects_jobs SET locked_until = NULL WHERE id = :id"),
    ("running_leased", "running", "UPDATE effects_jobs SET lease_token = 0 WHERE id = :id"),
    ("waiting_unleased", "queued", "UPDATE effects_jobs SET released_at = created_at WHERE id = :id"),
    ("waiting_unleased", "failed", "UPDATE effects_jobs SET locked_until = created_at WHERE id = :id"),
    ("end_recorded", "done", "UPDATE effects_job_history SET started_at = NULL WHERE id = :id"),
    ("end_recorded", "dead", "UPDATE effects_job_history SET lease_token = 7 WHERE id = :id"),
    ("done_succeeded", "done", "UPDATE effects_job_history SET status = 'dead' WHERE id = :id"),
    ("done_succeeded", "done", "UPDATE effects_job_history SET verdict = 'not_done' WHERE id = :id"),
    ("done_succeeded", "failed", "UPDATE effects_attempt_log SET verdict = 'done' WHERE job_id = :id"),
    ("attempts_logged", "failed", "DELETE FROM effects_attempt_log WHERE job_id = :id"),
    ("end_recorded", "dead", "DELETE FROM effects_attempt_log WHERE job_id = :id"),
    ("attempts_logged", "queued", "UPDATE effects_jobs SET attempts = 1, lease_token = 1 WHERE id = :id"),
    ("attempts_logged", "dead", "UPDATE effects_job_history SET attempts = 2, lease_token = 2 WHERE id = :id"),
    (
        "attempts_fenced",
        "failed",
        f"UPDATE effects_attempt_log SET lease_token = lease_token + {2**50} WHERE job_id = :id",  # more than any step
    ),
    ("attempts_fenced", "queued", "UPDATE effects_jobs SET attempts = 1 WHERE id = :id"),
    ("attempts_fenced", "failed", "DELETE FROM effects_jobs WHERE id = :id"),
    ("requeued_ended", "requeued", "UPDATE effects_jobs SET requeued_from = 4711 WHERE id = :id"),
    ("intent_kept", "queued", "DELETE FROM effects_jobs WHERE id = :id"),
    ("intent_kept", "done", "DELETE FROM effects_job_history WHERE id = :id"),
    ("intent_written", "queued", "DELETE FROM effects_effect_ledger WHERE job_id = :id"),
    ("intent_written", "keyless", "UPDATE effects_jobs SET idempotency_key = 'new' WHERE id = :id"),
    ("done_proved", "queued", "UPDATE effects_effect_ledger SET state = 'done' WHERE job_id = :id"),
    ("done_proved", "done", "UPDATE effects_job_history SET verdict = NULL WHERE id = :id"),
    ("state_folded", "queued", "UPDATE effects_effect_ledger SET state = 'refused' WHERE job_id = :id"),
    ("state_folded", "running", "UPDATE effects_effect_ledger SET state = 'released' WHERE job_id = :id"),
    ("state_folded", "done", "UPDATE effects_effect_ledger SET state = 'unknown' WHERE job_id = :id"),
    ("unresolved_kept", "done", "INSERT INTO effects_unresolved (job_id, job_type, queue) VALUES (:id, 'x', 'q')"),
    ("unresolved_kept", "dead", "DELETE FROM effects_job_actions WHERE job_id = :id"),
    ("failovers_compared", "queued",
        "INSERT INTO effects_failovers (id, sign, noticed_by, workers) VALUES (:id, 'name', 'w', 1)"),
    ("effects_known", "queued",
        "INSERT INTO effects_evidence (job_id, lease_token, job_type, worker, fate, failover_id)"
        " VALUES (:id, 1, 'x', 'w', 'orphan', 1)"),
    ("state_folded", "requeued", "UPDATE effects_effect_ledger SET state = 'abandoned' WHERE job_id = :id"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "which", "planted"), PLANTED)
def test_a_planted_violation_is_found(app: Effects, busy: dict[str, int], check: str, which: str, planted: str) -> None:
    run_sql(app, planted, id=busy[which])
    findings = {finding.check: finding for finding in audit(app.store, app.ledgers)}
    assert check in findings
    assert (findings[check].job_ids, findings[check].count) == ([busy[which]], 1)
    assert findings[check].sentence == CHECKS[check]


def test_two_running_jobs_of_one_group_are_found(app: Effects, busy: dict[str, int]) -> None:
    """The unique index forbids it; the audit would tell if the index were lost."""
    del busy
    run_sql(app, "DROP INDEX ux_effects_jobs_group_running")
    run_sql(app, "UPDATE effects_jobs SET status = 'running', group_key = 'g'")
    findings = {finding.check: finding for finding in audit(app.store, app.ledgers)}
    assert findings["group_order"].job_ids == [job["id"] for job in rows(app, "jobs")]


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, _, _ in PLANTED} | {"group_order"} == set(CHECKS)


def test_a_finding_names_at_most_twenty_jobs_and_counts_them_all(app: Effects) -> None:
    ids = enqueue_keys(app, [f"k{number}" for number in range(30)])
    run_sql(app, "UPDATE effects_effect_ledger SET state = 'done'")
    [finding] = audit(app.store, app.ledgers)
    assert (finding.check, finding.count, finding.job_ids) == ("done_proved", 30, ids[:IDS_MAX])


def test_the_audit_sends_as_many_statements_for_many_jobs_as_for_none(app: Effects) -> None:
    for_none = count_statements(app)
    enqueue_keys(app, [f"k{number}" for number in range(100)])
    assert count_statements(app) == for_none


def count_statements(app: Effects) -> int:
    statements: list[str] = []

    def listen(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    for engine in app.store.engines:
        event.listen(engine, "before_cursor_execute", listen)
    try:
        assert audit(app.store, app.ledgers) == []
    finally:
        for engine in app.store.engines:
            event.remove(engine, "before_cursor_execute", listen)
    return len(
        [statement for statement in statements if "effects_" in statement]
    )  # a new connection asks things of its own


def test_a_job_of_a_plain_insert_is_no_finding(app: Effects) -> None:
    with app.store.begin() as connection:
        connection.execute(text("INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{}')"))
        connection.execute(
            text("INSERT INTO effects_jobs (job_type, payload, idempotency_key) VALUES ('scripted', '{}', 'k')")
        )
    assert audit(app.store, app.ledgers) == []
