"""Keys take turns where a job type asks for it, whosever jobs are older."""

from __future__ import annotations

from collections import Counter

import pytest

from effects import Effects, Job, NewJob, enqueue_many
from effects.model.limits import Rate
from effects.store.limits import key_limits as limit_rows
from effects.worker import Worker
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.worker_queues import planned
from tests.conftest import AppFactory
from tests.support.limited_jobs import limited
from tests.support.manual_workers import ManualWorker
from tests.support.scripted import Scripted


def fair_worker(app: Effects) -> ManualWorker:
    manual_worker = ManualWorker(app)
    manual_worker.request.fair = True
    return manual_worker


def keys(jobs: list[Job]) -> Counter[str | None]:
    return Counter(job.limit_key for job in jobs)


def backlog(app: Effects) -> None:
    """Fifty old jobs of one key, before a few of others and of none."""
    enqueue_many(limited("big", 50), effects=app)
    enqueue_many([*limited("a", 3), *limited("b", 3), *limited("z", 3)], effects=app)
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(3)], effects=app)


@pytest.mark.parametrize("want", [1, 4, 16])
def test_every_key_has_its_turn(app: Effects, want: int) -> None:
    backlog(app)
    manual_worker = fair_worker(app)
    claimed: list[Job] = []
    while len(claimed) < 16:
        claimed += manual_worker.claim(want)
    served = keys(claimed[:16])
    assert served[None] == served["a"] == served["b"] == served["z"] == 3
    assert served["big"] == 4


def test_without_it_the_oldest_goes_first(app: Effects) -> None:
    backlog(app)
    assert keys(ManualWorker(app).claim(16)) == {"big": 16}


def test_priority_goes_before_round_robin(app: Effects) -> None:
    backlog(app)
    enqueue_many(limited("big", 4, priority=1), effects=app)
    first = fair_worker(app).claim(4)
    assert [(job.limit_key, job.priority) for job in first] == [("big", 1)] * 4


def test_a_parents_capacity_is_shared_round_robin(app: Effects) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, "transport", rate=Rate(24, 86_400.0, 6))
        for child in ("big", "small", "tiny"):
            limit_rows.ensure_limit(app.store, connection, child, parent="transport")
    enqueue_many([*limited("big", 50), *limited("small", 9), *limited("tiny", 1)], effects=app)
    assert keys(fair_worker(app).claim(64)) == {"big": 3, "small": 2, "tiny": 1}


def test_a_job_type_asks_for_it(app_factory: AppFactory) -> None:
    fair, plain = Scripted("fair", fair=True, queue="mails"), Scripted("plain")
    app = app_factory(job_types=[fair, plain])
    requests = {request.queue: request for request in planned(app, None, Runtime())}
    assert requests["mails"].fair
    assert not requests["default"].fair
    names = [{"name": "big", "limit": "big"}] * 20 + [{"name": "small", "limit": "small"}] * 2
    enqueue_many([NewJob(job_type="fair", payload=payload) for payload in names], effects=app)
    assert Worker(app, queues={"mails": 1}).drain(max_seconds=60).counts == {"succeeded": 22}
    assert fair.order.index("small") <= 3  # not behind twenty
