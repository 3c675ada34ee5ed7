"""Heartbeat, release and rescue: what is known of an attempt whose worker fell silent."""

from __future__ import annotations

import datetime as dt

import pytest
from sqlalchemy import text

from effects import Done, Effects, Job, NewJob, Refused, Retry, Snooze, enqueue, enqueue_many
from effects.kit.moments import moment
from effects.model.job import POISON_LOSSES
from effects.model.settlement import Returned
from effects.operate.tables.audit import audit
from effects.operate.tables.database_checks import examine_work
from effects.store.queue.liveness import RESCUE_BATCH, UNREGISTERED_SECONDS
from effects.store.workers import deregister
from tests.conftest import AppFactory
from tests.support.manual_workers import LEASE_SECONDS, ManualWorker, all_but_late, everything, row, rows, run_sql
from tests.support.scripted import Scripted

NAMED_QUEUES = ("slow",)


def silence(app: Effects, *others: ManualWorker) -> None:
    """Time passes in which only the others say that they live."""
    app.store.shift_clock(LEASE_SECONDS + 1)
    for manual_worker in others:
        assert manual_worker.heartbeat()[0]


def lost_job(app: Effects, *, release: bool = False) -> Job:
    """A job with a key whose worker fell silent while it ran."""
    enqueue("scripted", {}, key="k", effects=app)
    gone = ManualWorker(app, "gone")
    job = gone.claim_one()
    if release:
        assert gone.release(job) == {job.attempt_id}
    return job


# -- heartbeat -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_heartbeat_keeps_the_lease(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(time_limit_seconds=3600.0)])
    enqueue("scripted", {}, effects=app)
    manual_worker, rescuer = ManualWorker(app, "alive"), ManualWorker(app, "rescuer")
    job = manual_worker.claim_one()
    for _ in range(3):
        silence(app, manual_worker, rescuer)
        assert rescuer.rescue().accepted == []
    assert [settlement.job.id for settlement in manual_worker.settle((job, Done())).accepted] == [job.id]


def test_a_worker_declared_dead_is_told_by_its_heartbeat(app: Effects) -> None:
    lost_job(app)
    gone = ManualWorker(app, "gone too")
    rescuer = ManualWorker(app, "rescuer")
    silence(app, rescuer)
    rescuer.rescue()
    assert [worker["id"] for worker in rows(app, "workers")] == ["rescuer"]
    assert gone.heartbeat() == (False, set())


def test_a_stopping_worker_with_running_jobs_keeps_its_row(app: Effects) -> None:
    job = lost_job(app)
    deregister(app.store, "gone")
    assert len(rows(app, "workers")) == 1
    ManualWorker(app, "other").settle((job, Done()))
    deregister(app.store, "gone")
    assert [worker["id"] for worker in rows(app, "workers")] == ["other"]


def test_a_heartbeat_touches_only_the_workers_row(app: Effects) -> None:
    lost_job(app)
    before = everything(app)
    ManualWorker(app, "w2").heartbeat()
    assert everything(app) == before


# -- release -------------------------------------------------------------------------------------------


def test_release_marks_the_job_and_its_effect(app: Effects) -> None:
    lost_job(app, release=True)
    assert row(app, "jobs")["released_at"] is not None
    entry = row(app, "effect_ledger")
    assert entry["state"] == "released"
    assert entry["released_at"] is not None


@pytest.mark.parametrize("meanwhile", ["given back", "rescued", "claimed again", "ended"])
def test_an_attempt_that_lost_its_job_is_not_released(app: Effects, meanwhile: str) -> None:
    job = lost_job(app)
    rescuer = ManualWorker(app, "rescuer")
    if meanwhile == "given back":
        rescuer.settle((job, Returned()))
    else:
        silence(app, rescuer)
        rescuer.rescue()
    if meanwhile in ("claimed again", "ended"):
        again = rescuer.claim_one(queue="quarantine")
        if meanwhile == "ended":
            rescuer.settle((again, Done()))
    before = everything(app)
    assert rescuer.release(job) == set()
    assert everything(app) == before


def test_a_batch_of_releases_marks_the_owned_ones(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}, key=f"k{n}") for n in range(4)], effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim(4)
    manual_worker.settle((jobs[1], Returned()))
    assert manual_worker.release(*reversed(jobs)) == {job.attempt_id for job in jobs} - {jobs[1].attempt_id}
    states = {entry["job_id"]: entry["state"] for entry in rows(app, "effect_ledger")}
    assert states == {job.id: "released" if job is not jobs[1] else "intended" for job in jobs}


@pytest.mark.parametrize("key", [None, "k"])
def test_of_two_attempts_of_a_job_in_a_batch_only_the_newer_is_released(app: Effects, key: str | None) -> None:
    """The older lost its lease, and the same worker claimed the job again."""
    enqueue("scripted", {}, key=key, effects=app)
    worker = ManualWorker(app)
    older = worker.claim_one()
    worker.settle((older, Returned()))
    newer = worker.claim_one()
    assert worker.release(older, newer) == {newer.attempt_id}
    assert worker.release(newer, older) == {newer.attempt_id}


def test_a_release_belongs_to_its_attempt_alone(app: Effects) -> None:
    job = lost_job(app, release=True)
    manual_worker = ManualWorker(app)
    manual_worker.settle((job, Retry("busy")), released=True)
    assert row(app, "jobs")["released_at"] is None
    assert row(app, "effect_ledger")["state"] == "intended"
    app.store.shift_clock(100)
    manual_worker.claim_one()
    assert row(app, "jobs")["released_at"] is None


def test_a_done_effect_stays_done_whatever_is_released_later(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    job = lost_job(app)
    run_sql(app, "UPDATE effects_effect_ledger SET state = 'done'")
    manual_worker.release(job)
    assert row(app, "effect_ledger")["state"] == "done"
    manual_worker.settle((job, Refused("no")), released=True)
    assert row(app, "effect_ledger")["state"] == "done"


# -- rescue --------------------------------------------------------------------------------------------


def test_no_job_is_rescued_within_the_lease(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(time_limit_seconds=3600.0)])
    lost_job(app)
    app.store.shift_clock(LEASE_SECONDS - 5)
    assert ManualWorker(app).rescue().accepted == []
    app.store.shift_clock(10)
    assert len(ManualWorker(app, "second").rescue().accepted) == 1


def test_a_passed_deadline_is_rescued_though_the_worker_lives(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(time_limit_seconds=20.0)])
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    app.store.shift_clock(21)
    manual_worker.heartbeat()
    [settled] = manual_worker.rescue().accepted
    assert (settled.job.id, settled.status) == (job.id, "failed")
    assert "time limit" in str(row(app, "job_attempts")["message"])


@pytest.mark.parametrize("time_limit", [20.0, 3600.0])
@pytest.mark.parametrize("end", ["again", "dead"])
def test_a_lost_attempt_is_recorded_as_it_was(app_factory: AppFactory, time_limit: float, end: str) -> None:
    """With its worker, since when it ran, and the cause: of a dead worker all deadlines pass, and none is the cause."""
    app = app_factory(job_types=[Scripted(time_limit_seconds=time_limit, on_unknown="hold")])
    lost_job(app, release=end == "dead")
    claimed_at, seen_at = row(app, "jobs")["started_at"], heard_of(app, "gone")
    rescuer = ManualWorker(app, "rescuer")
    silence(app, rescuer)
    assert len(rescuer.rescue().accepted) == 1
    attempt = row(app, "job_attempts")
    assert (attempt["started_at"], attempt["worker"]) == (claimed_at, "gone")
    assert attempt["finished_at"] > claimed_at
    assert str(attempt["message"]).startswith(f"its worker stopped answering (last heard of at {seen_at})")


def test_a_job_whose_worker_has_no_row_is_recorded_so(app: Effects) -> None:
    lost_job(app)
    run_sql(app, "DELETE FROM effects_workers")
    ManualWorker(app, "rescuer").rescue()
    assert row(app, "job_attempts")["message"] == "its worker stopped answering, and is no longer registered"


def heard_of(app: Effects, worker: str) -> str:
    with app.store.read() as connection:
        seen_at = f"SELECT {app.store.sql.epoch('seen_at')} FROM effects_workers WHERE id = :id"
        return f"{moment(connection.execute(text(seen_at), {'id': worker}).scalar_one()):%Y-%m-%d %H:%M:%SZ}"


@pytest.mark.parametrize(
    ("policy", "release", "status", "verdict", "ledger", "unknowns"),
    [
        ("repeat", False, "failed", "unknown", "unknown", 1),  # the claim itself counts as the release
        ("repeat", True, "failed", "unknown", "unknown", 1),
        ("repeat_once", False, "failed", None, "intended", 0),
        ("repeat_once", True, "failed", "unknown", "unknown", 1),
        ("hold", False, "failed", None, "intended", 0),
        ("hold", True, "dead", "unknown", "unknown", 1),
    ],
)
def test_a_lost_attempt_goes_by_its_release_and_its_policy(
    app_factory: AppFactory, policy: str, release: bool, status: str, verdict: str | None, ledger: str, unknowns: int
) -> None:
    app = app_factory(job_types=[Scripted(on_unknown=policy)])  # type: ignore[arg-type]
    job = lost_job(app, release=release)
    rescuer = ManualWorker(app, "rescuer")
    silence(app, rescuer)
    [settled] = rescuer.rescue().accepted
    assert (settled.job.id, settled.status) == (job.id, status)
    logged = row(app, "job_attempts")
    assert (logged["outcome"], logged["verdict"], logged["worker"]) == ("lost", verdict, "gone")
    assert row(app, "effect_ledger")["state"] == ledger
    written = row(app, "jobs" if status == "failed" else "job_history")
    assert (written["lost_count"], written["unknown_count"]) == (1, unknowns)
    assert written["error_code"] == "lost"


def test_repeat_once_repeats_once(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(on_unknown="repeat_once")])
    lost_job(app, release=True)
    manual_worker = ManualWorker(app, "rescuer")
    silence(app, manual_worker)
    manual_worker.rescue()
    app.store.shift_clock(60)
    again = manual_worker.claim_one(queue="quarantine")
    manual_worker.release(again)
    app.store.shift_clock(100)
    [settled] = manual_worker.rescue().accepted
    assert (settled.status, settled.error_code) == ("dead", "lost")


def test_a_lost_job_runs_in_quarantine_and_returns_to_its_queue_after_an_answer(app: Effects) -> None:
    enqueue("scripted", {}, queue="slow", effects=app)
    gone, manual_worker = ManualWorker(app, "gone", queue="slow"), ManualWorker(app, "rescuer")
    gone.claim_one()
    silence(app, manual_worker)
    manual_worker.rescue()
    assert manual_worker.claim(queue="slow") == []
    job = manual_worker.claim_one(queue="quarantine")
    assert (job.quarantined_from, job.home_queue, job.lost_count) == ("slow", "slow", 1)
    manual_worker.settle((job, Retry("busy")))
    app.store.shift_clock(60)
    home = manual_worker.claim_one(queue="slow")
    assert (home.id, home.quarantined_from, home.lost_count) == (job.id, None, 0)


@pytest.mark.parametrize(("ending", "queue"), [(Returned(), "quarantine"), (Snooze(1), "default")])
def test_only_an_answer_ends_the_quarantine(app: Effects, ending: Returned | Snooze, queue: str) -> None:
    lost_job(app)
    manual_worker = ManualWorker(app, "rescuer")
    silence(app, manual_worker)
    manual_worker.rescue()
    manual_worker.settle((manual_worker.claim_one(queue="quarantine"), ending))
    app.store.shift_clock(5)
    again = manual_worker.claim_one(queue=queue)
    assert again.home_queue == "default"


def test_losses_count_in_a_row(app: Effects) -> None:
    """Kills over a long life are no poison: an answer between them begins the count again."""
    enqueue("scripted", {}, queue="slow", max_attempts=100, effects=app)
    manual_worker = ManualWorker(app, "rescuer")
    for kill in range(POISON_LOSSES):
        job = ManualWorker(app, f"victim {kill}", queue="slow").claim_one()
        assert job.lost_count == 0
        silence(app, manual_worker)
        manual_worker.rescue()
        manual_worker.settle((manual_worker.claim_one(queue="quarantine"), Retry("busy")))
        app.store.shift_clock(3600)
        assert manual_worker.heartbeat()
    assert row(app, "jobs")["status"] == "failed"


def test_a_job_of_one_attempt_that_may_have_run_is_not_run_again(app: Effects) -> None:
    enqueue("scripted", {}, key="k", max_attempts=1, effects=app)
    ManualWorker(app, "gone").claim_one()
    manual_worker = ManualWorker(app, "rescuer")
    silence(app, manual_worker)
    [settled] = manual_worker.rescue().accepted
    assert (settled.status, settled.verdict, settled.error_code) == ("dead", "unknown", "lost")
    assert "gave up after 1 attempt" in str(settled.message)


def test_a_job_that_loses_its_workers_is_poison(app: Effects) -> None:
    job = lost_job(app)
    for loss in range(1, POISON_LOSSES + 1):
        rescuer = ManualWorker(app, f"rescuer {loss}")
        silence(app, rescuer)
        [settled] = rescuer.rescue().accepted
        if loss < POISON_LOSSES:
            assert settled.status == "failed"
            assert ManualWorker(app, f"victim {loss}").claim_one(queue="quarantine").id == job.id
    ended = row(app, "job_history")
    assert (ended["status"], ended["error_code"], ended["lost_count"]) == ("dead", "poison", POISON_LOSSES)
    assert [attempt["outcome"] for attempt in rows(app, "job_attempts")] == ["lost"] * POISON_LOSSES


def test_neighbours_of_a_poison_job_survive(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(4)], effects=app)
    ManualWorker(app, "gone").claim(4)
    manual_worker = ManualWorker(app, "rescuer")
    silence(app, manual_worker)
    manual_worker.rescue()
    for _ in range(4):
        manual_worker.settle((manual_worker.claim_one(queue="quarantine"), Done()))
    assert [job["status"] for job in rows(app, "job_history")] == ["succeeded"] * 4


def test_rescue_works_in_small_batches_and_then_deletes_the_worker(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(RESCUE_BATCH + 28)], effects=app)
    gone = ManualWorker(app, "gone")
    while gone.claim():
        pass
    manual_worker = ManualWorker(app, "rescuer")
    silence(app, manual_worker)
    assert len(manual_worker.rescue().accepted) == RESCUE_BATCH
    assert len(rows(app, "workers")) == 2
    assert len(manual_worker.rescue().accepted) == 28
    assert [worker["id"] for worker in rows(app, "workers")] == ["rescuer"]
    assert manual_worker.rescue().accepted == []


def test_a_settle_that_comes_first_leaves_rescue_nothing(app: Effects) -> None:
    job = lost_job(app)
    manual_worker = ManualWorker(app, "rescuer")
    silence(app, manual_worker)
    manual_worker.settle((job, Done()))
    assert manual_worker.rescue().accepted == []
    assert row(app, "job_history")["status"] == "succeeded"


def test_jobs_of_unknown_types_are_left_to_workers_that_know_them(app: Effects, app_factory: AppFactory) -> None:
    second_app = app_factory(job_types=[Scripted("other")])
    lost_job(app)
    manual_worker = ManualWorker(second_app, "rescuer")
    second_app.store.shift_clock(LEASE_SECONDS + 1)
    assert manual_worker.rescue().accepted == []
    assert row(app, "jobs")["status"] == "running"


def test_a_lost_plain_insert_is_not_yet_routed(app: Effects) -> None:
    run_sql(app, """INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{"limit": "l"}')""")
    ManualWorker(app, "gone").claim_one()
    manual_worker = ManualWorker(app, "rescuer")
    silence(app, manual_worker)
    manual_worker.rescue()
    job = manual_worker.claim_one(queue="quarantine")
    assert not job.routed
    manual_worker.settle((job, Returned()))
    assert not manual_worker.claim_one(queue="quarantine").routed


def test_a_zombie_frozen_beyond_its_lease_changes_nothing(app_factory: AppFactory) -> None:
    """Frozen before the point of no return, rescued, woken: it may not send and may not write."""
    app = app_factory(job_types=[Scripted(on_unknown="hold")])
    job = lost_job(app)
    zombie_app = app_factory(job_types=[Scripted(on_unknown="hold")])
    newer = ManualWorker(app, "newer")
    silence(app, newer)
    newer.rescue()
    again = newer.claim_one(queue="quarantine")
    newer.release(again)
    newer.settle((again, Done()), released=True)
    before = all_but_late(app)
    zombie = ManualWorker(zombie_app, "zombie")
    assert zombie.release(job) == set()
    assert zombie.settle((job, Refused("no"))).accepted == []
    assert all_but_late(app) == before
    assert row(app, "job_history")["status"] == "succeeded"
    assert row(app, "effect_ledger")["state"] == "done"


# -- job types that the code no longer has ------------------------------------------------------------------


@pytest.fixture
def older(app_factory: AppFactory) -> Effects:
    """The app as it was before its deploy."""
    return app_factory(job_types=[Scripted(), Scripted("gone", on_unknown="hold")])


def left_running(older: Effects, *, released: bool = False) -> Job:
    """A job of a type that only the older code has, whose worker is gone."""
    enqueue("gone", {}, key="k", limit_key="l", group_key="g", effects=older)
    worker = ManualWorker(older, "older")
    job = worker.claim_one()
    if released:
        worker.release(job)
    return job


def test_a_lost_job_of_an_unregistered_type_uses_no_capacity_of_its_key(app: Effects, older: Effects) -> None:
    run_sql(app, "INSERT INTO effects_limits (limit_key, max_in_flight) VALUES ('l', 1)")
    left_running(older)
    receipt = enqueue("scripted", {}, limit_key="l", effects=app)
    manual_worker = ManualWorker(app)
    assert manual_worker.claim() == []
    app.store.shift_clock(3600)
    assert [job.id for job in manual_worker.claim()] == [receipt.job_id]


def test_a_lost_job_of_an_unregistered_type_is_returned_for_workers_that_know_it(app: Effects, older: Effects) -> None:
    job = left_running(older)
    behind = enqueue("scripted", {}, group_key="g", effects=app)
    manual_worker = ManualWorker(app)
    silence(app, manual_worker)
    assert manual_worker.rescue().accepted == []  # a worker of the older code may come yet
    app.store.shift_clock(UNREGISTERED_SECONDS + 60)
    manual_worker.heartbeat()
    assert [settlement.job.id for settlement in manual_worker.rescue().accepted] == [job.id]
    waiting = row(app, "jobs", "id = :id", id=job.id)
    assert (waiting["status"], waiting["queue"], waiting["lost_count"]) == ("failed", "quarantine", 1)
    assert waiting["lease_token"] > job.lease_token
    assert ManualWorker(older, "older").settle((job, Done())).stale  # its worker, if it wakes up after all
    assert audit(app.store, app.ledgers) == []

    older.store.shift_clock(UNREGISTERED_SECONDS + 600)
    knowing = ManualWorker(older, "knowing")
    again = knowing.claim_one(queue="quarantine")
    assert again.id == job.id
    knowing.settle((again, Done()))
    manual_worker.heartbeat()
    assert [claimed.id for claimed in manual_worker.claim()] == [behind.job_id]


def test_a_released_job_of_an_unregistered_type_is_held_for_an_operator(app: Effects, older: Effects) -> None:
    job = left_running(older, released=True)
    app.store.shift_clock(UNREGISTERED_SECONDS + 600)
    manual_worker = ManualWorker(app)
    assert [settlement.job.id for settlement in manual_worker.rescue().accepted] == [job.id]
    ended = row(app, "job_history")
    assert (ended["status"], ended["error_code"]) == ("dead", "lost")
    assert row(app, "effect_ledger")["state"] == "unknown"
    assert audit(app.store, app.ledgers) == audit(older.store, older.ledgers) == []


@pytest.mark.parametrize("job_type", ["scripted", "gone"])
@pytest.mark.parametrize("locked_until", ["9000-01-01", "2001-01-01", None])
@pytest.mark.parametrize("updated_at", ["9000-01-01", "2001-01-01", None])
def test_a_running_row_that_no_worker_holds_is_rescued_within_the_hour(
    app: Effects, job_type: str, locked_until: str | None, updated_at: str | None
) -> None:
    """Whatever deadline and time of writing another program has put into it."""
    worker = ManualWorker(app)
    receipt = enqueue("scripted", {}, effects=app)
    sql = app.store.sql
    until, updated = (
        "NULL" if moment is None else sql.time(str(dt.datetime.fromisoformat(f"{moment}T00:00:00Z").timestamp()))
        for moment in (locked_until, updated_at)
    )
    updated = sql.now if updated_at is None else updated
    run_sql(
        app,
        "UPDATE effects_jobs SET status = 'running', locked_by = 'no one', lease_token = 7, attempts = 1, "
        f"job_type = :job_type, locked_until = {until}, updated_at = {updated}",
        job_type=job_type,
    )
    app.store.shift_clock(UNREGISTERED_SECONDS + 1)
    worker.heartbeat()
    assert [settlement.job.id for settlement in worker.rescue().accepted] == [receipt.job_id]
    assert row(app, "jobs")["status"] == "failed"


def test_the_doctor_reports_lost_jobs_of_unregistered_types(app: Effects, older: Effects) -> None:
    left_running(older)
    app.store.shift_clock(3600)
    [finding] = [
        finding
        for finding in examine_work(app.store, LEASE_SECONDS, app.job_types, app.queues)
        if finding.check == "job types"
    ]
    assert finding.level == "warning"
    assert "gone: 1 job is live, 1 left running by a lost worker" in finding.text
