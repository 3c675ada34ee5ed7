"""The verdict is written, whatever else cannot be; of two attempts of a job only the one that owns it counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, text

from effects import Done, Effects, NewJob, Outcome, Refused, Retry, enqueue, enqueue_many
from effects.errors import StoreConflict, WorkerCannotContinue
from effects.model.settlement import Settlement
from effects.store.db.store import Store
from effects.store.queue import applies
from effects.store.queue.settle import settle
from effects.store.queue.table_ledger import TableLedger
from effects.worker.context import Outage
from effects.worker.machine.runtime import Runtime
from effects.worker.recording.verdicts import APPLIES_MAX, BATCH_CHARS_MAX, IN_THE_WAY_SECONDS, VerdictWriter, parts
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.scripted import Scripted
from tests.support.staged import ClockRuntime
from tests.support.worker_parts import context_of

BOUND_SECONDS = 5.0


def writer(
    app: Effects,
    ledgers: dict[str, Any] | None = None,
    runtime: Runtime | ClockRuntime | None = None,
    lease_seconds: float = 15.0,
) -> VerdictWriter:
    context = context_of(app, runtime)
    context.outage = Outage(context.runtime, app.store, lease_seconds=lease_seconds)
    verdicts = VerdictWriter(context, ledgers)
    assert verdicts._bound_seconds == BOUND_SECONDS
    return verdicts


def write(app: Effects, *settlements: Settlement, ledgers: dict[str, Any] | None = None) -> list[Settlement]:
    """What was accepted."""
    verdicts = writer(app, ledgers)
    accepted = [settlement for written in verdicts.write(settlements) for settlement in written.accepted]
    assert verdicts.take_left() == ([], [])
    return accepted


def claimed(app: Effects, count: int = 1) -> tuple[ManualWorker, Sequence[Any]]:
    enqueue_many([NewJob(job_type="scripted", payload={}, key=f"k{number}") for number in range(count)], effects=app)
    manual_worker = ManualWorker(app)
    return manual_worker, manual_worker.claim()


UNSTORABLE: dict[str, dict[str, Any]] = {
    "detail": {"detail": {"reply": object()}},
    "message": {"message": "\ud800"},
    "stack": {"stack": "\ud800"},
    "error type": {"error_type": "\ud800"},
}


@pytest.mark.parametrize("field", UNSTORABLE)
@pytest.mark.parametrize("outcome", [Done(), Refused("no"), Retry("busy")], ids=lambda outcome: type(outcome).__name__)
def test_a_verdict_outlives_what_cannot_be_stored(app: Effects, field: str, outcome: Outcome) -> None:
    manual_worker, [job, neighbour] = claimed(app, 2)
    settlement = manual_worker.decide(job, outcome)
    accepted = write(app, replace(settlement, **UNSTORABLE[field]), manual_worker.decide(neighbour, Done()))
    assert {accepted_settlement.job.id for accepted_settlement in accepted} == {job.id, neighbour.id}
    attempt = row(app, "job_attempts", "job_id = :id", id=job.id)
    assert (attempt["outcome"], attempt["verdict"]) == (settlement.outcome, settlement.verdict)
    assert "could not be stored" in attempt["message"]
    state = {"done": "done", "not_done": "refused" if settlement.ends else "intended"}[str(settlement.verdict)]
    assert row(app, "effect_ledger", "job_id = :id", id=job.id)["state"] == state
    assert row(app, "effect_ledger", "job_id = :id", id=neighbour.id)["state"] == "done"


class Broken(TableLedger):
    """A package's ledger that fails in its own way."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("effect_ledger")
        self._error = error

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        raise self._error


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(), KeyError("detail")], ids=repr)
def test_a_ledger_that_fails_keeps_no_verdict_from_its_effect(app: Effects, error: BaseException) -> None:
    manual_worker, [job] = claimed(app)
    accepted = write(app, manual_worker.decide(job, Done()), ledgers={"scripted": Broken(error)})
    assert [settlement.status for settlement in accepted] == ["succeeded"]
    assert row(app, "effect_ledger")["state"] == "done"


def fails(connection: Connection) -> None:
    raise ZeroDivisionError("secret: rosebud")


def exits(connection: Connection) -> None:
    raise SystemExit


def wrong_sql(connection: Connection) -> None:
    connection.execute(text("SELECT rosebud"))


def breaks_a_rule(connection: Connection) -> None:
    connection.execute(text("INSERT INTO effects_job_groups (group_key) VALUES (NULL)"))


def commits(connection: Connection) -> None:
    connection.commit()


def rolls_back(connection: Connection) -> None:
    connection.rollback()


def closes(connection: Connection) -> None:
    connection.close()


def rolls_back_below(connection: Connection) -> None:
    connection.connection.rollback()
    connection.execute(text("INSERT INTO marks VALUES (-1)"))


def commits_below(connection: Connection) -> None:
    connection.connection.commit()


def commits_by_text(connection: Connection) -> None:
    connection.exec_driver_sql("COMMIT")


APPLIES = [
    fails, exits, wrong_sql, breaks_a_rule, commits, rolls_back, closes, rolls_back_below, commits_below,
    commits_by_text,
]  # fmt: skip


@pytest.mark.parametrize("apply", APPLIES, ids=lambda apply: apply.__name__)
def test_only_a_failing_apply_makes_an_unknown_of_a_done(app: Effects, apply: Callable[[Connection], None]) -> None:
    manual_worker, [before, job, after] = claimed(app, 3)
    run_sql(app, "CREATE TABLE marks (job bigint)")

    def mark(job_id: int) -> Callable[[Connection], object]:
        return lambda connection: connection.execute(text("INSERT INTO marks VALUES (:id)"), {"id": job_id})

    applies: list[tuple[Any, Callable[..., object]]] = [
        (before, mark(before.id)),
        (job, apply),
        (after, mark(after.id)),
    ]
    accepted = write(
        app, *(manual_worker.decide(claimed_job, Done(apply=function)) for claimed_job, function in applies)
    )  # type: ignore[arg-type]
    outcomes = {
        settlement.job.id: (settlement.status, settlement.verdict, settlement.error_code) for settlement in accepted
    }
    assert outcomes == {
        before.id: ("succeeded", "done", None),
        job.id: ("failed", "unknown", "apply_failed"),
        after.id: ("succeeded", "done", None),
    }
    with app.store.read() as connection:
        marked = connection.execute(text("SELECT job FROM marks WHERE job > 0 ORDER BY job")).scalars().all()
    assert marked == [before.id, after.id]
    attempt = row(app, "job_attempts", "job_id = :id", id=job.id)
    assert attempt["stack"]
    assert "rosebud" not in str(attempt)


@pytest.mark.parametrize("late", [Retry("late"), Done()], ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize("late_first", [True, False])
def test_a_stale_outcome_never_passes_with_a_fresh_one(
    app_factory: AppFactory, late: Outcome, late_first: bool
) -> None:
    app = app_factory(job_types=[Scripted(on_unknown="hold")])
    enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app, "slow")
    stale = manual_worker.claim_one()
    app.store.shift_clock(1000)
    ManualWorker(app, "rescuer").rescue()
    fresh = manual_worker.claim_one(queue="quarantine")
    assert stale.id == fresh.id
    applied: list[str] = []
    batch = [
        replace(manual_worker.decide(stale, late), apply=lambda connection: applied.append("stale")),
        replace(manual_worker.decide(fresh, Done()), apply=lambda connection: applied.append("fresh")),
    ]
    settled = settle(app.store, batch if late_first else batch[::-1], app.ledgers)
    assert [settlement.job.lease_token for settlement in settled.accepted] == [fresh.lease_token]
    assert [settlement.job.lease_token for settlement in settled.stale] == [stale.lease_token]
    assert applied == ["fresh"]
    assert row(app, "effect_ledger")["state"] == "done"
    assert {attempt["outcome"] for attempt in rows(app, "job_attempts")} == {"lost", "succeeded"}


def test_the_text_of_attempts_bounds_a_batch(app: Effects) -> None:
    manual_worker, jobs = claimed(app, 4)
    large = {"body": "x" * (BATCH_CHARS_MAX // 2)}
    batch = [replace(manual_worker.decide(job, Done()), detail=large) for job in jobs]
    assert [len(part) for part in parts(batch)] == [1, 1, 1, 1]
    assert [len(part) for part in parts([manual_worker.decide(job, Done()) for job in jobs])] == [4]


def test_of_outcomes_with_an_apply_few_share_a_transaction(app: Effects) -> None:
    """It is the app's code, and what it locks stays locked until the commit."""
    manual_worker, [job] = claimed(app)
    settlement = manual_worker.decide(job, Done())
    applying = replace(settlement, apply=fails)
    batch = [applying] * (2 * APPLIES_MAX) + [settlement] * 1_000 + [applying]
    assert [len(part) for part in parts(batch)] == [APPLIES_MAX, APPLIES_MAX + 1_000, 1]


def test_of_a_batch_that_was_cut_off_for_taking_too_long_each_apply_is_alone(app: Effects) -> None:
    """Each `apply` takes 2 s here, and the connection of a transaction of more than 5 s is shut."""
    runtime = ClockRuntime()
    applied: Counter[object] = Counter()

    def slow(connection: Connection) -> None:
        transaction = connection.get_transaction()
        applied[transaction] += 1
        runtime.now += 2.0
        if applied[transaction] > BOUND_SECONDS / 2.0:
            app.store.deadlines._local.call.until = 0.0
            app.store.deadlines.cut_overdue()

    manual_worker, jobs = claimed(app, 8)
    batch = [replace(manual_worker.decide(job, Done()), apply=slow) for job in jobs]
    written = list(writer(app, runtime=runtime).write(batch))
    assert [len(settled.accepted) for settled in written] == [1] * 8
    assert {ended["status"] for ended in rows(app, "job_history")} == {"succeeded"}


def test_an_apply_that_takes_too_long_again_counts_as_failed(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time it may be the database. No other outcome waits for it."""
    monkeypatch.setattr(applies, "APPLY_SECONDS", 0.01)
    manual_worker, [job, neighbour] = claimed(app, 2)
    settlement = replace(manual_worker.decide(job, Done()), apply=lambda connection: threading.Event().wait(0.02))
    verdicts = writer(app)
    [settled] = verdicts.write([settlement, manual_worker.decide(neighbour, Done())])
    assert [accepted.job.id for accepted in settled.accepted] == [neighbour.id]
    put_aside, unwritable = verdicts.take_left()
    assert (put_aside, unwritable) == ([settlement], [])
    [settled] = verdicts.write(put_aside)
    assert [(accepted.outcome, accepted.error_code) for accepted in settled.accepted] == [("failed", "apply_failed")]


def test_an_apply_that_others_keep_from_succeeding_has_an_end(app: Effects) -> None:
    runtime = ClockRuntime()

    def blocked(connection: Connection) -> None:
        raise StoreConflict("another transaction is in the way")

    manual_worker, [job] = claimed(app)
    settlement = replace(manual_worker.decide(job, Done()), apply=blocked)
    verdicts = writer(app, runtime=runtime)
    for _ in range(2):
        assert list(verdicts.write([settlement])) == []
        runtime.now += IN_THE_WAY_SECONDS - 1.0
    assert verdicts.take_left() == ([settlement] * 2, [])
    [settled] = verdicts.write([settlement])
    assert [accepted.error_code for accepted in settled.accepted] == ["apply_failed"]


def test_where_no_outcome_is_at_fault_none_is_dropped(app: Effects) -> None:
    """Tables that stay away end the worker, with its outcomes still held."""
    manual_worker, jobs = claimed(app, 2)
    batch = [manual_worker.decide(job, Done()) for job in jobs]
    verdicts = writer(app, lease_seconds=-1.0)
    run_sql(app, "ALTER TABLE effects_job_history RENAME TO away")
    with pytest.raises(WorkerCannotContinue):
        list(verdicts.write(batch))
    run_sql(app, "ALTER TABLE away RENAME TO effects_job_history")
    assert [len(settled.accepted) for settled in verdicts.write(batch)] == [2]
