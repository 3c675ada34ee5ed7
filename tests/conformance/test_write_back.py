"""An attempt that a failover lost, written back into what has become of its job: no ledger lies, nothing repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from effects import Done, Effects, Job, Refused, Retry, Unknown, enqueue
from effects.model.settlement import AttemptEnd, Execution
from effects.operate.tables.audit import audit
from effects.operate.tables.failovers import list_orphans
from effects.store.queue.cancellation import cancel
from effects.store.recovery.comparison import Comparison, Remembered, find_missing, report, report_for
from effects.store.recovery.write_back import WriteBack
from effects.store.workers import note_failover
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.sampling import sample
from tests.support.scripted import Scripted

POLICIES = ["repeat", "repeat_once", "hold"]
# What its worker remembers of the attempt; None: its release alone.
REMEMBERED: dict[str, AttemptEnd | None] = {
    "released": None, "done": Done(), "unknown": Unknown("no reply"), "refused": Refused("no"), "failed": Retry("busy"),
}  # fmt: skip
KEYED = pytest.mark.parametrize("key", ["order:A", None], ids=["keyed", "plain"])


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app(app_factory: AppFactory, policy: Any) -> Effects:
    return app_factory(job_types=[Scripted(on_unknown=policy)])


@pytest.fixture
def rival(app: Effects) -> ManualWorker:
    """Another worker, which works on in the history that goes on."""
    return ManualWorker(app, "rival")


# -- what has become of the job --------------------------------------------------------------------------


def _waits(rival: ManualWorker) -> None:
    """Nobody has claimed it since."""


def _runs(rival: ManualWorker) -> None:
    rival.claim_one()


def _runs_released(rival: ManualWorker) -> None:
    rival.release(rival.claim_one())


def _failed(rival: ManualWorker) -> None:
    rival.settle((rival.claim_one(), Retry("busy", after_seconds=60)))


def _done(rival: ManualWorker) -> None:
    job = rival.claim_one()
    rival.release(job)
    rival.settle((job, Done()), released=True)


def _dead(rival: ManualWorker) -> None:
    rival.settle((rival.claim_one(), Refused("not there")))


def _cancelled(rival: ManualWorker) -> None:
    [job] = rows(rival.app, "jobs", "status = 'queued'")
    cancel(rival.app.store, rival.app.ledgers, job["id"], actor="ann")


Becomes: TypeAlias = Callable[[ManualWorker], None]
BECOMES: list[Becomes] = [_waits, _runs, _runs_released, _failed, _done, _dead, _cancelled]
LIVE = (_waits, _runs, _runs_released, _failed)


def _lose_claim(app: Effects, job: Job) -> None:
    """The row as it was before the claim."""
    run_sql(
        app,
        "UPDATE effects_jobs SET status = 'queued', attempts = 0, lease_token = 0, locked_by = NULL, "
        "locked_until = NULL, started_at = NULL, released_at = NULL WHERE id = :id",
        id=job.id,
    )


def _remembered(worker: ManualWorker, job: Job, ending: AttemptEnd | None) -> Remembered:
    if ending is None:
        return Remembered(job, 0.0)
    settlement = worker.decide(job, ending, released=True)
    return Remembered(job, 0.0, replace(settlement, execution=Execution(job, outcome=ending)))


def _write_back(app: Effects, remembered: Remembered) -> str | None:
    """As a worker does after a failover; and once more, which changes nothing."""
    failover = note_failover(app.store, "survivor")
    if not find_missing(app.store, [remembered]):
        return None
    writer = WriteBack(app.store, app.job_types, app.ledgers, worker="survivor", now=1.0)
    fate = writer.write(remembered, failover.id)
    if fate is not None:
        assert find_missing(app.store, [remembered]) == []
    return fate


def test_a_done_whose_apply_had_failed_is_written_back_as_unknown(app: Effects, policy: str) -> None:
    job_id = enqueue("scripted", {}, key="order:A", effects=app).job_id
    survivor = ManualWorker(app, "survivor")
    job = survivor.claim_one()
    failed = survivor.decide(job, Unknown("recording the outcome failed", code="apply_failed"), released=True)
    failed = replace(failed, outcome="failed", execution=Execution(job, outcome=Done()))
    _lose_claim(app, job)
    assert _write_back(app, Remembered(job, 0.0, failed)) is not None
    assert row(app, "job_attempts", "job_id = :id", id=job_id)["verdict"] == "unknown"
    assert row(app, "effect_ledger", "key = 'order:A'")["state"] == "unknown"
    ended = rows(app, "job_history", "id = :id", id=job_id)
    assert [job["status"] for job in ended] == (["dead"] if policy == "hold" else [])
    assert audit(app.store, app.ledgers) == []


@KEYED
@pytest.mark.parametrize("becomes", sample(BECOMES, 4))
def test_a_lost_claim_is_written_back(
    app: Effects, rival: ManualWorker, policy: str, becomes: Becomes, key: str | None
) -> None:
    for name, ending in REMEMBERED.items():
        own_key = None if key is None else f"{key}:{name}"
        job_id = enqueue("scripted", {"name": name}, key=own_key, effects=app).job_id
        survivor = ManualWorker(app, "survivor")
        job = survivor.claim_one()
        remembered = _remembered(survivor, job, ending)
        _lose_claim(app, job)
        becomes(rival)
        rivals_done = becomes is _done
        fate = _write_back(app, remembered)
        ours = "unknown" if ending is None else remembered.settlement.verdict  # type: ignore[union-attr]
        assert (fate is not None) is (ours in ("done", "unknown") or becomes in (_waits, _failed, _done, _dead)), name
        if ours == "not_done" and fate is not None:
            assert rows(app, "job_attempts", "job_id = :id AND verdict = 'not_done'", id=job_id) != []
        elif own_key is not None and fate is not None:
            state = row(app, "effect_ledger", "key = :key", key=own_key)["state"]
            assert state == ("done" if ours == "done" or rivals_done else "unknown"), name
        if fate is not None and becomes in LIVE:
            live = rows(app, "jobs", "id = :id", id=job_id)
            twice = becomes is _runs_released  # the other attempt counts as unknown too
            goes_on = ours == "unknown" and (policy == "repeat" or (policy == "repeat_once" and not twice))
            goes_on |= name == "failed"
            assert bool(live) is goes_on, name
            assert all(job_row["status"] == "failed" for job_row in live)
        if fate is not None and ours == "done":
            assert row(app, "job_history", "id = :id", id=job_id)["status"] == "succeeded"
        assert audit(app.store, app.ledgers) == [], name
        run_sql(app, "UPDATE effects_jobs SET run_at = run_at + :far", far=_far(app))  # out of the next one's way
    assert {evidence["fate"] for evidence in rows(app, "evidence")} <= {"recorded", "unknown", "repeated"}


def _far(app: Effects) -> Any:
    return 10**9 if not app.store.is_postgresql else __import__("datetime").timedelta(days=10)


def test_a_duplicate_is_on_record(app: Effects, rival: ManualWorker) -> None:
    """Another worker has released its own attempt: both are in the log, and the effect is known to have arrived."""
    enqueue("scripted", {}, key="order:A", effects=app)
    survivor = ManualWorker(app, "survivor")
    job = survivor.claim_one()
    _lose_claim(app, job)
    rivals_job = rival.claim_one()
    rival.release(rivals_job)
    assert _write_back(app, _remembered(survivor, job, Done())) == "repeated"
    assert [(attempt["worker"], attempt["verdict"]) for attempt in rows(app, "job_attempts")] in (
        [("rival", "unknown"), ("survivor", "done")],
        [("survivor", "done"), ("rival", "unknown")],
    )
    assert rival.settle((rivals_job, Done()), released=True).accepted == []  # it was fenced off
    assert audit(app.store, app.ledgers) == []


@pytest.mark.parametrize("remembers", REMEMBERED)
def test_the_claim_survived(app: Effects, policy: str, remembers: str) -> None:
    """The same word again: nothing is unknown that was not."""
    enqueue("scripted", {}, key="order:A", effects=app)
    survivor = ManualWorker(app, "survivor")
    job = survivor.claim_one()
    ending = REMEMBERED[remembers]
    assert _write_back(app, _remembered(survivor, job, ending)) == ("unknown" if ending is None else "recorded")
    [attempt] = rows(app, "job_attempts")
    assert attempt["lease_token"] == job.lease_token
    assert attempt["outcome"] == ("unknown" if ending is None else survivor.decide(job, ending, released=True).outcome)
    assert audit(app.store, app.ledgers) == []


@KEYED
@pytest.mark.parametrize("remembers", REMEMBERED)
@pytest.mark.parametrize("reused", [False, True], ids=["gone", "another has its id"])
def test_an_unknown_job_is_recorded_as_an_orphan(
    app: Effects, rival: ManualWorker, remembers: str, key: str | None, reused: bool
) -> None:
    """Listed, never repeated, and its key is free. A job of another payload that has its id is another's."""
    job_id = enqueue("scripted", {"name": "A"}, key=key, effects=app).job_id
    survivor = ManualWorker(app, "survivor")
    job = survivor.claim_one()
    if reused:
        payload = '\'{"name": "B"}\''
        run_sql(app, f"UPDATE effects_jobs SET payload = {payload}")
        _lose_claim(app, job)
    else:
        for table in ("jobs", "effect_ledger"):
            run_sql(app, f"DELETE FROM effects_{table}")
    fate = _write_back(app, _remembered(survivor, job, REMEMBERED[remembers]))
    with app.store.read() as connection:
        orphans = list_orphans(app.store, connection, key)
    if remembers in ("refused", "failed"):
        assert (fate, orphans) == (None, [])
        return
    assert fate == "orphan"
    assert [(orphan.job_id, orphan.key) for orphan in orphans] == [(job_id, key)]
    assert [finding.check for finding in audit(app.store, app.ledgers)] == ["effects_known"]
    if not reused:
        assert not enqueue("scripted", {"name": "A"}, key=key, effects=app).existing
    assert rival.settle((rival.claim_one(), Done()), released=True).stale == []


@pytest.mark.parametrize("policy", ["hold"], indirect=True)
@pytest.mark.parametrize("is_there", [False, True])
def test_what_two_workers_read_is_written_back_once(app: Effects, is_there: bool) -> None:
    """Both found it missing before either wrote."""
    enqueue("scripted", {}, key="order:A", effects=app)
    survivor = ManualWorker(app, "survivor")
    remembered = _remembered(survivor, survivor.claim_one(), Done())
    if is_there:
        _lose_claim(app, remembered.job)
    else:
        run_sql(app, "DELETE FROM effects_jobs")
    failover = note_failover(app.store, "survivor")
    writers = [WriteBack(app.store, app.job_types, app.ledgers, worker=name, now=1.0) for name in ("first", "second")]
    fates = [writer.write(remembered, failover.id) for writer in writers]
    assert fates == ["recorded" if is_there else "orphan", None]
    assert len(rows(app, "job_attempts")) == int(is_there)


@pytest.mark.parametrize("policy", ["hold"], indirect=True)
def test_only_workers_that_were_alive_at_the_failover_are_counted(app: Effects) -> None:
    """Of three two had died long before it was noticed, and left files that two others read."""
    for name in ("alive", "dead", "deader"):
        ManualWorker(app, name)
    first = note_failover(app.store, "alive")
    run_sql(app, f"UPDATE effects_workers SET seen_at = {app.store.sql.after('-3600')} WHERE id <> 'alive'")
    failover = note_failover(app.store, "alive", rewound=first.id)
    for _ in range(2):
        report_for(app.store, {"dead", "deader"}, failover)
        assert report(app.store, "alive", failover, Comparison(), ids={"alive"}, actor="worker:alive", reason=None)
    shown = row(app, "failovers", "id = :id", id=failover.id)
    assert (shown["workers"], shown["compared"]) == (1, 1)


def test_recorded_attempts_are_not_missing(app: Effects) -> None:
    """Neither an attempt that is recorded, in whichever table, nor a release that is marked."""
    survivor = ManualWorker(app, "survivor")
    recorded = []
    for ending in (Done(), Retry("busy", after_seconds=60), Refused("no")):
        enqueue("scripted", {}, effects=app)
        job = survivor.claim_one()
        survivor.settle((job, ending), released=True)
        recorded.append(_remembered(survivor, job, ending))
    enqueue("scripted", {}, effects=app)
    released = survivor.claim_one()
    survivor.release(released)
    recorded.append(_remembered(survivor, released, None))
    assert find_missing(app.store, recorded) == []
    assert find_missing(app.store, recorded * 300) == []
