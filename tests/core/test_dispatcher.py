"""What a round of the dispatcher asks the database: of queues that are empty, one question for all."""

from __future__ import annotations

from effects import Effects, NewJob, enqueue_many
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.query_plans import recorded
from tests.support.scripted import Scripted

JOBS = 3_000
QUEUES = {"default", "a", "b", "c", "quarantine"}


def app_of_many_queues(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), *(Scripted(f"of_{queue}", queue=queue) for queue in "abc")])


def test_a_drain_of_one_queue_looks_at_no_other_alone(app_factory: AppFactory) -> None:
    """On SQLite every write of a worker is a hint for all its queues; on PostgreSQL its first LISTEN is one."""
    app = app_of_many_queues(app_factory)
    enqueue_many([NewJob(job_type="scripted", payload={"moves": ["none"]}) for _ in range(JOBS)], effects=app)
    with recorded(app) as statements:
        assert Worker(app).drain().counts == {"succeeded": JOBS}
    named = [QUEUES.intersection(values.values() if isinstance(values, dict) else values) for _, values in statements]
    assert set.union(*(queues for queues in named if len(queues) == 1)) == {"default"}
    assert any(len(queues) > 1 for queues in named), "one look at all"


def test_a_hint_without_a_queue_has_idle_ones_looked_at_first(app_factory: AppFactory) -> None:
    queues = Worker(app_of_many_queues(app_factory))._parts.queues
    for queue in queues:
        queue.asked = queue.request.queue == "a"
    queues.notified(None)
    assert all(queue.asked for queue in queues)
    assert {queue.request.queue for queue in queues if not queue.request.polled} == {"a"}


def test_a_hint_with_queues_has_those_claim_at_once(app_factory: AppFactory) -> None:
    queues = Worker(app_of_many_queues(app_factory))._parts.queues
    for queue in queues:
        queue.asked, queue.request.polled = False, True
    queues.notified(["b"])
    assert [queue.request.queue for queue in queues if queue.asked] == ["b"]
    assert [queue.request.queue for queue in queues if not queue.request.polled] == ["b"]
