"""How much a queue claims ahead, by how long its attempts take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection

from effects import Effects, Job, enqueue
from effects.errors import LeaseLost
from effects.model.settlement import Execution
from effects.store.claim.lease import CLAIM_MAX, ClaimRequest
from effects.worker import Worker
from effects.worker.machine.runtime import Runtime
from effects.worker.queues import queue_threads
from effects.worker.queues.queue_threads import AHEAD_MAX, LOADED_AHEAD_MAX, FullScans, QueueInFlight, QueueThreads
from effects.worker.queues.worker_queues import planned
from effects.worker.supervisor import PartFault
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker
from tests.support.sample_jobs import job
from tests.support.scripted import AsyncScripted, Script, Scripted
from tests.support.staged import ClockRuntime
from tests.support.waiting import wait_until
from tests.support.worker_parts import KeptSettlements, attempt_of, context_of

THREADS = 10
ATTEMPTS = 1_000
LIMIT, SLACK = 300.0, 60.0
NO_LOOP: Any = None  # no attempt here is async


def threads_of(seconds: float | None, *, at_hand: int = 0, prefetch: int = AHEAD_MAX) -> QueueThreads:
    """A queue whose attempts take so long, with so many jobs that no thread has begun. Its threads do not run."""
    nothing: Any = None
    request = ClaimRequest(queue="q", lease_seconds={}, threads=THREADS)
    queue = QueueThreads(context_of(), request, NO_LOOP, nothing, threads=THREADS, prefetch=prefetch)
    if seconds is not None:
        queue._learn(seconds)
    for _ in range(at_hand):
        queue._buffer.put(nothing)
    return queue


@pytest.mark.parametrize(
    ("seconds", "at_hand", "free"),
    [
        (None, 0, THREADS),  # nothing is known yet
        (2.0, 0, THREADS + 5),  # a second's work
        (0.01, 0, THREADS + 1000),
        (0.05, 0, THREADS + 200),
        (0.05, 21, 0),  # more than a tenth of a second's work
        (0.05, 20, THREADS + 180),
        (0.000_01, CLAIM_MAX + 1, 0),  # however quick they are: more than a whole claim is held
        (0.000_01, CLAIM_MAX, THREADS + CLAIM_MAX),
    ],
)
def test_a_queue_claims_a_second_of_work_when_a_tenth_is_left(seconds: float | None, at_hand: int, free: int) -> None:
    assert threads_of(seconds, at_hand=at_hand).free_slots() == free


def test_a_queue_holds_no_more_than_two_claims() -> None:
    assert threads_of(0.000_01).free_slots() - THREADS == 2 * CLAIM_MAX


def test_the_larger_payloads_are_the_fewer_jobs_are_claimed_ahead() -> None:
    """Of 64 KiB each, two whole claims would be 128 MiB, and as much again once they are decoded."""
    queue = threads_of(0.000_01)
    queue.learn_size([job(payload="x" * 60_000), job(payload="x" * 68_000)])
    assert queue.free_slots() - THREADS == 8_000_000 // 64_000
    queue.learn_size([])
    assert queue.free_slots() - THREADS == 8_000_000 // 64_000, "a claim of nothing says nothing of sizes"
    queue.learn_size([job(payload="{}")])
    assert queue.free_slots() - THREADS < 2 * 8_000_000 // 64_000, "a claim of small ones forgets large ones slowly"


def test_a_queue_whose_jobs_load_more_than_they_carry_holds_fewer(app_factory: AppFactory) -> None:
    class Loading(Scripted):
        def load(self, connection: Connection, jobs: Sequence[tuple[Job, Script]]) -> Mapping[int, object]:
            return {}

    app = app_factory(job_types=[Scripted(), Loading("loading", queue="mail")])
    held = {queue.request.queue: queue._prefetch for queue in Worker(app)._parts.queues}
    assert (held["default"], held["mail"], held["quarantine"]) == (AHEAD_MAX, LOADED_AHEAD_MAX, 0)


@pytest.mark.parametrize(("at_hand", "free_slots"), [(0, THREADS + 40), (20, THREADS + 20), (21, 0)])
def test_where_a_key_waits_for_tokens_little_is_claimed_and_often(at_hand: int, free_slots: int) -> None:
    queue = threads_of(0.05, at_hand=at_hand)
    queue.rate_limited = True
    assert queue.free_slots() == free_slots


def test_a_queue_without_prefetch_claims_for_free_threads_alone() -> None:
    assert threads_of(0.05, prefetch=0).free_slots() == THREADS


class SlowToCount(SimpleQueue[Any]):
    """A buffer in which the next attempt is put just after a thread has seen that there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.counted, self.put_next = Event(), Event()

    def qsize(self) -> int:
        count = super().qsize()
        if count == 0 and current_thread().name == "worker" and not self.counted.is_set():
            self.counted.set()
            assert self.put_next.wait(10)
        return count


def test_an_attempt_that_comes_while_the_last_thread_ends_has_another_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_threads, "REST_SECONDS", 0.0)
    queue = threads_of(None)
    buffer = queue._buffer = SlowToCount()
    started = list[str]()
    supervisor: Any = SimpleNamespace(watch=lambda name: name, start=lambda watch, work: started.append(watch))
    queue.start(supervisor)
    queue.threads = queue._alive = 1
    thread = Thread(target=queue._next, name="worker")
    thread.start()
    assert buffer.counted.wait(10)
    attempt: Any = object()
    queue._open.add(attempt)
    holding = Thread(target=queue._hold, args=[attempt])
    holding.start()
    wait_until(lambda: SimpleQueue.qsize(buffer) == 1)
    buffer.put_next.set()
    thread.join()
    holding.join()
    assert (len(started), queue._alive) == (1, 1)


def test_no_attempt_waits_for_a_thread_that_has_just_ended(
    app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads with no idle time end between any two attempts, while the next one is put before them."""
    monkeypatch.setattr(queue_threads, "REST_SECONDS", 0.0)
    job_type = Scripted()
    app, runtime = app_factory(job_types=[job_type]), Runtime()
    kept = KeptSettlements()
    enqueue("scripted", {}, effects=app)
    job = ManualWorker(app).claim_one()
    faults: list[PartFault] = []
    context = context_of(app, runtime, faults)
    request = ClaimRequest("default", {"scripted": LIMIT + SLACK})
    queue = QueueThreads(context, request, NO_LOOP, kept, threads=3, prefetch=AHEAD_MAX)
    queue.start(context.supervisor)
    now = runtime.monotonic()
    for _ in range(ATTEMPTS):
        attempt = attempt_of(Execution(job, Script()), job_type)
        queue.accept(attempt, claimed_at=now, leased_at=runtime.lease_clock())
    wait_until(lambda: len(kept.settlements) == ATTEMPTS)
    queue.close()
    assert (len(kept.settlements), faults) == (ATTEMPTS, [])


class MovedRuntime(Runtime):
    """A host whose lease clock the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lease_clock = lambda: self.now


@pytest.mark.parametrize(("waited", "performed"), [(0.0, 1), (SLACK, 1), (SLACK + 1, 0), (LIMIT * 10, 0)])
def test_a_prefetched_job_starts_only_while_its_lease_outlasts_its_time_limit(
    app_factory: AppFactory, waited: float, performed: int
) -> None:
    """No statement checks the fence of a type that repeats before it starts, so the time decides. Else it goes back."""
    job_type = Scripted(on_unknown="repeat", time_limit_seconds=LIMIT)
    app: Effects = app_factory(job_types=[job_type])
    enqueue("scripted", {}, effects=app)
    job = ManualWorker(app).claim_one()
    runtime, kept = MovedRuntime(), KeptSettlements()
    context, request = context_of(app, runtime), ClaimRequest("default", {"scripted": LIMIT + SLACK})
    queue = QueueThreads(context, request, NO_LOOP, kept, threads=1, prefetch=AHEAD_MAX)
    attempt = attempt_of(Execution(job, Script()), job_type)
    queue.accept(attempt, claimed_at=runtime.monotonic(), leased_at=runtime.now)
    runtime.now += waited
    context.lease.renewed_at = runtime.now  # the worker's own lease is valid
    queue._carry_out(attempt)
    [settlement] = kept.settlements
    assert job_type.performed[""] == performed
    assert (settlement.status, settlement.refund_attempt) == (("succeeded", False) if performed else ("queued", True))
    assert not queue.open


class Bench:
    """A queue of one thread with one attempt, which is past its time limit, and given up."""

    def __init__(self, app_factory: AppFactory, move: str) -> None:
        self.scripted = Scripted(time_limit_seconds=LIMIT, on_unknown="hold")
        app = app_factory(job_types=[self.scripted])
        enqueue("scripted", {"moves": [move]}, effects=app)
        self.runtime, self.asked, self.answer = ClockRuntime(), Event(), Event()
        kept, context = KeptSettlements(), context_of(app, self.runtime)
        self.settled = kept.settlements
        request = ClaimRequest("default", {"scripted": LIMIT + SLACK})
        self.queue = QueueThreads(context, request, NO_LOOP, kept, threads=1, prefetch=AHEAD_MAX)
        self.queue.start(context.supervisor)
        execution = Execution(ManualWorker(app).claim_one(), Script([move]))
        self.attempt = attempt_of(execution, self.scripted, release=self.release, runtime=self.runtime)
        self.queue.accept(self.attempt, claimed_at=self.runtime.now, leased_at=self.runtime.now)

    def release(self, execution: Execution) -> bool:
        """As while the database is away: the answer comes late, and is no."""
        self.asked.set()
        assert self.answer.wait(30)
        return False

    def give_up(self) -> None:
        self.runtime.now += LIMIT + 1
        self.queue.give_up_overdue()
        assert [type(settlement.execution.outcome).__name__ for settlement in self.settled] == ["TimedOut"]

    def close(self) -> None:
        self.answer.set()
        self.scripted.gate.set()
        self.queue.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_thread_that_waits_for_its_release_does_not_hang(app_factory: AppFactory) -> None:
    """However long the database is away: it comes back when we do."""
    bench = Bench(app_factory, "release")
    assert bench.asked.wait(30)
    bench.give_up()
    bench.runtime.now += 1000
    assert bench.queue.hanging == []
    bench.answer.set()
    wait_until(lambda: not bench.queue._given_up)
    wait_until(lambda: [settlement.outcome for settlement in bench.settled] == ["timed_out", "failed"])
    bench.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_thread_hangs_until_its_handler_comes_back(app_factory: AppFactory) -> None:
    bench = Bench(app_factory, "wait")
    assert bench.scripted.began.wait(30)
    bench.give_up()
    assert bench.queue.hanging == [bench.attempt]
    bench.scripted.gate.set()
    wait_until(lambda: not bench.queue.hanging)
    bench.close()


def test_a_handler_that_keeps_on_after_a_refused_release_hangs(app_factory: AppFactory) -> None:
    bench = Bench(app_factory, "wait")
    assert bench.scripted.began.wait(30)
    bench.answer.set()
    with pytest.raises(LeaseLost):
        bench.attempt.release()
    bench.give_up()
    assert bench.queue.hanging == [bench.attempt]
    bench.close()


SLOTS = 1024


def in_flight(seconds: float | None, open_attempts: int) -> tuple[QueueInFlight, ClockRuntime]:
    """An async queue whose attempts take so long, with so many of them in flight."""
    nothing: Any = None
    runtime = ClockRuntime()
    request = ClaimRequest(queue="q", lease_seconds={}, threads=SLOTS)
    queue = QueueInFlight(context_of(runtime=runtime), request, NO_LOOP, nothing, threads=THREADS)
    if seconds is not None:
        queue._learn(seconds)
    queue._open = set(range(open_attempts))  # type: ignore[arg-type]
    return queue, runtime


@pytest.mark.parametrize(
    ("seconds", "open_attempts", "at_once", "later"),
    [
        (None, 0, SLOTS, SLOTS),
        (None, 1000, 24, 24),  # nothing is known of how long they take
        (0.2, 0, SLOTS, SLOTS),
        (0.2, SLOTS - 64, 64, 64),
        (0.2, SLOTS - 63, 0, 63),  # so many come free in a moment that a claim of 63 is not worth it, but no longer
        (60.0, SLOTS - 1, 1, 1),
        (0.2, SLOTS, 0, 0),
    ],
)
def test_an_async_queue_claims_what_is_free_in_flight(
    seconds: float | None, open_attempts: int, at_once: int, later: int
) -> None:
    queue, runtime = in_flight(seconds, open_attempts)
    assert queue.free_slots() == at_once
    runtime.now += queue_threads.BATCH_SECONDS
    assert queue.free_slots() == later


class Begun:
    """An attempt that began then, of a key of its own."""

    def __init__(self, number: int, started: float) -> None:
        self.job, self.started = SimpleNamespace(limit_key=f"k{number}"), started


def running_since(queue: QueueInFlight, starts: list[float]) -> None:
    """The queue has attempts that began at these moments."""
    attempts: list[Any] = [Begun(number, started) for number, started in enumerate(starts)]
    queue._running, queue._open = dict.fromkeys(attempts, True), set(attempts)


def silent_after_a_second(open_attempts: int, age_seconds: float) -> tuple[QueueInFlight, ClockRuntime]:
    queue, runtime = in_flight(None, 0)
    queue.request.reserved_threads, queue.request.local.failing_after_seconds = 700, 1.0
    running_since(queue, [runtime.now - age_seconds] * open_attempts)
    return queue, runtime


@pytest.mark.parametrize(
    ("open_attempts", "age_seconds", "free"),
    [
        (SLOTS, 0.5, 0),
        (SLOTS, 1.0, 700),  # all but the 324 that failing keys may have
        (SLOTS + 700, 1.0, 0),  # never more than that besides
        (324, 1.0, 700),
        (300, 1.0, 724),
    ],
)
def test_silent_attempts_give_up_their_slots_beyond_the_share_of_failing_keys(
    open_attempts: int, age_seconds: float, free: int
) -> None:
    queue, _ = silent_after_a_second(open_attempts, age_seconds)
    assert queue.free_slots() == free
    assert queue.saturated == (free == 0)


def test_a_full_queue_looks_again_when_the_next_attempt_turns_silent() -> None:
    queue, runtime = silent_after_a_second(SLOTS, 0.25)
    assert queue.free_slots() == 0
    assert queue.look_at == runtime.now + 0.75


def test_a_claim_knows_what_is_in_flight_of_each_key_and_what_is_silent() -> None:
    queue, runtime = silent_after_a_second(0, 0.0)
    running_since(queue, [runtime.now - 2.0, runtime.now - 0.5])
    queue.update_keys()
    assert queue.request.local.in_flight == {"k0": 1, "k1": 1}
    assert queue.request.local.silent == {"k0"}


def test_the_number_of_a_queue_goes_by_the_kind_of_its_job_types(app_factory: AppFactory) -> None:
    app = app_factory(
        job_types=[
            AsyncScripted("one"), AsyncScripted("two", queue="both"), Scripted("three", queue="both"),
            AsyncScripted("four", queue="few"),
        ],
        queues="few=5", threads=7,
    )  # fmt: skip
    slots = {request.queue: request.threads for request in planned(app, None, Runtime())}
    assert [slots[queue] for queue in ("async", "both", "few", "default", "quarantine")] == [1024, 7, 5, 7, 1]
    assert app.job_types.async_queues() & set(slots) - {"webhooks"} == {"async", "few"}


def test_a_slow_look_at_all_jobs_is_repeated_in_a_twentieth_of_the_time() -> None:
    looks = FullScans()
    assert looks.is_due(0.0)
    looks.note(began=100.0, ended=100.04)
    assert looks.is_due(100.04)
    looks.note(began=100.0, ended=101.0)
    assert not looks.is_due(120.9)
    assert looks.is_due(121.0)


def test_where_a_shorter_look_gains_nothing_all_jobs_are_looked_at_again() -> None:
    looks = FullScans()
    looks.note(began=100.0, ended=100.06)  # the database is far away
    assert not looks.is_due(100.1)
    looks.note_shorter(began=101.0, ended=101.05)
    assert looks.is_due(101.05)
    looks.note(began=102.0, ended=102.1)
    assert looks.is_due(102.1)
    looks.note(began=103.0, ended=103.5)  # a snapshot is held besides
    looks.note_shorter(began=104.0, ended=104.06)
    assert not looks.is_due(104.1)


def test_what_counts_as_slow_is_forgotten_with_the_reason() -> None:
    looks = FullScans()
    looks.note(began=0.0, ended=0.2)
    looks.note_shorter(began=1.0, ended=1.2)
    looks.note(began=2.0, ended=2.01)
    looks.note(began=3.0, ended=3.06)
    assert not looks.is_due(3.1)
