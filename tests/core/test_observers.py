"""Observers of a worker: whom it tells what it has committed, in which order, on which thread; and one that fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from effects import Effects, enqueue
from effects.kit.exit_codes import ExitCode
from effects.model.outcome import Done
from effects.model.settlement import Execution, Settlement
from effects.operate.metrics import WorkerMetrics, render
from effects.store.workers import end
from effects.worker import Observer, Worker
from effects.worker.recording.failover_evidence import FailoverEvidence
from effects.worker.recording.observers import Observers
from effects.worker.recording.settler import Settler
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows
from tests.support.scripted import Scripted
from tests.support.worker_parts import context_of


class Heard(Observer):
    """Notes each call, with its thread, and which of its jobs the database has as ended or as released by then."""

    def __init__(self, app: Effects, calls: list[tuple[Any, ...]], name: str = "") -> None:
        self._app, self._calls, self._name = app, calls, name

    def released(self, executions: Sequence[Execution]) -> None:
        ids = [execution.job.id for execution in executions]
        marked = {row["id"] for row in rows(self._app, "jobs") if row["released_at"] is not None}
        self._note("released", ids, set(ids) <= marked)

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        ids = [settlement.job.id for settlement in settlements]
        ended = {row["id"] for row in rows(self._app, "job_history")}
        self._note("recorded", ids, set(ids) <= ended)

    def refused(self, settlements: Sequence[Settlement]) -> None:
        self._note("refused", [settlement.job.id for settlement in settlements], True)

    def _note(self, event: str, ids: list[int], is_committed: bool) -> None:
        self._calls.append((self._name, event, ids, is_committed, threading.current_thread().name))


class Failing(Observer):
    def __init__(self) -> None:
        self.calls = 0

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        self.calls += 1
        raise ValueError("secret: rosebud")


def put(app: Effects, move: str) -> int:
    return enqueue("scripted", {"moves": [move]}, effects=app).job_id


def test_observers_are_told_in_their_order_after_the_commit_on_the_thread_that_committed(
    app_factory: AppFactory,
) -> None:
    app = app_factory(job_types=[Scripted(on_unknown="hold")])
    calls: list[tuple[Any, ...]] = []
    job_id = put(app, "release done")
    Worker(app, observers=[Heard(app, calls, "first"), Heard(app, calls, "second")]).drain(30)
    assert [call[:4] for call in calls] == [
        (name, event, [job_id], True) for event in ("released", "recorded") for name in ("first", "second")
    ]
    assert [call[4] for call in calls] == ["effects-default-1"] * 2 + ["effects-settler"] * 2


def test_an_observer_that_raises_is_counted_and_logged_and_told_again(
    app: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[tuple[Any, ...]] = []
    failing, metrics = Failing(), WorkerMetrics()
    worker = Worker(app, observers=[failing, Heard(app, calls), metrics])
    metrics.observer_errors = worker.observer_errors
    for _ in range(2):
        put(app, "done")
        worker_result = Worker(app, observers=[failing]).drain(30)
        assert (worker_result.exit_code, worker_result.counts) == (ExitCode.DONE, {"succeeded": 1})
    assert failing.calls == 2
    put(app, "retry")
    job_id = put(app, "done")
    assert worker.drain(30).counts == {"succeeded": 1, "failed": 1}
    recordings = sum(event == "recorded" for _, event, *_ in calls)
    assert failing.calls == 2 + recordings, "as often as the one after it"
    assert any(job_id in ids for _, _, ids, *_ in calls)
    assert worker.observer_errors == {"Failing": recordings}
    assert f'effects_observer_errors_total{{observer="Failing"}} {recordings}\n' in render(metrics.families())
    lines = [record for record in caplog.records if record.getMessage() == "observer.failed"]
    assert [str(vars(line)["reason"]).partition(" at ")[0] for line in lines] == ["Failing: ValueError"] * 3
    assert "test_observers.py" in str(vars(lines[0])["reason"])
    assert "rosebud" not in caplog.text + "".join(str(vars(record)) for record in caplog.records)


def test_a_refused_outcome_is_told_apart_and_not_as_recorded(app: Effects) -> None:
    calls: list[tuple[Any, ...]] = []
    put(app, "done")
    manual_worker = ManualWorker(app, "silent")
    job = manual_worker.claim_one()
    late = manual_worker.decide(job, Done())
    end(app.store, manual_worker.name, ExitCode.PART_FAILED, "killed")
    assert len(ManualWorker(app, "successor").rescue().accepted) == 1
    context = context_of(app)
    observers = Observers(context.runtime)
    observers.add(Heard(app, calls))
    settler = Settler(context, FailoverEvidence(context), observers, max_linger=lambda: 0.0)
    settler.add(late)
    settler.close()
    settler.run()
    assert [call[:3] for call in calls] == [("", "refused", [job.id])]


@pytest.mark.parametrize("event", ["settled", "released"])
def test_where_the_evidence_for_failovers_fails_the_worker_ends_with_70(
    event: str, app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told first. What was answered is written nevertheless, and observers are told."""
    app = app_factory(job_types=[Scripted(on_unknown="hold")])
    calls: list[tuple[Any, ...]] = []

    def fail(evidence: FailoverEvidence, batch: object) -> None:
        calls.append(("evidence", event))
        raise OSError("disk full")

    monkeypatch.setattr(FailoverEvidence, event, fail)
    job_id = put(app, "release done")
    worker = Worker(app, observers=[Heard(app, calls)])
    assert worker.drain(30).exit_code == ExitCode.PART_FAILED
    assert str(worker.fault) == "evidence failed"
    moment = calls.index(("evidence", event))
    assert calls[moment + 1][:4] == ("", {"settled": "recorded"}.get(event, event), [job_id], True)
    assert [row["status"] for row in rows(app, "job_history")] == ["succeeded"]
    [row] = rows(app, "workers")
    assert (row["exit_code"], row["end_reason"]) == (70, "evidence failed")
    [line] = [record for record in caplog.records if record.getMessage() == "worker.part_failed"]
    assert (vars(line)["part"], vars(line)["error"]) == ("evidence", "OSError")
