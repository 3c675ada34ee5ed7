"""The list of jobs: each filter, page after page, and how far a page has searched."""

from __future__ import annotations

from typing import Any

import pytest

from effects import Done, Effects, NewJob, Refused, Retry, enqueue_many
from effects.operate import bulk
from effects.operate.bulk import BulkAction
from effects.operate.tables.job_list import SPAN, Filters, JobPage, count_statuses, list_jobs
from effects.operate.tables.queue_status import read_status
from effects.store.db.sql import Window
from effects.store.effects.requeue import requeue
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, run_sql

NAMED_QUEUES = ("mails", "second")


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory()


def page(app: Effects, **filters: Any) -> JobPage:
    return list_jobs(app.store, app.ledgers, Filters(**filters))


def ids(app: Effects, **filters: Any) -> list[int]:
    return [job.id for job in page(app, **filters).jobs]


def put(app: Effects, count: int = 1, **options: Any) -> list[int]:
    jobs = [NewJob(job_type="scripted", payload={}, **options) for _ in range(count)]
    return [receipt.job_id for receipt in enqueue_many(jobs, effects=app)]


def ended(app: Effects, worker: str, ending: Any, **options: Any) -> int:
    [job_id] = put(app, **options)
    manual_worker = ManualWorker(app, worker)
    manual_worker.settle((manual_worker.claim_one(queue=options.get("queue")), ending))
    return job_id


def test_each_filter_finds_its_jobs(app: Effects) -> None:
    refused = ended(app, "first", Refused("The card_1 was declined", code="card"), key="k", limit_key="peer:1")
    done = ended(app, "second", Done(), queue="mails")
    [waiting] = put(app, limit_key="peer:2", group_key="g")

    assert ids(app) == [waiting, done, refused]
    assert ids(app, status="dead") == ids(app, key="k") == ids(app, error_code="card") == [refused]
    assert ids(app, status="queued") == ids(app, group_key="g") == [waiting]
    assert ids(app, queue="mails") == ids(app, worker="second") == [done]
    assert ids(app, worker="first") == ids(app, limit_key="peer:1") == [refused]
    assert ids(app, limit_keys=("peer:1", "peer:2")) == [waiting, refused]
    assert ids(app, limit_keys=()) == []
    assert ids(app, job_type="scripted", status="succeeded") == [done]


def test_an_error_is_found_by_a_part_and_by_a_word(app: Effects) -> None:
    declined = ended(app, "w", Refused("The card_1 was declined: 100%"))
    assert [ids(app, text=text) for text in ("CARD_1 was", "decl", "0%", "_", "card-1")] == [
        [declined], [declined], [declined], [declined], [],
    ]  # fmt: skip
    assert [ids(app, word=word) for word in ("the", "CARD_1", "declined", "100", "decl", "card", "was_")] == [
        [declined], [declined], [declined], [declined], [], [], [],
    ]  # fmt: skip


def test_a_retry_is_found_by_its_error_while_it_waits(app: Effects) -> None:
    waiting = ended(app, "w", Retry("not now", code="busy"))
    assert ids(app, error_code="busy") == ids(app, word="now") == ids(app, status="failed") == [waiting]


def test_a_worker_is_found_by_the_job_that_it_runs(app: Effects) -> None:
    [running] = put(app)
    ManualWorker(app, "w").claim_one()
    assert ids(app, worker="w") == ids(app, status="running") == [running]


def test_a_key_finds_every_job_of_its_effect(app: Effects) -> None:
    first = ended(app, "w", Refused("no"), key="k")
    second = requeue(app.store, app.job_types, first, actor="ann").job_id
    run_sql(app, "INSERT INTO effects_jobs (job_type, idempotency_key) VALUES ('scripted', 'plain')")
    assert ids(app, key="k") == [second, first]
    assert ids(app, key="k", status="dead") == [first]
    assert len(ids(app, key="plain")) == 1  # in no ledger until a worker has routed it
    assert ids(app, key="none") == []


def test_pages_follow_each_other(app: Effects) -> None:
    ended_ids = [ended(app, f"w{number}", Done()) for number in range(2)]
    newest_first = [*reversed([*ended_ids, *put(app, 3)])]
    seen, before = [], None
    while True:
        part = page(app, limit=2, before=before, job_type="scripted")
        seen += [job.id for job in part.jobs]
        if (before := part.next_before) is None:
            break
    assert seen == newest_first
    assert not part.more


def test_times_are_those_of_creation(app: Effects) -> None:
    [old] = put(app)
    app.store.shift_clock(7200)
    [new] = put(app)
    assert ids(app, window=Window(older=3600)) == [old]
    assert ids(app, window=Window(newer=3600)) == [new]
    assert ids(app, window=Window(older=3600), job_type="other") == []


def test_what_did_not_succeed_is_found_behind_any_number_of_newer_successes(app: Effects) -> None:
    far = 3 * SPAN
    history = "INSERT INTO effects_job_history (id, job_type, status, error_code) VALUES (:id, 'x', :status, :code)"
    for job_id, status, code in (
        (5, "dead", "gone"),
        (6, "cancelled", None),
        (7, "dead", "lost"),
        (far, "succeeded", None),
    ):
        run_sql(app, history, id=job_id, status=status, code=code)
    assert ids(app, status="dead") == [7, 5]
    assert ids(app, status="cancelled") == [6]
    assert ids(app, status="dead", error_code="gone") == [5]
    assert [page(app, status=status).next_before for status in ("dead", "cancelled")] == [None, None]
    with app.store.read() as connection:
        counts = count_statuses(app.store, connection)
    assert {status: count for status, count in counts.items() if count} == {"dead": 2, "cancelled": 1, "succeeded": 1}
    listed = {(count.status, count.jobs) for count in read_status(app.store, 60.0, app.job_types, app.queues).counts}
    assert listed == {("dead", 2), ("cancelled", 1), ("succeeded", 1)}
    action, dead = BulkAction("requeue"), Filters(status="dead", error_code="gone")
    assert bulk.preview(action, dead, effects=app).counted.jobs == 1


def test_a_filtered_page_reports_how_far_it_searched(app: Effects) -> None:
    far = 2 * SPAN + 10
    for job_id in (5, far - 10, far):
        run_sql(app, "INSERT INTO effects_job_history (id, job_type, status) VALUES (:id, 'x', 'dead')", id=job_id)

    first = page(app, job_type="x")
    assert [job.id for job in first.jobs] == [far, far - 10]
    assert (first.searched_to, first.next_before) == (far + 1 - SPAN, far + 1 - SPAN)
    assert first.searched_since == first.jobs[-1].created_at

    second = page(app, job_type="x", before=first.next_before)
    assert (second.jobs, second.next_before, second.searched_since) == ([], far + 1 - 2 * SPAN, first.searched_since)
    third = page(app, job_type="x", before=second.next_before)
    assert ([job.id for job in third.jobs], third.next_before) == ([5], None)
    assert ids(app) == [far, far - 10, 5]  # without a filter there is nothing to search for
