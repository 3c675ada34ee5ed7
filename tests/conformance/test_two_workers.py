"""Goal: two workers on one queue settle every job exactly once.

Method: two real workers, each with an app of its own on the same database, drain 5,000 jobs at the same
time. The handler counts per job in this process; the database's record is compared with that count.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text

from effects import Attempt, Done, JobType, NewJob, enqueue_many
from effects.operate.tables.audit import audit
from effects.worker import DrainResult, Worker
from tests.conftest import AppFactory

JOBS = 5_000


class Count(JobType[dict[str, Any]]):
    """Counts how often each job was performed."""

    name = "count"

    def __init__(self, performed: Counter[int]) -> None:
        self._performed = performed
        self._lock = threading.Lock()

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        with self._lock:
            self._performed[payload["n"]] += 1
        return Done()


@pytest.mark.slow
def test_two_workers_settle_five_thousand_jobs_once_each(app_factory: AppFactory) -> None:
    performed: Counter[int] = Counter()
    apps = [app_factory(job_types=[Count(performed)]) for _ in range(2)]
    enqueue_many([NewJob(job_type="count", payload={"n": n}) for n in range(JOBS)], effects=apps[0])
    results: list[DrainResult] = []
    threads = [threading.Thread(target=lambda app=app: results.append(Worker(app).drain())) for app in apps]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert performed == Counter(range(JOBS))
    assert sum(result.counts.get("succeeded", 0) for result in results) == JOBS
    assert all(result.finished for result in results)
    with apps[0].store.read() as connection:
        recorded = connection.execute(
            text(
                "SELECT count(*), count(DISTINCT h.id), min(h.attempts), max(h.attempts), count(a.job_id) "
                "FROM effects_job_history AS h LEFT JOIN effects_job_attempts AS a ON a.job_id = h.id"
            )
        ).one()
    assert tuple(recorded) == (JOBS, JOBS, 1, 1, JOBS)
    assert audit(apps[0].store, apps[0].ledgers) == []
