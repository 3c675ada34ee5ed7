"""Threads that a queue keeps for jobs whose key does not fail: many dead peers do not hold up the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from effects import Done, Effects, Job, NewJob, Retry, enqueue_many
from effects.errors import ConfigurationError
from effects.model.limits import Breaker
from effects.model.registry import Registry
from effects.store.claim.claim import PROBES_PER_ROUND
from effects.store.limits import key_limits as limit_rows
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.worker_queues import LocalBound, planned
from tests.conftest import AppFactory
from tests.support.limited_jobs import answered, limited
from tests.support.log_lines import log_lines
from tests.support.manual_workers import ManualWorker
from tests.support.scripted import Scripted

FAILING = ("dead-1", "dead-2", "dead-3")
PATIENT = Breaker(100, 60.0)


def keeping(app: Effects, name: str = "manual") -> ManualWorker:
    manual_worker = ManualWorker(app, name)
    manual_worker.request.threads, manual_worker.request.reserved_threads = 10, 3
    return manual_worker


def keys(jobs: list[Job]) -> Counter[str | None]:
    return Counter(job.limit_key for job in jobs)


def fail_once(app: Effects, manual_worker: ManualWorker) -> None:
    """Three keys whose newest attempt failed, each with a cap of 4 and twenty jobs behind it."""
    with app.store.begin() as connection:
        for key in (*FAILING, "alive"):
            limit_rows.ensure_limit(app.store, connection, key, max_in_flight=4, breaker=PATIENT)
    enqueue_many([job for key in FAILING for job in limited(key, 1)], effects=app)
    answered(manual_worker, *((job, Retry("busy", after_seconds=7200)) for job in manual_worker.claim(16)))
    enqueue_many([job for key in FAILING for job in limited(key, 20)], effects=app)


def test_failing_keys_share_the_unreserved_threads(app: Effects) -> None:
    manual_worker = keeping(app)
    fail_once(app, manual_worker)
    enqueue_many(limited("alive", 20), effects=app)
    first = keys(manual_worker.claim(64))
    assert first.pop("alive") == 4
    assert first.total() == 7
    assert max(first.values()) <= 4
    assert manual_worker.claim(64) == []


def test_an_ended_job_frees_its_slot_for_the_next_failing_key(app: Effects) -> None:
    manual_worker = keeping(app)
    fail_once(app, manual_worker)
    running = manual_worker.claim(64)
    assert len(running) == 7
    answered(manual_worker, *((job, Retry("busy", after_seconds=7200)) for job in running[:2]))
    assert len(manual_worker.claim(64)) == 2


def test_an_answer_ends_a_keys_failing_state(app: Effects) -> None:
    manual_worker = keeping(app)
    fail_once(app, manual_worker)
    running = manual_worker.claim(64)
    well = next(job for job in running if job.limit_key == "dead-1")
    answered(manual_worker, (well, Done()))
    still = [job for job in running if job.limit_key != "dead-1"]
    more = keys(manual_worker.claim(64))
    assert more["dead-1"] == 4 - sum(job.limit_key == "dead-1" and job is not well for job in running)
    assert more["dead-2"] + more["dead-3"] == 7 - len(still)


def test_every_worker_reserves_its_own_threads(app: Effects) -> None:
    first = keeping(app)
    fail_once(app, first)
    assert len(first.claim(64)) == 7
    assert len(keeping(app, "second").claim(64)) == 5  # 12 is the cap of the three


def test_a_group_of_a_failing_key_counts_too(app: Effects) -> None:
    manual_worker = keeping(app)
    fail_once(app, manual_worker)
    running = manual_worker.claim(64)
    grouped = [NewJob(job_type="scripted", payload={}, limit_key=key, group_key=f"g:{key}") for key in FAILING]
    enqueue_many([*grouped, NewJob(job_type="scripted", payload={}, limit_key="alive", group_key="g")], effects=app)
    assert keys(manual_worker.claim(64)) == {"alive": 1}
    answered(manual_worker, (running[0], Retry("busy", after_seconds=7200)))
    assert len(manual_worker.claim(64)) == 1


def silent(manual_worker: ManualWorker, running: list[Job], *names: str) -> None:
    """The worker tells its claims what it has in flight, and that these keys are silent, as it does before each."""
    manual_worker.request.local.update(Counter(job.limit_key for job in running if job.limit_key), set(names))


def capped(app: Effects, **options: Any) -> None:
    """Three keys that will be silent, and one that answers, with twenty jobs behind each."""
    with app.store.begin() as connection:
        for key in (*FAILING, "alive"):
            limit_rows.ensure_limit(app.store, connection, key, max_in_flight=4, **options)
    enqueue_many([job for key in (*FAILING, "alive") for job in limited(key, 20)], effects=app)


@pytest.mark.parametrize("options", [{"breaker": PATIENT}, {}])
def test_silent_keys_share_the_unreserved_threads(app: Effects, options: dict[str, Any]) -> None:
    manual_worker = keeping(app)
    capped(app, **options)
    silent(manual_worker, [], *FAILING)
    first = manual_worker.claim(64)
    taken = keys(first)
    assert taken.pop("alive") == 4
    assert taken.total() == 7
    silent(manual_worker, first, *FAILING)
    assert manual_worker.claim(64) == []
    answered(manual_worker, *((job, Done()) for job in first if job.limit_key == "alive"))
    silent(manual_worker, first, *FAILING)
    assert keys(manual_worker.claim(64)) == {"alive": 4}


def test_silent_and_failing_keys_are_counted_together(app: Effects) -> None:
    manual_worker = keeping(app)
    fail_once(app, manual_worker)
    enqueue_many(limited("mute", 20), effects=app)  # a key without a row: nothing in the database limits it
    silent(manual_worker, [], "mute")
    assert keys(manual_worker.claim(64)).total() == 7


def test_a_silent_key_with_a_parent_counts_too(app: Effects) -> None:
    manual_worker = keeping(app)
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, "all", max_in_flight=100)
        for key in FAILING:
            limit_rows.ensure_limit(app.store, connection, key, max_in_flight=4, parent="all")
    enqueue_many([job for key in FAILING for job in limited(key, 20)], effects=app)
    running = manual_worker.claim(64)
    assert len(running) == 12
    answered(manual_worker, *((job, Done()) for job in running[:4]))
    silent(manual_worker, running[4:], *FAILING)
    assert manual_worker.claim(64) == []  # 8 run; 7 may


def test_a_key_has_no_more_at_a_time_than_its_job_type_says(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    capped(app)
    manual_worker.request.local.bounds = (lambda key: 2 if key == "alive" else None, lambda key: 3)
    first = manual_worker.claim(64)
    assert keys(first) == {**dict.fromkeys(FAILING, 3), "alive": 2}
    silent(manual_worker, first)
    assert manual_worker.claim(64) == []
    answered(manual_worker, *((job, Done()) for job in first if job.limit_key == "alive"))
    silent(manual_worker, [job for job in first if job.limit_key != "alive"])
    assert keys(manual_worker.claim(64)) == {"alive": 2}


def test_keys_that_are_full_here_make_no_round_longer(app: Effects) -> None:
    manual_worker = keeping(app)
    names = [f"a{number}" for number in range(2 * PROBES_PER_ROUND)]
    enqueue_many([job for key in (*names, "z") for job in limited(key, 2)], effects=app)
    manual_worker.request.local.update(dict.fromkeys(names, 1), set(names))
    first = manual_worker.claim_round(64)
    assert keys(first.jobs) == {"z": 2}
    assert not first.more
    manual_worker.request.local.update({}, set())
    rounds = [manual_worker.claim_round(512) for _ in range(4)]
    assert keys([job for round_ in rounds for job in round_.jobs]) == dict.fromkeys(names, 2)


def test_groups_have_no_more_of_their_key_than_the_job_type_says(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    jobs = [NewJob(job_type="scripted", payload={}, limit_key="k", group_key=f"g:{number}") for number in range(4)]
    enqueue_many(jobs, effects=app)
    manual_worker.request.local.bounds = (lambda key: 2,)
    first = manual_worker.claim(64)
    assert len(first) == 2
    silent(manual_worker, first)
    assert manual_worker.claim(64) == []


def test_a_bound_of_none_for_now_is_asked_again(app: Effects) -> None:
    manual_worker = keeping(app)
    enqueue_many([job for key in ("open", "shut") for job in limited(key, 2)], effects=app)
    shut = {"shut"}
    manual_worker.request.local.bounds = (lambda key: 0 if key in shut else None,)
    assert keys(manual_worker.claim(64)) == {"open": 2}
    manual_worker.request.local.update({}, set())
    assert manual_worker.claim(64) == []
    shut.clear()
    manual_worker.request.local.update({}, set())
    assert keys(manual_worker.claim(64)) == {"shut": 2}
    assert LocalBound(ShutForNow("scripted"), Runtime())("shut") == 0


class ShutForNow(Scripted):
    def max_in_flight(self, limit_key: str) -> int:
        return 0


def test_a_bound_that_fails_is_logged_and_bounds_nothing() -> None:
    class Wrong(Scripted):
        def max_in_flight(self, limit_key: str) -> Any:
            if limit_key == "raises":
                raise ValueError(limit_key)
            return "many"

    with log_lines("effects.worker") as log:
        assert LocalBound(Wrong("scripted"), Runtime())("raises") is None
        assert LocalBound(Wrong("scripted"), Runtime())("k") is None
    text = "".join(log.lines)
    assert "scripted: max_in_flight: ValueError" in text
    assert "max_in_flight returned a str; give a count, or None" in text


def test_a_job_types_bound_holds_in_its_queue_alone(app_factory: AppFactory) -> None:
    class Careful(Scripted):
        failing_after_seconds = 2.0

        def max_in_flight(self, limit_key: str) -> int:
            return 2

    app = app_factory(job_types=[Careful("calls", queue="calls"), Scripted("plain")])
    local = {request.queue: request.local for request in planned(app, {"calls": 10, "default": 10}, Runtime())}
    assert (local["calls"].failing_after_seconds, local["calls"].free_slots("k", 5)) == (2.0, 2)
    assert (local["default"].failing_after_seconds, local["default"].free_slots("k", 5)) == (None, 5)


def test_a_queue_without_reserved_threads_treats_all_keys_alike(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    fail_once(app, manual_worker)
    assert keys(manual_worker.claim(64)) == dict.fromkeys(FAILING, 4)


def test_a_job_type_asks_for_it(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted("calls", reserved_share=0.3, queue="calls"), Scripted("plain")])
    reserved = {
        request.queue: request.reserved_threads for request in planned(app, {"calls": 10, "default": 10}, Runtime())
    }
    assert (reserved["calls"], reserved["default"]) == (3, 0)
    [request, _] = planned(app, {"calls": 1}, Runtime(), housekeeping=False)
    assert request.reserved_threads == 0  # never the only thread


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_an_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="reserved_share"):
        Registry([Scripted("calls", reserved_share=share)])
