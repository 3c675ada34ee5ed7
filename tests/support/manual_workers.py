"""A worker driven step by step: each step of a job's life is one call, so that a test chooses the interleaving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text

from effects import Effects, Job, enqueue
from effects.model.decision import decide
from effects.model.job import AttemptId
from effects.model.settlement import AttemptEnd, Execution, Settlement
from effects.store.claim.claim import Claimed, claim
from effects.store.claim.lease import ClaimRequest
from effects.store.queue.liveness import release, rescue
from effects.store.queue.settle import Settled, settle
from effects.store.workers import WorkerIdentity, heartbeat, register

HEARTBEAT_SECONDS = 10.0
LEASE_SECONDS = 120.0


class ManualWorker:
    """One worker on the app's store, registered under its name."""

    def __init__(self, app: Effects, name: str = "manual", *, queue: str = "default") -> None:
        self.app = app
        self.name = name
        self.request = self.request_of(queue)
        register(app.store, WorkerIdentity(name, "host", 1, "0", queue, HEARTBEAT_SECONDS, LEASE_SECONDS))

    def request_of(self, queue: str) -> ClaimRequest:
        limits = {job_type.name: job_type.time_limit_seconds for job_type in self.app.job_types}
        return ClaimRequest(queue, limits)

    def claim_round(self, want: int = 512, *, queue: str | None = None) -> Claimed:
        """One round of the queue, its cursors kept for the next."""
        request = self.request if queue in (None, self.request.queue) else self.request_of(str(queue))
        return claim(self.app.store, request, self.name, want)

    def claim(self, want: int = 512, *, queue: str | None = None) -> list[Job]:
        return self.claim_round(want, queue=queue).jobs

    def claim_one(self, *, queue: str | None = None) -> Job:
        [job] = self.claim(1, queue=queue)
        return job

    def decide(self, job: Job, ending: AttemptEnd, *, released: bool = False) -> Settlement:
        job_type = self.app.job_types.get(job.job_type)
        released = released or job_type.on_unknown == "repeat"
        return decide(job, job_type, ending, released=released, draw=lambda: 0.0)

    def settle(self, *endings: tuple[Job, AttemptEnd], released: bool = False) -> Settled:
        settlements = [self.decide(job, ending, released=released) for job, ending in endings]
        return settle(self.app.store, settlements, self.app.ledgers)

    def release(self, *jobs: Job) -> set[AttemptId]:
        return release(self.app.store, [Execution(job) for job in jobs], self.app.ledgers)

    def heartbeat(self) -> tuple[bool, set[int]]:
        answer = heartbeat(self.app.store, self.name)
        return answer.alive, answer.cancelled

    def rescue(self) -> Settled:
        return rescue(self.app.store, self.app.job_types, self.app.ledgers, LEASE_SECONDS)


def rows(app: Effects, table: str, where: str = "true", **parameters: Any) -> list[dict[str, Any]]:
    """The rows of one of our tables, oldest first, as the database has them."""
    name = getattr(app.store.sql, table)
    with app.store.read() as connection:
        records = connection.execute(text(f"SELECT * FROM {name} WHERE {where} ORDER BY 1, 2"), parameters)
        return [dict(row._mapping) for row in records]


def row(app: Effects, table: str, where: str = "true", **parameters: Any) -> dict[str, Any]:
    """The only such row."""
    [only] = rows(app, table, where, **parameters)
    return only


def run_sql(app: Effects, statement: str, **parameters: Any) -> None:
    """What an operator would type."""
    with app.store.begin() as connection:
        connection.execute(text(statement), parameters)


def all_but_late(app: Effects) -> dict[str, list[dict[str, Any]]]:
    """`everything`, without what attempts keep of outcomes that came too late."""
    contents = everything(app)
    for attempt in contents["job_attempts"]:
        for name in [name for name in attempt if name.startswith("late_")]:
            del attempt[name]
    return contents


def everything(app: Effects) -> dict[str, list[dict[str, Any]]]:
    """All that the core has recorded about jobs: equal before and after means that nothing was changed."""
    tables: Sequence[str] = ("jobs", "job_history", "job_attempts", "effect_ledger")
    contents = {}
    with app.store.read() as connection:
        for table in tables:
            name = getattr(app.store.sql, table)
            answer = connection.exec_driver_sql(f"SELECT * FROM {name} ORDER BY 1, 2")
            contents[table] = [dict(record) for record in answer.mappings()]
    return contents


class LostAttempt:
    """A job whose worker `gone` was declared dead after the release; `next` is there to try it again."""

    def __init__(self, app: Effects, job_type: str, key: str | None, payload: Mapping[str, Any] | None = None) -> None:
        self.app = app
        enqueue(job_type, payload or {}, key=key, effects=app)
        self.gone, self.next = ManualWorker(app, "gone"), ManualWorker(app, "next")
        self.job = self.gone.claim_one()
        self.gone.release(self.job)
        self.lose(self.gone)

    def lose(self, worker: ManualWorker) -> None:
        run_sql(self.app, "UPDATE effects_workers SET ended_at = seen_at WHERE id = :id", id=worker.name)
        run_sql(self.app, "DELETE FROM effects_workers WHERE id = :id", id=worker.name)
        [settlement] = self.next.rescue().accepted
        assert settlement.lost

    def again(self) -> Job:
        """The second attempt begins, on the other worker."""
        run_sql(self.app, f"UPDATE effects_jobs SET run_at = {self.app.store.sql.now}")
        return self.next.claim_one(queue="quarantine")
