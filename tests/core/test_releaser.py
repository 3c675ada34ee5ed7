"""Marks of the point of no return: threads that come while one is written share the next commit."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from effects import Job
from effects.model.settlement import Execution
from effects.worker.machine.runtime import Runtime
from effects.worker.recording.release_batcher import ReleaseBatcher, Released, ReleaseThread
from effects.worker.supervisor import BOUND_SECONDS_MIN, PartFault, Supervisor
from tests.support.staged import STEP_SECONDS, ClockRuntime
from tests.support.waiting import wait_until

THREADS = 20


def execution(number: int) -> Execution:
    job = Job(
        id=number, job_type="x", payload="{}", queue="q", priority=5, attempts=1, max_attempts=None, lease_token=1,
        lost_count=0, unknown_count=0, released=False, routed=True, expired=False, cancel_requested=False,
        age_seconds=0.0,
    )  # fmt: skip
    return Execution(job)


class Marks:
    """Writes marks: the first batch waits until it is let go."""

    def __init__(self, *, refused: frozenset[int] = frozenset(), away: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self._refused, self._away = refused, away

    def __call__(self, executions: list[Execution]) -> Released:
        self.batches.append([execution.job.id for execution in executions])
        self.entered.set()
        assert self.go.wait(20)
        jobs = [execution.job for execution in executions if execution.job.id not in self._refused]
        return Released(set() if self._away else {job.attempt_id for job in jobs}, {})


def released(marks: Marks, threads: ThreadPoolExecutor) -> list[Future[bool]]:
    """One thread comes first; the others while its mark is written."""
    releaser = ReleaseBatcher(marks, Runtime())
    first = threads.submit(releaser.release, execution(0))
    assert marks.entered.wait(20)
    others = [threads.submit(releaser.release, execution(number)) for number in range(1, THREADS)]
    wait_until(lambda: len(releaser._waiting) == THREADS - 1)
    marks.go.set()
    return [first, *others]


def test_concurrent_releases_share_one_commit() -> None:
    marks = Marks()
    with ThreadPoolExecutor(THREADS) as threads:
        assert [future.result(20) for future in released(marks, threads)] == [True] * THREADS
    assert [sorted(batch) for batch in marks.batches] == [[0], list(range(1, THREADS))]


def test_each_attempt_gets_its_own_release() -> None:
    marks = Marks(refused=frozenset({3, 7}))
    with ThreadPoolExecutor(THREADS) as threads:
        answers = [future.result(20) for future in released(marks, threads)]
    assert [number for number, marked in enumerate(answers) if not marked] == [3, 7]


def test_no_attempt_is_released_while_the_database_is_unavailable() -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        assert [future.result(20) for future in released(Marks(away=True), threads)] == [False] * THREADS


def test_releasing_without_a_break_is_no_stall() -> None:
    """The next to release come while the last ones are being released, for longer than one batch may take."""
    runtime, answers, faults = ClockRuntime(), list[bool | Exception](), list[PartFault]()
    supervisor = Supervisor(runtime, failed=faults.append)
    batches = 40

    def mark(executions: list[Execution]) -> Released:
        wait_until(thread.is_alive)  # it is watched only just after its start
        runtime.now += STEP_SECONDS
        supervisor.look()
        [job] = [execution.job for execution in executions]
        if job.id < batches:
            batcher.release_soon(execution(job.id + 1), answers.append)
        return Released({job.attempt_id}, {})

    batcher = ReleaseBatcher(mark, runtime)
    thread = ReleaseThread(batcher, runtime, supervisor, bound_seconds=BOUND_SECONDS_MIN)
    assert asyncio.run(thread.release_async(execution(1)))
    wait_until(lambda: len(answers) == batches - 1)
    thread.stop()
    thread.join(20)
    assert (set(answers), faults) == ({True}, [])
    assert batches * STEP_SECONDS > 2 * BOUND_SECONDS_MIN


def test_a_failed_release_releases_no_attempt_and_blocks_none() -> None:
    entered, go = threading.Event(), threading.Event()

    def mark(executions: list[Execution]) -> Released:
        entered.set()
        assert go.wait(20)
        raise RuntimeError("no")

    releaser = ReleaseBatcher(mark, Runtime())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(releaser.release, execution(0))
        assert entered.wait(20)
        second = threads.submit(releaser.release, execution(1))
        wait_until(lambda: len(releaser._waiting) == 1)
        go.set()
        for future in (first, second):
            with pytest.raises(RuntimeError, match="no"):
                future.result(20)


def test_an_error_of_one_release_reaches_its_own_attempt_alone() -> None:
    failing = {0, 4}  # the one who leads, and one who has another lead for it

    class Failing(Marks):
        def __call__(self, executions: list[Execution]) -> Released:
            marked = super().__call__(executions).marked
            failures = {attempt: KeyError(attempt[0]) for attempt in marked if attempt[0] in failing}
            return Released(marked - failures.keys(), failures)

    with ThreadPoolExecutor(THREADS) as threads:
        futures = released(Failing(), threads)
        errors = {number: future.exception(20) for number, future in enumerate(futures)}
        assert {number: error.args for number, error in errors.items() if error} == {0: (0,), 4: (4,)}
        assert all(future.result(20) for number, future in enumerate(futures) if number not in failing)


def test_those_who_do_not_wait_are_told_their_own_error() -> None:
    answers: dict[int, bool | Exception] = {}
    error = KeyError()
    first, second = execution(1).job.attempt_id, execution(2).job.attempt_id
    batcher = ReleaseBatcher(lambda executions: Released({first}, {second: error}), Runtime())
    for number in (1, 2, 3):
        batcher.release_soon(execution(number), partial(answers.__setitem__, number))
    assert batcher.release_waiting()
    assert answers == {1: True, 2: error, 3: False}
