"""Heartbeat, release and rescue: what is known of an attempt whose worker fell silent."""

from __future__ import annotations

import pytest

from effects import Done, Effects, Job, NewJob, Refused, Retry, Snooze, enqueue, enqueue_many
from effects.job import POISON_LOSSES
from effects.settlement import GivenBack
from effects.store.liveness import RESCUE_BATCH, leave
from tests.conftest import AppFactory
from tests.support.hands import LEASE_SECONDS, Hand, everything, row, rows, run_sql
from tests.support.scripted import Scripted


def silence(app: Effects, *others: Hand) -> None:
    """Time passes in which only the others say that they live."""
    app.store.shift_clock(LEASE_SECONDS + 1)
    for hand in others:
        assert hand.heartbeat()[0]


def lost_job(app: Effects, *, release: bool = False) -> Job:
    """A job with a key whose worker fell silent while it ran."""
    enqueue("scripted", {}, key="k", effects=app)
    gone = Hand(app, "gone")
    job = gone.claim_one()
    if release:
        assert gone.release(job) == {job.id}
    return job


# -- heartbeat -----------------------------------------------------------------------------------------


def test_a_heartbeat_keeps_the_lease(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(time_limit_seconds=3600.0)])
    enqueue("scripted", {}, effects=app)
    hand, rescuer = Hand(app, "alive"), Hand(app, "rescuer")
    job = hand.claim_one()
    for _ in range(3):
        silence(app, hand, rescuer)
        assert rescuer.rescue().accepted == []
    assert [one.job.id for one in hand.settle((job, Done())).accepted] == [job.id]


def test_a_worker_that_was_declared_dead_is_told(app: Effects) -> None:
    lost_job(app)
    gone = Hand(app, "gone too")
    rescuer = Hand(app, "rescuer")
    silence(app, rescuer)
    rescuer.rescue()
    assert [worker["id"] for worker in rows(app, "workers")] == ["rescuer"]
    assert gone.heartbeat() == (False, set())


def test_a_worker_that_leaves_jobs_behind_stays_to_be_found(app: Effects) -> None:
    job = lost_job(app)
    leave(app.store, "gone")
    assert len(rows(app, "workers")) == 1
    Hand(app, "other").settle((job, Done()))
    leave(app.store, "gone")
    assert [worker["id"] for worker in rows(app, "workers")] == ["other"]


def test_a_heartbeat_touches_only_the_workers_row(app: Effects) -> None:
    lost_job(app)
    before = everything(app)
    Hand(app, "w2").heartbeat()
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
    rescuer = Hand(app, "rescuer")
    if meanwhile == "given back":
        rescuer.settle((job, GivenBack()))
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
    hand = Hand(app)
    jobs = hand.claim(4)
    hand.settle((jobs[1], GivenBack()))
    assert hand.release(*reversed(jobs)) == {job.id for job in jobs} - {jobs[1].id}
    states = {entry["job_id"]: entry["state"] for entry in rows(app, "effect_ledger")}
    assert states == {job.id: "released" if job is not jobs[1] else "intended" for job in jobs}


def test_a_mark_belongs_to_its_attempt_alone(app: Effects) -> None:
    job = lost_job(app, release=True)
    hand = Hand(app)
    hand.settle((job, Retry("busy")), released=True)
    assert row(app, "jobs")["released_at"] is None
    assert row(app, "effect_ledger")["state"] == "intended"
    app.store.shift_clock(100)
    hand.claim_one()
    assert row(app, "jobs")["released_at"] is None


def test_a_done_effect_stays_done_whatever_is_released_later(app: Effects) -> None:
    hand = Hand(app)
    job = lost_job(app)
    run_sql(app, "UPDATE effects_effect_ledger SET state = 'done'")
    hand.release(job)
    assert row(app, "effect_ledger")["state"] == "done"
    hand.settle((job, Refused("no")), released=True)
    assert row(app, "effect_ledger")["state"] == "done"


# -- rescue --------------------------------------------------------------------------------------------


def test_nobody_is_rescued_within_the_lease(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(time_limit_seconds=3600.0)])
    lost_job(app)
    app.store.shift_clock(LEASE_SECONDS - 5)
    assert Hand(app).rescue().accepted == []
    app.store.shift_clock(10)
    assert len(Hand(app, "second").rescue().accepted) == 1


def test_a_passed_deadline_is_rescued_though_the_worker_lives(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(time_limit_seconds=20.0)])
    enqueue("scripted", {}, effects=app)
    hand = Hand(app)
    job = hand.claim_one()
    app.store.shift_clock(21)
    hand.heartbeat()
    [settled] = hand.rescue().accepted
    assert (settled.job.id, settled.status) == (job.id, "failed")
    assert "time limit" in str(row(app, "job_attempts")["message"])


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
    rescuer = Hand(app, "rescuer")
    silence(app, rescuer)
    [settled] = rescuer.rescue().accepted
    assert (settled.job.id, settled.status) == (job.id, status)
    logged = row(app, "job_attempts")
    assert (logged["outcome"], logged["verdict"], logged["worker"]) == ("lost", verdict, "gone")
    assert row(app, "effect_ledger")["state"] == ledger
    found = row(app, "jobs" if status == "failed" else "job_history")
    assert (found["lost_count"], found["unknown_count"]) == (1, unknowns)
    assert found["error_code"] == ("lost" if status == "failed" else "unknown")


def test_repeat_once_repeats_once(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(on_unknown="repeat_once")])
    lost_job(app, release=True)
    hand = Hand(app, "rescuer")
    silence(app, hand)
    hand.rescue()
    app.store.shift_clock(60)
    again = hand.claim_one(queue="quarantine")
    hand.release(again)
    app.store.shift_clock(100)
    [settled] = hand.rescue().accepted
    assert (settled.status, settled.error_code) == ("dead", "unknown")


def test_a_lost_job_runs_in_quarantine_and_goes_home_after_an_answer(app: Effects) -> None:
    enqueue("scripted", {}, queue="slow", effects=app)
    gone, hand = Hand(app, "gone", queue="slow"), Hand(app, "rescuer")
    gone.claim_one()
    silence(app, hand)
    hand.rescue()
    assert hand.claim(queue="slow") == []
    job = hand.claim_one(queue="quarantine")
    assert (job.quarantined_from, job.home_queue, job.lost_count) == ("slow", "slow", 1)
    hand.settle((job, Retry("busy")))
    app.store.shift_clock(60)
    home = hand.claim_one(queue="slow")
    assert (home.id, home.quarantined_from, home.lost_count) == (job.id, None, 1)


@pytest.mark.parametrize(("ending", "queue"), [(GivenBack(), "quarantine"), (Snooze(1), "default")])
def test_only_an_answer_ends_the_quarantine(app: Effects, ending: GivenBack | Snooze, queue: str) -> None:
    lost_job(app)
    hand = Hand(app, "rescuer")
    silence(app, hand)
    hand.rescue()
    hand.settle((hand.claim_one(queue="quarantine"), ending))
    app.store.shift_clock(5)
    again = hand.claim_one(queue=queue)
    assert again.home_queue == "default"


def test_a_job_that_loses_its_workers_is_poison(app: Effects) -> None:
    job = lost_job(app)
    for loss in range(1, POISON_LOSSES + 1):
        rescuer = Hand(app, f"rescuer {loss}")
        silence(app, rescuer)
        [settled] = rescuer.rescue().accepted
        if loss < POISON_LOSSES:
            assert settled.status == "failed"
            assert Hand(app, f"victim {loss}").claim_one(queue="quarantine").id == job.id
    ended = row(app, "job_history")
    assert (ended["status"], ended["error_code"], ended["lost_count"]) == ("dead", "poison", POISON_LOSSES)
    assert [one["outcome"] for one in rows(app, "job_attempts")] == ["lost"] * POISON_LOSSES


def test_the_innocent_neighbours_of_poison_live(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(4)], effects=app)
    Hand(app, "gone").claim(4)
    hand = Hand(app, "rescuer")
    silence(app, hand)
    hand.rescue()
    for _ in range(4):
        hand.settle((hand.claim_one(queue="quarantine"), Done()))
    assert [job["status"] for job in rows(app, "job_history")] == ["succeeded"] * 4


def test_rescue_works_in_small_batches_and_then_buries_the_worker(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(RESCUE_BATCH + 28)], effects=app)
    gone = Hand(app, "gone")
    while gone.claim():
        pass
    hand = Hand(app, "rescuer")
    silence(app, hand)
    assert len(hand.rescue().accepted) == RESCUE_BATCH
    assert len(rows(app, "workers")) == 2
    assert len(hand.rescue().accepted) == 28
    assert [worker["id"] for worker in rows(app, "workers")] == ["rescuer"]
    assert hand.rescue().accepted == []


def test_a_settle_that_comes_first_leaves_rescue_nothing(app: Effects) -> None:
    job = lost_job(app)
    hand = Hand(app, "rescuer")
    silence(app, hand)
    hand.settle((job, Done()))
    assert hand.rescue().accepted == []
    assert row(app, "job_history")["status"] == "succeeded"


def test_jobs_of_unknown_types_are_left_to_who_knows_them(app: Effects, app_factory: AppFactory) -> None:
    other = app_factory(job_types=[Scripted("other")])
    lost_job(app)
    hand = Hand(other, "rescuer")
    other.store.shift_clock(LEASE_SECONDS + 1)
    assert hand.rescue().accepted == []
    assert row(app, "jobs")["status"] == "running"


def test_a_lost_plain_insert_is_still_to_be_prepared(app: Effects) -> None:
    run_sql(app, """INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{"limit": "l"}')""")
    Hand(app, "gone").claim_one()
    hand = Hand(app, "rescuer")
    silence(app, hand)
    hand.rescue()
    job = hand.claim_one(queue="quarantine")
    assert not job.prepared
    hand.settle((job, GivenBack()))
    assert not hand.claim_one(queue="quarantine").prepared


def test_zombie_frozen_beyond_its_lease_leaves_the_newer_truth(app_factory: AppFactory) -> None:
    """Frozen before the point of no return, rescued, woken: it may not send and may not write."""
    app = app_factory(job_types=[Scripted(on_unknown="hold")])
    job = lost_job(app)
    zombie_app = app_factory(job_types=[Scripted(on_unknown="hold")])
    newer = Hand(app, "newer")
    silence(app, newer)
    newer.rescue()
    again = newer.claim_one(queue="quarantine")
    newer.release(again)
    newer.settle((again, Done()), released=True)
    before = everything(app)
    zombie = Hand(zombie_app, "zombie")
    assert zombie.release(job) == set()
    assert zombie.settle((job, Refused("no"))).accepted == []
    assert everything(app) == before
    assert row(app, "job_history")["status"] == "succeeded"
    assert row(app, "effect_ledger")["state"] == "done"
