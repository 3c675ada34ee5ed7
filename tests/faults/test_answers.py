"""Anything that a handler, a hook, a callback or a payload class may return or raise, under a real worker.

The worker lives, 50 other jobs are each performed once, and every odd job has an attempt that says what it was. The
values are those of `tests/support/answers.py`: each of them, and every field of every outcome with each of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection, text

from effects import Attempt, Done, Effects, JobType, NewJob, enqueue_many
from effects.model.settlement import Settlement
from effects.operate.tables.audit import audit
from effects.worker import Observer, Worker
from tests.conftest import AppFactory
from tests.support.answers import EXCEPTIONS, VALUES, outcome_makers
from tests.support.manual_workers import rows, run_sql
from tests.support.sampling import sample

GOOD_JOBS = 50
SAMPLED_OUTCOMES, SAMPLED_HOOKS = 400, 200
HOOKS = ("perform", "classify", "load", "route", "apply", "settled", "payload")


@dataclass(frozen=True)
class Case:
    """Where something odd comes from, and what it is."""

    hook: str
    name: str
    make: Callable[[], Any]
    raised: bool

    def happen(self) -> Any:
        value = self.make()
        if self.raised:
            raise value
        return value


def outcome_cases() -> Iterator[Case]:
    for name, make in outcome_makers():
        for raised in (False, True):
            yield Case("perform", name, make, raised)


def hook_cases() -> Iterator[Case]:
    for hook in HOOKS:
        for name, make in VALUES.items():
            if hook != "payload":
                yield Case(hook, name, make, raised=False)
        for name, error in EXCEPTIONS.items():
            yield Case(hook, name, error, raised=True)
    for way in ("commit", "rollback", "close", "invalidate"):
        yield Case("apply", way, lambda way=way: way, raised=False)


CASES: dict[str, Case] = {}
WORKING = threading.Event()  # all are enqueued: from now on what happens, happens to the worker


@dataclass
class Payload:
    """What a job is about; a class of an app may do anything when one is made."""

    case: str = ""

    def __post_init__(self) -> None:
        case = CASES.get(self.case)
        if WORKING.is_set() and case is not None and case.hook == "payload":
            case.happen()


class Odd(JobType[Payload]):
    """Does what its case says, the first time; then the job is done."""

    name = "odd"
    payload = Payload
    time_limit_seconds = 30.0

    def __init__(self) -> None:
        self.performed: Counter[str] = Counter()
        self._happened: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def _case(self, hook: str, name: str) -> Case | None:
        """The case, if it is about this hook and has not happened."""
        with self._lock:
            case = CASES.get(name)
            if case is None or case.hook != hook or (hook, name) in self._happened:
                return None
            self._happened.add((hook, name))
            return case

    def route(self, payload: Payload) -> Any:
        case = self._case("route", payload.case) if WORKING.is_set() else None
        return super().route(payload) if case is None else case.happen()

    def load(self, connection: Connection, jobs: Sequence[Any]) -> Any:
        if len(jobs) > 1 and any(CASES[p.case].hook == "load" for _, p in jobs if p.case in CASES):
            raise ValueError("one of these")
        for _, payload in jobs:
            if (case := self._case("load", payload.case)) is not None:
                return case.happen()
        return {}

    def classify(self, error: Exception, *, released: bool) -> Any:
        case = self._case("classify", str(error))
        return super().classify(error, released=released) if case is None else case.happen()

    def perform(self, payload: Payload, attempt: Attempt) -> Any:
        with self._lock:
            self.performed[payload.case] += 1
        case = CASES.get(payload.case)
        if case is not None and case.hook == "classify":
            raise ValueError(payload.case)
        if case is not None and case.hook == "apply":
            return Done(apply=lambda connection: self._apply(connection, payload.case))
        case = self._case("perform", payload.case)
        return Done() if case is None else case.happen()

    def _apply(self, connection: Connection, name: str) -> Any:
        case = self._case("apply", name)
        if case is None:
            return None
        value = case.happen()
        if case.name in ("commit", "rollback", "close", "invalidate"):
            getattr(connection, value)()
        return value


class OddObserver(Observer):
    """An observer of the worker's that does as an odd handler."""

    def __init__(self, odd: Odd) -> None:
        self._odd = odd

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if (case := self._odd._case("settled", str(settlement.job.key))) is not None:
                case.happen()


class OddAsync(Odd):
    """The same on the event loop."""

    async def perform(self, payload: Payload, attempt: Attempt) -> Any:
        return super().perform(payload, attempt)


@pytest.fixture
def cases() -> Iterator[Mapping[str, Case]]:
    """The sample by key. It is the process's, because a payload class knows of nothing else."""
    chosen = [*sample(outcome_cases(), SAMPLED_OUTCOMES), *sample(hook_cases(), SAMPLED_HOOKS)]
    CASES.update({f"odd {number}": case for number, case in enumerate(chosen)})
    yield CASES
    CASES.clear()
    WORKING.clear()


def insert(app: Effects, cases: Mapping[str, Case]) -> None:
    """Every fifth or so is a good job. What is about `route` comes by a plain INSERT, which the worker routes."""
    jobs = [
        NewJob(job_type="odd", payload={"case": name}, key=name) for name, case in cases.items() if case.hook != "route"
    ]
    every = max(1, len(jobs) // GOOD_JOBS)
    for number in range(GOOD_JOBS):
        jobs.insert(
            number * (every + 1), NewJob(job_type="odd", payload={"case": f"good {number}"}, key=f"good {number}")
        )
    enqueue_many(jobs, effects=app)
    for name, case in cases.items():
        if case.hook == "route":
            run_sql(
                app,
                "INSERT INTO effects_jobs (job_type, payload) VALUES ('odd', :payload)",
                payload=f'{{"case":"{name}"}}',
            )
    WORKING.set()


def drained(worker: Worker) -> Any:
    """What a drain returns, or what it raised, in a thread of its own: a KeyboardInterrupt there is no Ctrl-C."""
    results: list[Any] = []

    def drain() -> None:
        try:
            results.append(worker.drain(90))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=drain)
    thread.start()
    thread.join(110)
    return results[0] if results else "the worker hangs"


@pytest.mark.parametrize("kind", [Odd, OddAsync])
def test_whatever_a_hook_returns_or_raises_harms_its_own_job_alone(
    app_factory: AppFactory, cases: Mapping[str, Case], kind: type[Odd]
) -> None:
    odd = kind()
    app = app_factory(job_types=[odd], threads=4)
    insert(app, cases)
    result = drained(Worker(app, observers=[OddObserver(odd)]))
    assert getattr(result, "finished", result) is True
    assert result.exit_code in (0, 1)  # 1: a job is dead

    good = [f"good {number}" for number in range(GOOD_JOBS)]
    assert {name: odd.performed[name] for name in good} == dict.fromkeys(good, 1)
    ended = {row["idempotency_key"]: row["status"] for row in rows(app, "job_history")}
    assert {ended.get(name) for name in good} == {"succeeded"}

    attempts = rows(app, "job_attempts")
    with_attempts = {row["job_id"] for row in attempts}
    left = [row for row in [*rows(app, "jobs"), *rows(app, "job_history")] if row["id"] not in with_attempts]
    assert [CASES.get(str(row["idempotency_key"]), row["payload"]) for row in left] == []
    assert {row["outcome"] for row in attempts} <= {
        "succeeded", "failed", "refused", "cancelled", "unknown", "snoozed", "paused",
    }  # fmt: skip
    assert not any("rosebud" in str(row) for row in attempts)
    assert audit(app.store, app.ledgers) == []


def test_an_apply_that_writes_is_rolled_back_with_what_it_wrote(app_factory: AppFactory) -> None:
    """The jobs of one batch: those that failed wrote nothing, the others wrote once."""

    class Writing(JobType[Payload]):
        name = "writing"
        payload = Payload

        def perform(self, payload: Payload, attempt: Attempt) -> Done:
            def apply(connection: Connection) -> None:
                connection.execute(text("INSERT INTO marks VALUES (:name)"), {"name": payload.case})
                if payload.case.startswith("bad"):
                    raise SystemExit(payload.case)

            return Done(apply=apply)

    app = app_factory(job_types=[Writing()])
    run_sql(app, "CREATE TABLE marks (name text)")
    names = [f"{'bad' if number % 5 == 0 else 'fine'} {number}" for number in range(20)]
    enqueue_many([NewJob(job_type="writing", payload={"case": name}, key=name) for name in names], effects=app)
    drained(Worker(app))
    with app.store.read() as connection:
        marks = sorted(connection.execute(text("SELECT name FROM marks")).scalars())
    assert marks == sorted(name for name in names if name.startswith("fine"))
