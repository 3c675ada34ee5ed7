"""The oracle of the state machine: who owns what, and what has been said about it. No database here."""

from __future__ import annotations

from dataclasses import dataclass, field

from effects import Job
from effects.model.job import QUARANTINE_QUEUE
from effects.model.ledger import LedgerState, advance, fold
from effects.model.settlement import Settlement, Verdict

LEASE_SECONDS = 120.0
TIME_LIMIT_SECONDS = 330.0


@dataclass
class Ticket:
    """What a worker believes it holds: a claimed job. Nobody tells it when that stops being true."""

    worker: str
    job: Job
    released: bool = False


@dataclass
class ModelJob:
    """One acknowledged job, as it must stand in the database."""

    id: int
    job_type: str
    key: str | None
    group: str | None
    limit: str | None
    run_at: float
    name: str = ""  # in its payload
    status: str = "queued"
    queue: str = "default"
    token: int = 0
    rises: bool = False  # it went back, under a token that the database has drawn
    attempts: int = 0
    lost: int = 0
    unknowns: int = 0
    owner: str | None = None
    claimed_at: float = 0.0
    cancel: bool = False
    state: LedgerState = "intended"
    marked: bool = False  # the running attempt has passed its point of no return
    requeued_from: int | None = None
    holds: bool = True  # its effect's ledger row, where it has a key: until a requeue takes it, or retention
    closed: bool = False  # an operator has resolved it
    repeats: bool = False  # its policy lets an effect be carried out again that may have happened
    vouched: bool = False  # an operator has confirmed its effect
    afresh: bool = False  # it was made to carry out once more what was done: nothing before it counts
    pruned: bool = False
    proved: bool = False  # what was unknown of its attempts has turned out not to be done
    late: dict[int, str] = field(default_factory=dict)  # token → the verdict that came too late
    log: dict[int, tuple[str, Verdict | None]] = field(default_factory=dict)  # token → outcome, verdict
    verdicts: list[Verdict | None] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return self.status in ("queued", "running", "failed")

    @property
    def unbegun(self) -> bool:
        return self.status == "queued" and self.attempts == 0 and not self.log and self.requeued_from is None

    @property
    def unknown(self) -> bool:
        """Ended, and its effect may have happened."""
        said = self.unknowns > 0 and not self.proved if self.key is None else self.holds and self.state == "unknown"
        return not self.live and self.status != "succeeded" and said

    @property
    def open(self) -> bool:
        return not self.closed and not self.pruned and (self.status == "dead" or self.unknown)

    def waits(self, queue: str, clock: float) -> bool:
        return self.status in ("queued", "failed") and self.queue == queue and self.run_at <= clock

    def claimed(self, worker: str, clock: float, token: int) -> None:
        self.status, self.owner, self.claimed_at = "running", worker, clock
        self.raised(token)
        self.attempts += 1
        self.marked = False

    def raised(self, token: int) -> None:
        """Claims and returns raise the token by an unpredictable amount."""
        assert token > self.token
        self.token, self.rises = token, False

    def mark_released(self) -> None:
        self.marked = True
        if self.state in ("intended", "refused", "abandoned"):
            self.state = "released"

    def settled(self, settlement: Settlement, clock: float) -> None:
        """The owner's word, or the rescuer's, is what is recorded."""
        if settlement.outcome:
            self.log[self.token] = (settlement.outcome, settlement.verdict)
        self.attempts -= settlement.refund_attempt
        self.lost += settlement.lost
        self.unknowns += settlement.verdict == "unknown"
        self.status, self.owner, self.marked = settlement.status, None, False
        if settlement.concerns_effect:
            self._learn(settlement.verdict)
        if self.live:
            self._go_back(settlement, clock)
        self._resolve_late()

    def comes_late(self, token: int, settlement: Settlement) -> None:
        """What is said of an attempt that is lost or unknown is kept once."""
        outcome, verdict = self.log.get(token, ("", None))
        says = settlement.outcome and settlement.verdict in ("done", "not_done")
        if says and (outcome == "lost" or verdict == "unknown") and token not in self.late and not self.pruned:
            self.late[token] = str(settlement.verdict)
            self._resolve_late()

    def _resolve_late(self) -> None:
        if not (self.open and self.unknown):
            return
        unknown = [token for token, (_, verdict) in self.log.items() if verdict == "unknown"]
        if "done" in self.late.values():
            self.state, self.vouched, self.closed = "done", True, True
        elif self.requeued_from is None and all(self.late.get(token) == "not_done" for token in unknown):
            self.state, self.proved = "refused", True
            self.verdicts = ["not_done" if verdict == "unknown" else verdict for verdict in self.verdicts]

    def requeued(self, new_id: int, clock: float, *, afresh: bool) -> ModelJob:
        """Its effect, with all that was said of it, is the new job's; one that was done begins afresh."""
        new = ModelJob(new_id, self.job_type, self.key, self.group, self.limit, clock, requeued_from=self.id)
        new.name, new.repeats, new.afresh = self.name, self.repeats, afresh
        new.state = "unknown" if self.state == "unknown" else "intended"
        new.verdicts = list(self.verdicts)
        if self.key is None or afresh:  # without a key there is no row that remembers
            new.state, new.verdicts = "intended", []
        self.holds, self.closed = False, True
        return new

    def cancelled(self) -> None:
        self.status = "cancelled"
        self._learn(None)
        self._resolve_late()

    def _go_back(self, settlement: Settlement, clock: float) -> None:
        self.rises = True
        if not (settlement.refund_attempt and settlement.delay_seconds == 0):
            self.run_at = clock + settlement.delay_seconds
        if settlement.lost:
            self.queue = QUARANTINE_QUEUE
        elif settlement.outcome:
            self.queue, self.lost = "default", 0
        if self.cancel:
            self.cancelled()

    def _learn(self, verdict: Verdict | None) -> None:
        self.verdicts.append(verdict)
        self.state = advance(self.state, verdict, not self.live)
        assert self.state == fold(self.verdicts, ended=not self.live)


@dataclass
class Model:
    """Every acknowledged job and every worker, by the machine's clock."""

    clock: float = 0.0
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)  # registered worker → its last heartbeat
    paused: dict[str, float] = field(default_factory=dict)  # limit key → until when

    def owner_of(self, ticket: Ticket) -> bool:
        job = self.jobs[ticket.job.id]
        return job.status == "running" and job.token == ticket.job.lease_token

    def recorded_as(self, ticket: Ticket, outcome: str) -> bool:
        """This very word was recorded for this very attempt: saying it again is the repeat of a lost answer."""
        if self.jobs[ticket.job.id].pruned:
            return False
        return self.jobs[ticket.job.id].log.get(ticket.job.lease_token, ("", None))[0] == outcome != ""

    @property
    def present(self) -> list[ModelJob]:
        return [job for job in self.jobs.values() if not job.pruned]

    def holder(self, job_type: str, key: str | None) -> ModelJob | None:
        """Whose receipt the next caller with this key gets."""
        named = [job for job in self.jobs.values() if key is not None and (job.job_type, job.key) == (job_type, key)]
        return next((job for job in named if job.holds), None)

    def effect(self, job: ModelJob) -> str:
        """What became of the effect of an ended job: with a key by its row, else by all jobs of this sending."""
        if job.key is not None:
            return "done" if job.status == "succeeded" or job.state == "done" else job.state
        chain = [job]
        while not chain[-1].afresh and (before := chain[-1].requeued_from) is not None:
            chain.append(self.jobs[before])
        if any(link.status == "succeeded" or link.vouched for link in chain):
            return "done"
        lost = any(successor.requeued_from == job.id for successor in self.jobs.values())  # the successor is deleted
        return "unknown" if lost or any(link.unknowns and not link.proved for link in chain) else "not_done"

    def may_be_requeued(self, job: ModelJob, *, confirm_unknown: bool, confirm_done: bool) -> bool:
        if job.live or job.pruned or any(successor.requeued_from == job.id for successor in self.present):
            return False
        if job.key is not None and not job.holds:
            return False
        effect = self.effect(job)
        return (effect != "done" or confirm_done) and (effect != "unknown" or confirm_unknown or job.repeats)

    def prune(self) -> None:
        """Everything that has ended is older than any age."""
        named = {job.requeued_from for job in self.present}
        for job in self.present:
            if not job.live and not job.open and job.id not in named:
                job.pruned, job.holds = True, False

    def heads(self) -> dict[str, int]:
        """Group → its first live job."""
        heads: dict[str, int] = {}
        for job in sorted(self.jobs.values(), key=lambda job: job.id):
            if job.live and job.group is not None:
                heads.setdefault(job.group, job.id)
        return heads

    def claimable(self, queue: str) -> list[ModelJob]:
        heads = self.heads()
        waiting = [
            job
            for job in self.jobs.values()
            if job.waits(queue, self.clock) and not (job.limit is not None and self.is_paused(job.limit))
        ]
        return [job for job in waiting if job.group is None or heads[job.group] == job.id]

    def pause(self, limit: str, seconds: float) -> None:
        """The longest pause holds."""
        self.paused[limit] = max(self.paused.get(limit, 0.0), self.clock + seconds)

    def is_paused(self, limit: str) -> bool:
        return self.paused.get(limit, float("-inf")) > self.clock

    def running(self, limit: str) -> int:
        """Of those whose lease holds: jobs not yet rescued take no capacity."""
        return sum(self.is_leased(job) and job.limit == limit for job in self.jobs.values())

    def is_leased(self, job: ModelJob) -> bool:
        return job.status == "running" and self.clock - job.claimed_at <= TIME_LIMIT_SECONDS

    def lost(self) -> set[int]:
        """Running jobs whose worker is silent or gone, or whose deadline has passed."""
        return {
            job.id
            for job in self.jobs.values()
            if job.status == "running"
            and (
                self.clock - self.seen.get(str(job.owner), float("-inf")) > LEASE_SECONDS
                or self.clock - job.claimed_at > TIME_LIMIT_SECONDS
            )
        }

    def delete_dead_workers(self) -> None:
        """Rescue forgets silent workers that hold nothing."""
        holding = {job.owner for job in self.jobs.values() if job.status == "running"}
        for worker, seen in list(self.seen.items()):
            if self.clock - seen > LEASE_SECONDS and worker not in holding:
                del self.seen[worker]
