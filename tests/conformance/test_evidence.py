"""What a worker remembers, and when it compares: nothing that is refused meanwhile is forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from effects import Done, Effects, enqueue
from effects.errors import StoreUnavailable
from effects.store.workers import note_failover
from effects.worker.machine.runtime import Runtime
from effects.worker.recording.failover_evidence import FailoverEvidence
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.scripted import Scripted
from tests.support.worker_parts import NothingHeld, context_of


class _LateRuntime(Runtime):
    """Whose clock, once read, lets something happen first: that which another thread does at this moment."""

    def __init__(self) -> None:
        self.happens: list[Callable[[], object]] = []

    def monotonic(self) -> float:  # type: ignore[override]
        if self.happens:
            self.happens.pop()()
        return time.monotonic()


def _evidence(app: Effects, worker: ManualWorker, runtime: Runtime) -> FailoverEvidence:
    evidence = FailoverEvidence(context_of(app, runtime))
    evidence.begin(worker.name, note_failover(app.store, worker.name))
    return evidence


def _lose_all(app: Effects) -> None:
    """The server that was promoted has none of them."""
    for table in ("jobs", "effect_ledger"):
        run_sql(app, f"DELETE FROM effects_{table}")


@pytest.mark.parametrize("late_word", ["refused", "acknowledged"])
def test_what_is_heard_during_a_comparison_is_compared_next(app_factory: AppFactory, late_word: str) -> None:
    """The settler's thread hears it in the midst: a refusal, or that the server which is gone took it."""
    app = app_factory(job_types=[Scripted(on_unknown="hold")])
    worker = ManualWorker(app, "survivor")
    settlements = []
    for name in ("early", "late"):
        enqueue("scripted", {"name": name}, key=name, effects=app)
        settlements.append(worker.decide(worker.claim_one(), Done(), released=True))
    early, late = settlements
    unwritten, runtime = [late], _LateRuntime()
    evidence = _evidence(app, worker, runtime)
    evidence.settled([early])
    _lose_all(app)
    evidence.suspect()
    runtime.happens = [lambda: evidence.refused([late]) if late_word == "refused" else evidence.settled([late])]
    assert evidence.compare(worker.name, NothingHeld(unwritten.copy))
    unwritten.clear()
    assert [row["key"] for row in rows(app, "evidence")] == ["early"]
    assert evidence.is_due
    assert evidence.compare(worker.name, NothingHeld(unwritten.copy))
    assert [(row["key"], row["fate"]) for row in rows(app, "evidence")] == [("early", "orphan"), ("late", "orphan")]
    assert not evidence.is_due


def test_what_was_written_back_and_is_lost_again_is_written_back_again(app_factory: AppFactory) -> None:
    """Though the next failover has the number of the one before, whose record it has lost as well."""
    app = app_factory(job_types=[Scripted(on_unknown="hold")])
    worker = ManualWorker(app, "survivor")
    enqueue("scripted", {}, key="once", effects=app)
    settlement = worker.decide(worker.claim_one(), Done(), released=True)
    evidence = _evidence(app, worker, Runtime())
    evidence.settled([settlement])
    for _ in range(3):
        _lose_all(app)
        run_sql(app, "DELETE FROM effects_evidence")
        evidence.suspect()
        assert evidence.compare(worker.name, NothingHeld(list))
        assert [row["key"] for row in rows(app, "evidence")] == ["once"]


def test_a_database_that_goes_away_right_after_a_comparison_is_compared_again(app_factory: AppFactory) -> None:
    """The statement in whose try it was compared has not succeeded yet: it is the same outage to whoever waits."""
    app = app_factory(job_types=[Scripted()])
    worker, context = ManualWorker(app, "survivor"), context_of(app, Runtime())
    evidence = FailoverEvidence(context)
    evidence.begin(worker.name, note_failover(app.store, worker.name))
    for _ in range(2):
        context.outage.began(StoreUnavailable("away"))
        assert evidence.is_due
        assert evidence.compare(worker.name, NothingHeld(list))
        assert not evidence.is_due


def test_what_waits_to_be_written_is_no_reason_to_compare_again(app_factory: AppFactory) -> None:
    """Where no failover was found: a busy worker always has some."""
    app = app_factory(job_types=[Scripted()])
    worker = ManualWorker(app, "busy")
    enqueue("scripted", {}, effects=app)
    settlement = worker.decide(worker.claim_one(), Done(), released=True)
    evidence = _evidence(app, worker, Runtime())
    evidence.suspect()
    assert evidence.compare(worker.name, NothingHeld(lambda: [settlement]))
    evidence.settled([settlement])
    assert not evidence.is_due


def test_a_refusal_without_a_failover_is_no_reason_to_compare(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted()])
    worker = ManualWorker(app, "slow")
    enqueue("scripted", {}, effects=app)
    evidence = _evidence(app, worker, Runtime())
    evidence.refused([worker.decide(worker.claim_one(), Done(), released=True)])
    assert not evidence.is_due
