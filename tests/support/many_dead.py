"""Many dead letters, each by a worker moved by hand."""

from __future__ import annotations

from typing import Any

from effects import Effects, NewJob, Refused, enqueue_many
from tests.support.manual_workers import ManualWorker


def many_dead(
    app: Effects, count: int, job_type: str = "scripted", ending: Any = None, payload: Any = None, **options: Any
) -> list[int]:
    """So many jobs of this type that ended; by default refused, each with a key of its own.

    Returns:
        Their ids, ascending.
    """
    ending = ending or Refused("no", code="refused")
    new = [
        NewJob(job_type=job_type, payload=payload or {}, key=f"{job_type} {n} {options}", **options)
        for n in range(count)
    ]
    ids = sorted(receipt.job_id for receipt in enqueue_many(new, effects=app))
    manual_worker = ManualWorker(app, f"manual of {ids[0]}")
    left = set(ids)
    while left:
        jobs = [job for job in manual_worker.claim() if job.id in left]
        assert jobs
        manual_worker.settle(*((job, ending) for job in jobs))
        left -= {job.id for job in jobs}
    return ids
