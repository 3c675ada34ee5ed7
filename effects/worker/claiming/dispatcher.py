"""The dispatcher: claims for the queues that have free slots, and rests until there is a reason to look again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from effects.app import Effects
from effects.model.decision import decide
from effects.model.settlement import Returned, Settlement
from effects.store.claim.claim import Claimed, looks_first, quiet_queues
from effects.store.claim.claim_request import ClaimRequest
from effects.store.claim.invalid_rows import claim_valid
from effects.store.queue.liveness import leased_to
from effects.worker.claiming.batch_loader import BatchLoader
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.queue_threads import QueueThreads
from effects.worker.queues.worker_queues import WorkerQueues
from effects.worker.recording.settler import Settler
from effects.worker.supervision.outage import Outage
from effects.worker.supervision.supervisor import Supervisor
from effects.worker.upkeep.failover_evidence import FailoverEvidence
from effects.worker.upkeep.heartbeat import Heartbeat

TOKEN_SECONDS_MIN = 0.05  # tokens of a rate are claimed in batches: no claim for each that comes
SCAN_SHARE = 0.01  # of the time, for looking through groups that all wait
TOKEN_SECONDS_DRAIN = 5.0  # a drain waits for tokens that come within this
LOOK_AGAIN_SECONDS = 0.05  # while a heartbeat is late
UNWRITTEN_SECONDS = 0.05  # between two looks whether too many outcomes wait to be written

_log = logging.getLogger("effects.worker")


class Claimer:
    """Claims until the database answers.

    A claim whose COMMIT had no response may have leased jobs without our knowledge. They are returned before the next
    claim; left alone, they would be found when their time limit has passed, and run in quarantine, one by one.

    Args:
        held: the ids of all jobs that this worker holds, and of those whose outcome is not yet written.
        finish: takes the settlements of the jobs that go back.
        evidence: is compared before a claim where commits may have been lost.
    """

    def __init__(
        self,
        app: Effects,
        outage: Outage,
        held: Callable[[], set[int]],
        finish: Callable[[Settlement], None],
        evidence: FailoverEvidence,
    ) -> None:
        self._app, self._outage, self._held, self._finish = app, outage, held, finish
        self._evidence = evidence
        self._leases: dict[str, Mapping[str, float]] = {}  # by queue, of all job types
        self._unanswered = False

    def claim(
        self, request: ClaimRequest, worker: str, free_slots: int, *, give_up: Callable[[], bool]
    ) -> Claimed | None:
        """Claim up to `free_slots` jobs; None once `give_up()` is true. Called by one thread only."""
        return self._outage.retry_until_available(lambda: self._try(request, worker, free_slots), give_up=give_up)

    def looks_first(self, request: ClaimRequest) -> bool:
        """Whether a claim would look before it takes; one with keys looks for those first."""
        return not request.keyed and looks_first(self._app.store, request)

    def quiet_queues(self, requests: Sequence[ClaimRequest], *, give_up: Callable[[], bool]) -> set[str] | None:
        """Queues in which there is nothing to claim; None once `give_up()` is true."""
        return self._outage.retry_until_available(lambda: quiet_queues(self._app.store, requests), give_up=give_up)

    def compare(self, worker: str, *, give_up: Callable[[], bool]) -> None:
        """Compare what this worker remembers with the database, if there is a reason to."""
        if self._evidence.is_due:
            self._outage.retry_until_available(lambda: self._evidence.compare(worker), give_up=give_up)

    def _try(self, request: ClaimRequest, worker: str, free_slots: int) -> Claimed:
        if self._evidence.is_due and not self._evidence.compare(worker):
            return Claimed([], more=False)  # until the heartbeat has registered this worker again
        if self._unanswered:
            self.give_back(worker)
        request.lease_seconds = self._evidence.permitted(self._leases.setdefault(request.queue, request.lease_seconds))
        self._unanswered = True
        claimed = claim_valid(self._app.store, self._app.ledgers, request, worker, free_slots)
        self._unanswered = False
        self._evidence.claimed(claimed.jobs)
        return claimed

    def give_back(self, worker: str) -> None:
        """Return jobs that are leased to this worker but unknown to it: they were never started."""
        held = self._held()  # before the question: what is settled meanwhile no longer runs
        with self._app.store.read() as connection:
            jobs = leased_to(self._app.store, connection, worker, self._app.job_types, held)
        for job in jobs:
            self._finish(decide(job, self._app.job_types.get(job.job_type), Returned(), released=False))
        if jobs:
            _log.warning("claim.given_back", extra={"jobs": len(jobs)})


class Dispatcher:
    """Runs in the thread that called the worker's `run` or `drain`; the only one that claims.

    Args:
        supervisor: notified of each round, and checked in turn.
        stopping: once set, no more jobs are claimed.
        gives_up: whether to stop waiting for the database.
        wake: ends a rest.
        poll_seconds: the longest rest.
    """

    def __init__(
        self,
        queues: WorkerQueues,
        claimer: Claimer,
        intake: BatchLoader,
        settler: Settler,
        heartbeat: Heartbeat,
        runtime: Runtime,
        *,
        supervisor: Supervisor,
        stopping: threading.Event,
        gives_up: Callable[[], bool],
        wake: threading.Event,
        poll_seconds: float,
    ) -> None:
        self._queues, self._claimer, self._intake, self._settler, self._heartbeat = (
            queues,
            claimer,
            intake,
            settler,
            heartbeat,
        )
        self._now, self._lease_clock, self._random = runtime.monotonic, runtime.lease_clock, runtime.random
        self._supervisor = supervisor
        self._stopping, self._gives_up, self._wake, self._poll_seconds = stopping, gives_up, wake, poll_seconds
        self._looked = True  # the last round claimed for every queue that had free slots

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
        return not any(queue.asked for queue in self._queues)

    def nothing_due(self, give_up_at: float) -> bool:
        """Whether all due jobs are done and no more are due.

        While the worker's own lease may be invalid it claims nothing, and so cannot tell.
        """
        nothing = (
            not self.round()
            and self.all_settled(give_up_at)
            and not self.round_everywhere()
            and not self.await_token(give_up_at)
        )
        if nothing and not self._looked:
            self._wake.wait(LOOK_AGAIN_SECONDS)
            self._queues.poll()
        return nothing and self._looked

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
        self._claimer.compare(self._heartbeat.worker.id, give_up=self._gives_up)
        self._wake.clear()
        claimed_any = remains = False
        self._looked = True
        self._queues.give_up_overdue()
        free = self._free_slots()
        to_claim = self._pass_over_quiet(free)
        for queue in self._queues:
            free_slots = free[queue] if queue in to_claim else 0
            if free_slots > 0 and not self._heartbeat.lease_valid:
                self._looked = False
            elif free_slots > 0 and not self._stopping.is_set():
                queue.asked = False  # before the claim: requests during the claim are kept
                claimed = self._claim(queue, free_slots)
                if claimed.more or (
                    claimed.unseen and self._intake.draining
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
        if len(queues) < 2 or self._stopping.is_set() or not self._heartbeat.lease_valid:
            return to_claim
        for queue in queues:
            queue.asked = False  # before the look, as before a claim
        quiet = self._claimer.quiet_queues([queue.request for queue in queues], give_up=self._gives_up)
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
        claimed = self._claimer.claim(queue.request, self._heartbeat.worker.id, free_slots, give_up=self._gives_up)
        if claimed is None:
            self._looked = False
            return Claimed([], more=False)
        self._note_duration(queue, began)
        queue.rate_limited = claimed.rate_limited
        queue.learn_size(claimed.jobs)
        if claimed.wait_seconds is not None:  # of this round's keys; those of the round before may open earlier
            queue.look_in(max(TOKEN_SECONDS_MIN, claimed.wait_seconds))
        if claimed.unseen and not self._intake.draining:
            queue.look_in((self._now() - began) / SCAN_SHARE)
        for routed in (True, False):  # those that run before those whose keys may have to be waited for
            for attempt in self._intake.attempts([job for job in claimed.jobs if job.routed is routed]):
                queue.accept(attempt, claimed_at=began, leased_at=leased_at)
        return claimed

    def _note_duration(self, queue: QueueThreads, began: float) -> None:
        ended = self._now()
        if queue.request.from_floors:
            queue.full_looks.note_shorter(began, ended)
            queue.look_in(queue.full_looks.next_at - ended)
        else:
            queue.full_looks.note(began, ended)

    def _looks_at_all(self, queue: QueueThreads) -> bool:
        """Whether the next claim may read what a held snapshot keeps. A drain ends by what it sees: it always may."""
        return self._intake.draining or queue.full_looks.is_due(self._now())

    def rest(self) -> None:
        """Wait for a wake-up, the next known retry, the next poll, or the next check of time limits."""
        wait = self._poll_seconds * (0.75 + self._random() / 4)
        retry_at = self._settler.next_retry()
        now = self._now()
        deadlines = [attempt.deadline for attempt in self._queues.running]
        retries = [retry_at] if retry_at is not None else []
        self._wait_until(min([now + wait, *deadlines, *retries]))

    def await_token(self, give_up_at: float) -> bool:
        """Whether due jobs wait only for tokens that are due soon; if so, wait for the first."""
        soonest = self._queues.look_at
        if soonest > min(give_up_at, self._now() + TOKEN_SECONDS_DRAIN):
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

    def all_settled(self, give_up_at: float) -> bool:
        """Wait for what runs; False as soon as there is room to claim more, a poll is due, or the time is up."""
        poll_at = self._now() + self._poll_seconds
        while self._queues.busy() or self._settler.pending:
            self._came_round()
            if self._stopping.is_set() or self._now() >= give_up_at:
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
