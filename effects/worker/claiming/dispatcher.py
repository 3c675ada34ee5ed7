"""The dispatcher: claims for the queues that have free slots, and rests until there is a reason to look again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy.exc import DBAPIError

from effects.errors import StoreRejected, StoreUnavailable
from effects.kit.logs import own_logger
from effects.model.decision import decide
from effects.model.settlement import Returned, Settlement
from effects.store.claim.claim import Claimed, looks_first, quiet_queues
from effects.store.claim.invalid_rows import claim_valid, end_due
from effects.store.claim.lease import ClaimRequest, lease_and_undo
from effects.store.db.faults import Fault
from effects.store.queue.liveness import is_running_elsewhere, leased_to
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.claiming.batch_loader import BatchLoader
from effects.worker.context import WorkerContext
from effects.worker.queues.queue_threads import QueueThreads
from effects.worker.queues.worker_queues import WorkerQueues
from effects.worker.recording.failover_evidence import FailoverEvidence
from effects.worker.recording.observers import RetryTimes
from effects.worker.recording.settler import Settler
from effects.worker.upkeep.heartbeat import Heartbeat

TOKEN_SECONDS_MIN = 0.05  # tokens of a rate are claimed in batches: no claim for each that comes
SCAN_SHARE = 0.01  # of the time, for looking through groups that all wait
TOKEN_SECONDS_DRAIN = 5.0  # a drain waits for tokens that come within this
LOOK_AGAIN_SECONDS = 0.05  # while a heartbeat is late
UNWRITTEN_SECONDS = 0.05  # between two looks whether too many outcomes wait to be written
ENQUEUER_SECONDS = 0.2  # between two looks whether another worker's job enqueues what is to be done here

_log = own_logger("effects.worker")


class _HeldJobs:
    """What this worker has in its hands. Attempts first: what leaves the queues is known to the settler before."""

    def __init__(self, queues: WorkerQueues, settler: Settler) -> None:
        self._queues, self._settler = queues, settler

    @property
    def attempts(self) -> list[RunningAttempt]:
        """Begun or not."""
        return self._queues.open

    @property
    def unwritten(self) -> Collection[Settlement]:
        return self._settler.unwritten

    def ids(self) -> set[int]:
        """Of all these jobs, and of those whose outcome cannot be written: they were carried out."""
        open_ids = {attempt.job.id for attempt in self.attempts}
        return open_ids | {settlement.job.id for settlement in self.unwritten} | set(self._settler.unwritable)


class Claimer:
    """Claims until the database answers.

    A claim whose COMMIT had no response may have leased jobs without our knowledge. They are returned before the next
    claim; left alone, they would be found when their time limit has passed, and run in quarantine, one by one.

    Args:
        settler: takes the settlements of the jobs that go back.
        evidence: is compared before a claim where commits may have been lost.
    """

    def __init__(
        self, context: WorkerContext, queues: WorkerQueues, settler: Settler, evidence: FailoverEvidence
    ) -> None:
        self._context, self._outage, self._store = context, context.outage, context.store
        self._queues, self._settler, self._evidence = queues, settler, evidence
        self._held = _HeldJobs(queues, settler)
        self._leases: dict[str, Mapping[str, float]] = {}  # by queue, of all job types
        self._unanswered = False

    def claim(self, request: ClaimRequest, worker: str, free_slots: int) -> Claimed | None:
        """Claim up to `free_slots` jobs; None if the worker gave up. Called by one thread only."""
        try:
            return self._outage.retry_until_available(
                lambda: self._try(request, worker, free_slots), give_up=self._context.gives_up, passing={Fault.LOST}
            )
        except StoreRejected:
            return Claimed([], more=self._end_lost(request, worker))

    def _end_lost(self, request: ClaimRequest, worker: str) -> bool:
        """End the rows at which claims lose their connection; whether there was one."""

        def trial(ids: Sequence[int]) -> Exception | None:
            try:
                return self._outage.retry_until_available(
                    lambda: lease_and_undo(self._store, request, worker, ids),
                    give_up=self._context.gives_up, passing={Fault.LOST},
                )  # fmt: skip
            except StoreRejected as error:
                return error

        try:
            return bool(end_due(self._store, self._context.ledgers, request, trial))
        except StoreUnavailable as error:
            self._outage.began(error)
            return False
        except (StoreRejected, DBAPIError) as error:
            _log.error("claim.failed", extra={"queue": request.queue, "error": type(error).__name__})
            return False

    def looks_first(self, request: ClaimRequest) -> bool:
        """Whether a claim would look before it takes; one with keys looks for those first."""
        return not request.keyed and looks_first(self._store, request)

    def quiet_queues(self, requests: Sequence[ClaimRequest]) -> set[str] | None:
        """Queues in which there is nothing to claim; None if the worker gave up."""
        return self._outage.retry_until_available(
            lambda: quiet_queues(self._store, requests), give_up=self._context.gives_up
        )

    def compare(self, worker: str) -> None:
        """Compare what this worker remembers with the database, if there is a reason to."""
        if self._evidence.is_due:
            self._outage.retry_until_available(
                lambda: self._evidence.compare(worker, self._held), give_up=self._context.gives_up
            )

    def _try(self, request: ClaimRequest, worker: str, free_slots: int) -> Claimed:
        if self._evidence.is_due and not self._evidence.compare(worker, self._held):
            return Claimed([], more=False)  # until the heartbeat has registered this worker again
        if self._unanswered:
            self.give_back(worker)
        was_closed = self._evidence.gate_closed
        request.lease_seconds = self._evidence.permitted(self._leases.setdefault(request.queue, request.lease_seconds))
        if was_closed and not self._evidence.gate_closed:
            self._queues.poll()
        self._unanswered = True
        claimed = claim_valid(self._store, self._context.ledgers, request, worker, free_slots)
        self._unanswered = False
        self._evidence.claimed(claimed.jobs)
        return claimed

    def give_back(self, worker: str) -> None:
        """Return jobs that are leased to this worker but unknown to it: they were never started.

        One whose attempt is remembered was: a failover has lost what was recorded of it, since the last comparison.
        """
        held, job_types = self._held.ids(), self._context.job_types  # first: what is settled meanwhile runs no longer
        with self._store.read() as connection:
            leased = leased_to(self._store, connection, worker, job_types, held)
        remembered = self._evidence.remembered([job.attempt_id for job in leased]) if leased else set()
        if remembered:
            self._evidence.suspect()
        jobs = [job for job in leased if job.attempt_id not in remembered]
        for job in jobs:
            self._settler.add(decide(job, job_types.get(job.job_type), Returned(), released=False))
        if jobs:
            _log.warning("claim.given_back", extra={"jobs": len(jobs)})


class Dispatcher:
    """Runs in the thread that called the worker's `run` or `drain`; the only one that claims."""

    def __init__(
        self,
        context: WorkerContext,
        queues: WorkerQueues,
        claimer: Claimer,
        loader: BatchLoader,
        settler: Settler,
        heartbeat: Heartbeat,
        retries: RetryTimes,
    ) -> None:
        self._context, self._queues, self._claimer, self._loader = context, queues, claimer, loader
        self._settler, self._heartbeat, self._retries = settler, heartbeat, retries
        self._supervisor, self._lease, self._wake = context.supervisor, context.lease, context.wake
        self._stopping, self._poll_seconds = context.stopping, context.settings.poll_seconds
        runtime = context.runtime
        self._now, self._lease_clock, self._random = runtime.monotonic, runtime.lease_clock, runtime.random
        self._looked = True  # the last round claimed for every queue that had free slots
        self._enqueuers = sorted(
            job_type.name for job_type in context.job_types if job_type.enqueues_more and job_type.queue in queues.names
        )

    def _came_round(self) -> None:
        self._supervisor.came_round()
        self._supervisor.check()

    def round(self) -> bool:
        """Claim for every queue that has free slots; whether anything was claimed or remains to be looked at."""
        claimed, remains = self._round()
        return claimed or remains

    def sees_nothing(self) -> bool:
        """Whether one look at all queues, before anything was claimed, shows that there is nothing to do."""
        self._pass_over_quiet(self._free_slots())
        return not any(queue.asked for queue in self._queues) and not self._await_enqueuers()

    def nothing_due(self) -> bool:
        """Whether all due jobs are done and no more are due, nor about to be enqueued.

        While the worker's own lease may be invalid it claims nothing, and so cannot tell.
        """
        nothing = not self.round() and self.all_settled() and not self.round_everywhere() and not self.await_token()
        if nothing and not self._looked:
            self._wake.wait(LOOK_AGAIN_SECONDS)
            self._queues.poll()
        if not nothing or not self._looked:
            return False
        if self._await_enqueuers():
            self._queues.poll()
            return False
        return True

    def _await_enqueuers(self) -> bool:
        """Wait a moment if another worker runs a job whose type `enqueues_more`; False without one, or if the database
        does not say.
        """
        try:
            awaits = bool(self._enqueuers) and is_running_elsewhere(
                self._context.store, self._enqueuers, self._context.settings.lease_seconds
            )
        except (StoreUnavailable, StoreRejected):
            return False
        if awaits:
            self._wake.wait(ENQUEUER_SECONDS)
        return awaits

    def round_everywhere(self) -> bool:
        """Look at all that any queue may have; whether anything was claimed.

        It leaves out no queue: what an outcome's `apply` enqueued may be in any of them. Most often nothing is, and one
        look at all of them says so.
        """
        self._queues.poll()
        claimed, remains = self._round()
        while remains and not claimed:
            claimed, remains = self._round()
        return claimed

    def _round(self) -> tuple[bool, bool]:
        self._came_round()
        self._claimer.compare(self._heartbeat.worker.id)
        self._wake.clear()
        claimed_any = remains = False
        self._looked = True
        self._queues.give_up_overdue()
        free = self._free_slots()
        to_claim = self._pass_over_quiet(free)
        for queue in self._queues:
            free_slots = free[queue] if queue in to_claim else 0
            if free_slots > 0 and not self._lease.is_valid:
                self._looked = False
            elif free_slots > 0 and not self._stopping.is_set():
                queue.asked = False  # before the claim: requests during the claim are kept
                claimed = self._claim(queue, free_slots)
                if claimed.more or (
                    claimed.unseen and self._loader.draining
                ):  # not `|=`, which would lose requests made meanwhile
                    queue.asked = True
                claimed_any |= bool(claimed.jobs)
                remains |= queue.asked
        return claimed_any, remains

    def _free_slots(self) -> dict[QueueThreads, int]:
        """How many jobs each queue that is asked may claim; none while too many outcomes wait to be written.

        Asked once a round: a queue's answer may begin its wait for more to be free.
        """
        free, room = {queue: queue.free_slots() for queue in self._queues if queue.asked}, self._settler.room
        if room == 0:
            for queue in free:
                queue.look_in(UNWRITTEN_SECONDS)
        share = -(-room // max(1, sum(slots > 0 for slots in free.values())))  # what one claims, another may not
        return {queue: min(slots, share) for queue, slots in free.items()}

    def _pass_over_quiet(self, free: Mapping[QueueThreads, int]) -> set[QueueThreads]:
        """The queues to claim for. Several that look before they claim are looked at at once, and quiet ones left out.

        What is asked for meanwhile is for the next round, which again looks at all of it at once: on SQLite every write
        of ours asks for all queues.
        """
        to_claim = set(free)
        waiting = [queue for queue in free if free[queue] > 0 and self._claimer.looks_first(queue.request)]
        queues = [queue for queue in waiting if self._looks_at_all(queue)]
        if len(queues) < 2 or self._stopping.is_set() or not self._lease.is_valid:
            return to_claim
        for queue in queues:
            queue.asked = False  # before the look, as before a claim
        quiet = self._claimer.quiet_queues([queue.request for queue in queues])
        for queue in queues:
            if quiet is None or queue.request.queue not in quiet:
                queue.asked = True
            else:
                to_claim.discard(queue)
        return to_claim

    def _claim(self, queue: QueueThreads, free_slots: int) -> Claimed:
        began, leased_at = self._now(), self._lease_clock()
        queue.request.from_floors = not self._looks_at_all(queue)
        queue.update_keys()
        claimed = self._claimer.claim(queue.request, self._heartbeat.worker.id, free_slots)
        if claimed is None:
            self._looked = False
            return Claimed([], more=False)
        self._note_duration(queue, began)
        queue.rate_limited = claimed.rate_limited
        queue.learn_size(claimed.jobs)
        if claimed.wait_seconds is not None:  # of this round's keys; those of the round before may open earlier
            queue.look_in(max(TOKEN_SECONDS_MIN, claimed.wait_seconds))
        if claimed.unseen and not self._loader.draining:
            queue.look_in((self._now() - began) / SCAN_SHARE)
        for routed in (True, False):  # those that run before those whose keys may have to be waited for
            for attempt in self._loader.attempts([job for job in claimed.jobs if job.routed is routed]):
                queue.accept(attempt, claimed_at=began, leased_at=leased_at)
        return claimed

    def _note_duration(self, queue: QueueThreads, began: float) -> None:
        ended = self._now()
        if queue.request.from_floors:
            queue.full_scans.note_shorter(began, ended)
            queue.look_in(queue.full_scans.next_at - ended)
        else:
            queue.full_scans.note(began, ended)

    def _looks_at_all(self, queue: QueueThreads) -> bool:
        """Whether the next claim may read what a held snapshot keeps. A drain ends by what it sees: it always may, and
        so may one that knows no place to start from.
        """
        return self._loader.draining or not queue.request.floors or queue.full_scans.is_due(self._now())

    def database_awaited(self) -> None:
        """A thread waits for the database. Time limits hold meanwhile, and are this thread's to see to."""
        if self._supervisor.is_caller():
            self._queues.give_up_overdue()

    def rest(self) -> None:
        """Wait for a wake-up, the next known retry, the next poll, or the next check of time limits."""
        wait = self._poll_seconds * (0.75 + self._random() / 4)
        retry_at = self._retries.next_at()
        now = self._now()
        deadlines = [attempt.deadline for attempt in self._queues.running]
        retries = [retry_at] if retry_at is not None else []
        self._wait_until(min([now + wait, *deadlines, *retries]))

    def await_token(self) -> bool:
        """Whether due jobs wait only for tokens that are due soon; if so, wait for the first."""
        soonest = self._queues.look_at
        if soonest > min(self._context.give_up_at, self._now() + TOKEN_SECONDS_DRAIN):
            return False
        self._wait_until(soonest)
        return True

    def _wait_until(self, soonest: float) -> None:
        """Wait until a monotonic time, then have every queue look again. One queue alone may look again before that."""
        look_at = self._queues.look_at
        if self._wake.wait(max(0.0, min(soonest, look_at) - self._now())):
            return
        if look_at < soonest:
            self._queues.ask_due()
        else:
            self._queues.poll()

    def all_settled(self) -> bool:
        """Wait for what runs; False as soon as there is room to claim more, a poll is due, or the time is up."""
        poll_at = self._now() + self._poll_seconds
        while self._queues.busy() or self._settler.pending:
            self._came_round()
            if self._context.gives_up():
                return False
            self._wake.wait(0.02)
            self._queues.give_up_overdue()  # even without a wake-up
            if self._queues.look_at <= self._now():
                self._queues.ask_due()
            if self._now() >= poll_at:
                self._queues.poll()
                return False
            if self._wake.is_set():
                return False
        return True
