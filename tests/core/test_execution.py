"""What is known of an attempt reaches only the ledger that records it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection

from effects import Attempt, Done, Effects, JobType, Outcome, Retry, enqueue
from effects.errors import LeaseLost
from effects.model.settlement import Execution, Settlement, TimedOut
from effects.store.db.sql import columns_of
from effects.store.db.store import Store
from effects.store.queue.table_ledger import TableLedger
from effects.worker import Worker
from effects.worker.attempts.attempt import RunningAttempt
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker
from tests.support.sample_jobs import job
from tests.support.worker_parts import attempt_of


class Record(msgspec.Struct, frozen=True):
    """What the type below leaves for its ledger."""

    address: str


class RecordingLedger(TableLedger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__("effect_ledger")
        self.records: list[Any] = []

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        self.records += [settlement.private for settlement in settled]
        super().record(store, connection, settled)


class Recording(JobType[dict[str, Any]]):
    """Leaves a record, named by its job's key."""

    name = "core.recording"

    def __init__(self) -> None:
        self.ledger = RecordingLedger()

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        attempt.private = Record(f"{attempt.job.key}@rosebud.example")
        return Done()


def running(job_type: JobType[Any]) -> RunningAttempt:
    attempt = attempt_of(Execution(job(), {}), job_type)
    attempt.start()
    return attempt


def test_the_ledger_has_what_perform_left(app_factory: AppFactory) -> None:
    recording = Recording()
    app = app_factory(job_types=[recording])
    _enqueue(app)
    assert Worker(app).drain().counts == {"succeeded": 1}
    assert recording.ledger.records == [Record("order-1@rosebud.example")]


def test_an_attempt_that_was_lost_with_its_worker_left_nothing(app_factory: AppFactory) -> None:
    recording = Recording()
    app = app_factory(job_types=[recording])
    _enqueue(app)
    ManualWorker(app).claim_one()
    app.store.shift_clock(1200)
    Worker(app).drain()
    assert recording.ledger.records[0] is None


def test_no_text_shows_the_private_slot() -> None:
    settlement = running(Recording()).run()
    assert settlement.private is not None
    assert "rosebud" not in repr(settlement)
    assert "rosebud" not in repr(settlement.execution)


def test_whoever_settles_an_attempt_has_its_facts() -> None:
    attempt = running(Recording())
    attempt.private = Record("early")
    settlement = attempt.settle(TimedOut(1.0))
    attempt.private = Record("late")
    assert settlement.private == Record("early")


def test_an_unfinished_settlement_is_settled_again() -> None:
    attempt = running(Recording())
    attempt.settle(Retry("busy", code="503"))
    assert attempt.cut_short().error_code == "503"


def test_the_columns_of_a_struct() -> None:
    class Row(msgspec.Struct):
        number: int
        share: float | None
        flag: bool
        text: str | None = None
        listed: list[int] | None = None
        raw: msgspec.Raw = msgspec.Raw()

    kinds = {"number": "int", "share": "num", "flag": "bool", "text": "text", "listed": "json", "raw": "json"}
    assert columns_of(Row) == kinds


def _enqueue(app: Effects) -> None:
    enqueue("core.recording", {}, key="order-1", effects=app)


@pytest.mark.parametrize("given_up", [False, True])
def test_what_a_handler_leaves_behind_releases_nothing(given_up: bool) -> None:
    """A thread of its own, say, whose effect would follow what is recorded as not done."""

    class Leaving(JobType[dict[str, Any]]):
        name, on_unknown = "core.leaving", "hold"

        def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
            return Retry("not now")

    attempt = running(Leaving())
    settlement = attempt.settle(TimedOut(1.0)) if given_up else attempt.run()
    assert settlement.verdict == "not_done"
    with pytest.raises(LeaseLost, match="has ended; the effect is not begun"):
        attempt.release()
    assert not attempt.released
