"""Jobs with a limit key: made, claimed and settled by a manual worker."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from effects import Job, NewJob
from effects.model.settlement import AttemptEnd
from effects.store.queue.settle import Settled, settle
from tests.support.manual_workers import ManualWorker


def limited(key: str, count: int = 1, **options: Any) -> list[NewJob]:
    return [NewJob(job_type="scripted", payload={}, limit_key=key, **options) for _ in range(count)]


def claim_all(manual_worker: ManualWorker) -> list[Job]:
    """Rounds until one lap of all keys brings nothing."""
    jobs: list[Job] = []
    while True:
        claimed = manual_worker.claim_round()
        jobs += claimed.jobs
        if not claimed.jobs and not claimed.more:
            return jobs


def answered(manual_worker: ManualWorker, *endings: tuple[Job, AttemptEnd], took: float = 0.0) -> Settled:
    """Settle attempts that were carried out, in this order, each having taken so long."""
    now = time.monotonic()
    settlements = [
        replace(
            manual_worker.decide(job, ending),
            ended_at_monotonic=now - 0.001 * (len(endings) - n),
            duration_seconds=took,
        )
        for n, (job, ending) in enumerate(endings)
    ]
    return settle(manual_worker.app.store, settlements, manual_worker.app.ledgers, now=now)
