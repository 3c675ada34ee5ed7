"""Workers, zombies, rescue and a moving clock over a real store, against the model of who owns what.

Every rule does one thing to the database and to the model; after each step both must tell the same story.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from sqlalchemy import text

from effects import Cancelled, Done, Effects, Fixed, Pause, Refused, Retry, RetryPolicy, Snooze, Unknown, enqueue
from effects.model.job import QUARANTINE_QUEUE
from effects.model.settlement import AttemptEnd, Returned, Settlement, TimedOut
from effects.retry import OnUnknown
from tests.properties.model import TIME_LIMIT_SECONDS, ModelJob, Ticket
from tests.properties.operators import OperatorMachine
from tests.support.manual_workers import ManualWorker, everything
from tests.support.scripted import Scripted

CAP = 2
POLICY = RetryPolicy(backoff=Fixed(20), max_attempts=4, jitter=0.0)

Contents: TypeAlias = dict[str, list[dict[str, Any]]]

KEYS = st.one_of(st.none(), st.sampled_from(["k1", "k2", "k3"]))
ENDINGS: st.SearchStrategy[AttemptEnd] = st.sampled_from(
    [
        Done(), Retry("busy"), Refused("no"), Unknown("no reply"), Snooze(20.0), Cancelled(), Returned(),
        TimedOut(TIME_LIMIT_SECONDS), Pause(70.0, "429"), Retry("busy", pause_seconds=70.0),
    ]
)  # fmt: skip


def machine_types() -> list[Scripted]:
    """One job type for each policy about the unknown."""
    settings: dict[str, Any] = {"retry": POLICY, "time_limit_seconds": TIME_LIMIT_SECONDS}
    return [
        Scripted("repeat", on_unknown="repeat", **settings),
        Scripted("once", on_unknown="repeat_once", **settings),
        Scripted("hold", on_unknown="hold", **settings),
    ]


class QueueMachine(OperatorMachine):
    """Bound to an app by a subclass (`machine_on`)."""

    workers = Bundle("workers")
    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.manual_workers: dict[str, ManualWorker] = {}
        self.held: list[Ticket] = []
        empty(self.app)

    # -- the app ---------------------------------------------------------------------------------------

    @initialize(target=workers)
    def two_workers_start(self) -> Any:
        return multiple(self.worker_starts(), self.worker_starts())

    @precondition(lambda self: len(self.model.present) < 6)
    @rule(
        job_type=st.sampled_from(["repeat", "once", "hold"]), key=KEYS,
        group=st.one_of(st.none(), st.none(), st.just("g")), limit=st.one_of(st.none(), st.none(), st.just("l")),
        own=st.sampled_from([None, None, "repeat", "repeat_once", "hold"]),
    )  # fmt: skip
    def enqueue(
        self, job_type: str, key: str | None, group: str | None, limit: str | None, own: OnUnknown | None
    ) -> None:
        holder = self.model.holder(job_type, key)
        payload = {"name": holder.name if holder is not None else ""}
        options: dict[str, Any] = {"group_key": group, "limit_key": limit, "on_unknown": own}
        receipt = enqueue(job_type, payload, key=key, **options, effects=self.app)
        assert receipt.existing == (holder is not None)
        if holder is not None:
            assert receipt.job_id == holder.id
            return
        assert receipt.job_id not in self.model.jobs
        job = ModelJob(receipt.job_id, job_type, key, group, limit, self.model.clock)
        job.repeats = (own or job_type) == "repeat"
        self.model.jobs[receipt.job_id] = job

    @precondition(lambda self: any(job.live and job.key is not None for job in self.model.present))
    @rule(data=st.data(), name=st.sampled_from(["second", "third"]))
    def replace(self, data: st.DataObject, name: str) -> None:
        """What was not begun has the new payload and time; what has begun is left."""
        holders = [job for job in self.model.present if job.live and job.key is not None and job.holds]
        holder = holders[data.draw(st.integers(0, len(holders) - 1))] if holders else None
        if holder is None:
            return
        receipt = enqueue(
            holder.job_type, {"name": name}, key=holder.key, group_key=holder.group, on_conflict="replace",
            effects=self.app,
        )  # fmt: skip
        assert (receipt.job_id, receipt.existing, receipt.replaced) == (holder.id, True, holder.unbegun)
        if holder.unbegun:
            holder.name, holder.limit, holder.run_at = name, None, self.model.clock
            holder.repeats = holder.job_type == "repeat"

    # -- the workers -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.manual_workers) < 4)
    @rule(target=workers)
    def worker_starts(self) -> str:
        name = f"w{len(self.manual_workers)}"
        self.manual_workers[name] = ManualWorker(self.app, name)
        self.model.seen[name] = self.model.clock
        return name

    @rule(worker=workers)
    def heartbeat(self, worker: str) -> None:
        alive, cancels = self.manual_workers[worker].heartbeat()
        assert alive == (worker in self.model.seen)
        if alive:
            self.model.seen[worker] = self.model.clock
        owned = [job for job in self.model.jobs.values() if job.owner == worker and job.cancel]
        assert cancels == {job.id for job in owned}

    @rule(worker=consumes(workers))
    def worker_dies(self, worker: str) -> None:
        """It says nothing more; its threads may still wake up and act on what they hold."""

    @rule(target=tickets, worker=workers, queue=st.sampled_from([None, "default", QUARANTINE_QUEUE]))
    def claim(self, worker: str, queue: str | None) -> Any:
        queue = queue or ("default" if self.model.claimable("default") else QUARANTINE_QUEUE)
        expected = self.model.claimable(queue)
        capped = [job.id for job in expected if job.limit is not None]
        free = {job.id for job in expected} - set(capped)
        room = max(0, CAP - self.model.running("l"))
        claimed = {job.id: job for job in self.manual_workers[worker].claim(64, queue=queue)}
        assert free <= claimed.keys() <= free | set(capped)
        assert len(claimed) == len(free) + min(room, len(capped))
        for job_id, job in claimed.items():
            self.model.jobs[job_id].claimed(worker, self.model.clock, job.lease_token)
            assert job.attempts == self.model.jobs[job_id].attempts
            assert self.app.job_types.get(job.job_type).decode(job.payload).name == self.model.jobs[job_id].name
        taken = [Ticket(worker, job) for job in claimed.values()]
        self.held += taken
        return multiple(*taken)

    @rule(ticket=tickets)
    def release(self, ticket: Ticket) -> None:
        """Also late: of an attempt that was rescued, given back or settled long ago; and of one that was cancelled."""
        job = self.model.jobs[ticket.job.id]
        may = self.model.owner_of(ticket) and (job.marked or not job.cancel)
        marked = self.manual_workers[ticket.worker].release(ticket.job)
        assert marked == ({ticket.job.attempt_id} if may else set())
        if may:
            ticket.released = True
            job.mark_released()

    @rule(ticket=tickets, ending=ENDINGS)
    def settle(self, ticket: Ticket, ending: AttemptEnd) -> None:
        """Also late, also twice."""
        manual_worker = self.manual_workers[ticket.worker]
        decision = manual_worker.decide(ticket.job, ending, released=ticket.released)
        owns = self.model.owner_of(ticket)
        settled = manual_worker.settle((ticket.job, ending), released=ticket.released)
        assert bool(settled.accepted) == (owns or self.model.recorded_as(ticket, decision.outcome))
        job = self.model.jobs[ticket.job.id]
        if settled.stale:
            job.comes_late(ticket.job.lease_token, decision)
        if owns:
            job.settled(decision, self.model.clock)
            if job.limit is not None and decision.pause_seconds:
                self.model.pause(job.limit, decision.pause_seconds)

    def _zombies(self) -> list[Ticket]:
        """Tickets of jobs that a newer attempt is running."""
        running = [ticket for ticket in self.held if self.model.jobs[ticket.job.id].status == "running"]
        return [ticket for ticket in running if not self.model.owner_of(ticket)]

    @precondition(lambda self: self._zombies())
    @rule(data=st.data())
    def zombie_releases(self, data: st.DataObject) -> None:
        zombies = self._zombies()
        self.release(zombies[data.draw(st.integers(0, len(zombies) - 1))])

    @precondition(lambda self: self._zombies())
    @rule(data=st.data(), ending=ENDINGS)
    def zombie_settles(self, data: st.DataObject, ending: AttemptEnd) -> None:
        zombies = self._zombies()
        self.settle(zombies[data.draw(st.integers(0, len(zombies) - 1))], ending)

    @rule(worker=workers)
    def rescue(self, worker: str) -> None:
        expected = self.model.lost()
        settled = self.manual_workers[worker].rescue()
        assert {settlement.job.id for settlement in settled.accepted} == expected
        assert settled.stale == []
        for settlement in settled.accepted:
            self._check_rescue(self.model.jobs[settlement.job.id], settlement)
            self.model.jobs[settlement.job.id].settled(settlement, self.model.clock)
        self.model.delete_dead_workers()

    @precondition(lambda self: any(job.status == "running" for job in self.model.jobs.values()))
    @rule(target=tickets, worker=workers)
    def all_others_freeze(self, worker: str) -> Any:
        """For longer than the lease, while this one lives, rescues and takes over."""
        self.time_passes(3)
        self.heartbeat(worker)
        self.rescue(worker)
        return self.claim(worker, QUARANTINE_QUEUE)

    def _check_rescue(self, job: ModelJob, settlement: Settlement) -> None:
        begun = job.marked or job.job_type == "repeat"
        assert settlement.lost
        assert settlement.verdict == ("unknown" if begun else None)
        assert (settlement.job.lease_token, settlement.job.attempts) == (job.token, job.attempts)

    # -- what must hold after every step ---------------------------------------------------------------

    @invariant()
    def the_database_tells_the_models_story(self) -> None:
        contents = everything(self.app)
        self._nothing_lost_and_nothing_twice(contents)
        self._every_job_stands_where_the_model_says(contents)
        self._the_log_holds_the_owners_words_and_no_others(contents)
        states = {effect["job_id"]: effect["state"] for effect in contents["effect_ledger"]}
        assert states == {job.id: job.state for job in self.model.jobs.values() if job.key is not None and job.holds}

    def _nothing_lost_and_nothing_twice(self, contents: Contents) -> None:
        """Jobs are those that were acknowledged, but for old ones; a group runs one at a time; the cap holds."""
        ids = [job["id"] for table in ("jobs", "job_history") for job in contents[table]]
        assert sorted(ids) == sorted(job.id for job in self.model.present)
        running = [job for job in contents["jobs"] if job["status"] == "running"]
        assert sum(job["group_key"] == "g" for job in running) <= 1
        leased = [job for job in running if self.model.is_leased(self.model.jobs[job["id"]])]
        assert sum(job["limit_key"] == "l" for job in leased) <= CAP

    def _every_job_stands_where_the_model_says(self, contents: Contents) -> None:
        for job_row in contents["jobs"] + contents["job_history"]:
            job = self.model.jobs[job_row["id"]]
            assert (job_row["status"], job_row["attempts"], job_row["lost_count"], job_row["unknown_count"]) == (
                job.status, job.attempts, job.lost, job.unknowns,
            )  # fmt: skip
        for job_row in contents["jobs"]:
            job = self.model.jobs[job_row["id"]]
            if job.rises:
                job.raised(job_row["lease_token"])
            assert (job_row["lease_token"], job_row["queue"], bool(job_row["cancel_requested"])) == (
                job.token,
                job.queue,
                job.cancel,
            )
            assert (job_row["released_at"] is not None) == job.marked
            assert job.owner is None or job_row["locked_by"] == job.owner

    def _the_log_holds_the_owners_words_and_no_others(self, contents: Contents) -> None:
        logged = {
            (attempt["job_id"], attempt["lease_token"]): (attempt["outcome"], attempt["verdict"])
            for attempt in contents["job_attempts"]
        }
        said = {(job.id, token): words for job in self.model.present for token, words in job.log.items()}
        assert logged == said


def empty(app: Effects) -> None:
    """As after `effects init`, with one cap; the clock back at now."""
    app.store.shift_clock(-app.store.sql.shift_seconds)
    tables = [
        "jobs",
        "job_history",
        "attempt_log",
        "job_actions",
        "job_groups",
        "unresolved",
        "limits",
        "workers",
        "effect_ledger",
        "pruned",
    ]
    with app.store.begin() as connection:
        for table in tables:
            connection.execute(text(f"DELETE FROM {getattr(app.store.sql, table)}"))
        connection.execute(text(f"INSERT INTO {app.store.sql.limits} (limit_key, max_in_flight) VALUES ('l', {CAP})"))


def machine_on(app: Effects) -> type[QueueMachine]:
    """The machine bound to this app, which must have `machine_types()`."""
    return type("BoundMachine", (QueueMachine,), {"app": app})
