"""From claimed rows to attempts that a thread can run: decode, prepare, load. A bad job leaves alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection

from effects.errors import (
    ConfigurationError,
    KeyUnavailable,
    PayloadInvalid,
    StoreConflict,
    StoreRejected,
    StoreUnavailable,
)
from effects.keys.sealing import open_payload, seal_payload, sealed_document
from effects.kit.text.wording import described
from effects.model.decision import decide
from effects.model.function_type import ArgumentUnknown
from effects.model.job import Job
from effects.model.job_type import PAYLOAD_INVALID, JobType, routing_of, safe_message
from effects.model.outcome import OUTCOMES, Cancelled, Outcome, Refused, Retry, Snooze
from effects.model.payload_codec import SEALED
from effects.model.settlement import AttemptEnd, Execution, Expired, Returned, Unrouted
from effects.store.db.deadlines import Bounds
from effects.store.db.faults import is_lost
from effects.store.enqueue.enqueuing import adopt, by_its_package, own_ledger, refuse_intent
from effects.store.queue.job_rows import replace_payload
from effects.store.queue.table_ledger import CORE_LEDGER, states
from effects.worker.attempts.answer import ErrorTexts, accept, with_error
from effects.worker.attempts.attempt import AttemptContext, Releases, RunningAttempt
from effects.worker.context import WorkerContext
from effects.worker.queues.queue_threads import SettlementWriter

KEY_HELD = Bounds(lock_seconds=0.001, seconds=5.0)  # the dispatcher waits no longer for a transaction that holds a key
KEYS_HELD_MAX = 2  # so often in one batch; then the batch's other jobs that want one wait untried
KEY_HELD_SECONDS = (1.0, 10.0)  # shortest and longest wait for the next try; between, as long as the job is old
KEY_UNTRIED_SECONDS, KEY_UNTRIED_SECONDS_MAX = 0.05, 1.0  # for each that is put off, so that they come one by one
REJECTED_AFTER_SECONDS = 1.0
SUSPECTS_MAX = 10_000
NO_INTENT = "no_intent"  # code of a keyed job that came by plain SQL, past the ledger of its type


NEWER_SECONDS = 3600.0  # a worker of a newer release has so long to take what this one does not know
NEWER_PAUSES = (1.0, 60.0)  # shortest and longest until the next look; between, a quarter of the job's age
ARGUMENT_UNKNOWN = "argument_unknown"


class BatchLoader:
    """Sorts one claimed batch into attempts to run and settlements to write, in the thread that claims for all queues.

    Args:
        settler: takes the settlements of jobs that are not to run.
        releases: what an attempt calls at its point of no return.
    """

    def __init__(self, context: WorkerContext, settler: SettlementWriter, releases: Releases) -> None:
        self._app, self._settler, self._releases = context.app, settler, releases
        self._outage, self._runtime = context.outage, context.runtime
        self._error_texts = ErrorTexts(context.app.keys, context.settings.error_texts, logged=context.logs_error_texts)
        self._suspects: set[int] = set()  # jobs whose `load` lost its connection: once more, alone, and it is to blame
        self.draining = False  # visible to every attempt
        self._keys_held = 0  # how often this batch has waited for one in vain
        self._keys_untried = 0

    def attempts(self, jobs: Sequence[Job]) -> list[RunningAttempt]:
        """The attempts that can run, in the order of the claim."""
        with self._outage.bounded(False):
            return self._attempts(jobs)

    def _attempts(self, jobs: Sequence[Job]) -> list[RunningAttempt]:
        ready: dict[str, list[Execution]] = defaultdict(list)
        self._keys_held = self._keys_untried = 0
        try:
            done = self._already_done(jobs)
        except (StoreUnavailable, StoreRejected):
            for job in jobs:
                self._end(job, self._app.job_types.get(job.job_type), Returned(REJECTED_AFTER_SECONDS))
            return []
        for job in jobs:
            job_type = self._app.job_types.get(job.job_type)
            ending = self._not_to_run(job, job.id in done)
            if ending is None:
                try:
                    clear = self._in_clear(job, job_type)
                    payload = job_type.decode(clear)
                    ending = None if job.routed else self._route(job, job_type, payload, clear)
                except PayloadInvalid as error:
                    ending = _unreadable(job, error)
                except KeyUnavailable as error:
                    ending = job_type.fate_of_sealed(error)
                except (StoreUnavailable, StoreRejected):
                    ending = Returned(REJECTED_AFTER_SECONDS)
                except BaseException as error:  # of a payload class, or of a job type's own `route`
                    self._hook_failed(job, job_type, "route", error)
                    continue
            if ending is None:
                ready[job.job_type].append(Execution(job, payload))
            else:
                self._end(job, job_type, ending)
        loaded = [self._load(self._app.job_types.get(name), batch) for name, batch in ready.items()]
        if len(loaded) == 1:
            return loaded[0]
        attempts = {attempt.job.id: attempt for batch in loaded for attempt in batch}
        return [attempts[job.id] for job in jobs if job.id in attempts]

    def _in_clear(self, job: Job, job_type: JobType[Any]) -> str:
        """
        Raises:
            KeyUnavailable: what is sealed of it does not open, or its result could not be sealed.
            PayloadInvalid: no key could open it.
        """
        if job_type.seals_result:
            self._app.keys.require(f"the result of {job_type.name}")
        return open_payload(self._app.keys, job.job_type, job.payload) if SEALED in job.payload else job.payload

    def _not_to_run(self, job: Job, done: bool) -> AttemptEnd | None:
        if job.cancel_requested:
            return Cancelled("cancelled by request")
        if done:
            return Cancelled("the effect is already done")
        return Expired() if job.expired else None

    def _already_done(self, jobs: Sequence[Job]) -> set[int]:
        """End a requeued job whose effect was marked done meanwhile."""
        doubtful: dict[str, list[int]] = defaultdict(list)
        for job in jobs:
            if job.requeued_from is not None and job.key is not None:
                ledger = self._app.job_types.get(job.job_type).ledger or CORE_LEDGER
                doubtful[ledger.table].append(job.id)
        done: set[int] = set()
        for table, ids in doubtful.items():
            with self._app.store.read() as connection:
                states_by_job = states(self._app.store, connection, table, ids)
            done.update(job_id for job_id, state in states_by_job.items() if state == "done")
        return done

    def _route(self, job: Job, job_type: JobType[Any], payload: Any, clear: str) -> AttemptEnd:
        """A job from a plain INSERT goes back to the queue, group and limit of its type, sealed, its intent written."""
        if job_type.sensitive and sealed_document(job.payload) is None:
            replace_payload(self._app.store, job, seal_payload(self._app.keys, job_type, clear))
        if job.key is not None and not self._has_own_intent(job, job_type):
            holder = self._holder(job, self._app.keys.digest(job_type.canonical(clear)))
            if isinstance(holder, Returned):
                return holder
            if holder != job.id:
                return Cancelled(f"its idempotency key belongs to job {holder}")
            if (own := own_ledger(job_type)) is not None:
                with self._app.store.begin() as connection:
                    refuse_intent(self._app.store, connection, job)
                return Refused(f"it has a key and no row in {own.table}: {by_its_package(job_type)}", code=NO_INTENT)
        routing = routing_of(job_type, payload)
        default = self._app.job_types.get(job.job_type)
        return Unrouted(
            queue=job.queue if job.queue != "default" else routing.queue or default.queue,
            priority=job.priority,
            group_key=job.group_key or routing.group_key,
            limit_key=job.limit_key or routing.limit_key,
        )

    def _has_own_intent(self, job: Job, job_type: JobType[Any]) -> bool:
        """Whether its type has its own ledger, and the job's row is in it."""
        own = own_ledger(job_type)
        if own is None:
            return False
        with self._app.store.read() as connection:
            return bool(states(self._app.store, connection, own.table, [job.id]))

    def _holder(self, job: Job, digest: str) -> int | Returned:
        """Write the job's intent; which job holds its key. Back while a transaction that has used the key is open."""
        if self._keys_held >= KEYS_HELD_MAX:
            self._keys_untried += 1
            return Returned(min(self._keys_untried * KEY_UNTRIED_SECONDS, KEY_UNTRIED_SECONDS_MAX))
        store = self._app.store
        try:
            with store.within(KEY_HELD), store.begin() as connection:
                return adopt(store, connection, job, digest)
        except StoreConflict:
            self._keys_held += 1
            shortest, longest = KEY_HELD_SECONDS
            return Returned(min(max(shortest, job.age_seconds), longest))

    def _load(self, job_type: JobType[Any], batch: Sequence[Execution]) -> list[RunningAttempt]:
        """Fetch what the batch needs; if that fails, one by one, so that one bad job stops no other."""
        if type(job_type).load is not JobType.load:
            if len(batch) > 1 and any(execution.job.id in self._suspects for execution in batch):
                return [attempt for execution in batch for attempt in self._load(job_type, [execution])]
            try:
                with self._app.store.read() as connection:
                    batch = _with_loaded(job_type, connection, batch)
            except StoreUnavailable as error:
                ids = {execution.job.id for execution in batch}
                if is_lost(error) and len(batch) == 1 and ids <= self._suspects:
                    self._suspects -= ids
                    return self._load_failed(job_type, batch, error)
                self._suspects = (self._suspects if len(self._suspects) < SUSPECTS_MAX else set()) | ids
                for execution in batch:
                    self._end(execution.job, job_type, Returned())
                return []
            except BaseException as error:
                self._suspects.difference_update(execution.job.id for execution in batch)
                return self._load_failed(job_type, batch, error)
            self._suspects.difference_update(execution.job.id for execution in batch)
        context = AttemptContext(
            job_type, self._releases, self._runtime, draining=self.draining,
            error_texts=self._error_texts, keys=self._app.keys, telemetry=self._app.telemetry,
        )  # fmt: skip
        return [RunningAttempt(execution, context) for execution in batch]

    def _load_failed(
        self, job_type: JobType[Any], batch: Sequence[Execution], error: BaseException
    ) -> list[RunningAttempt]:
        if self._runtime.is_interrupt(error):
            raise error
        if len(batch) > 1:
            return [attempt for execution in batch for attempt in self._load(job_type, [execution])]
        self._hook_failed(batch[0].job, job_type, "load", error)
        return []

    def _hook_failed(self, job: Job, job_type: JobType[Any], hook: str, error: BaseException) -> None:
        """A hook's failure is one of that job, never of the worker. An outcome that it raises is the job's fate."""
        if self._runtime.is_interrupt(error):
            raise error
        failure: Outcome = Retry(f"{hook} failed: {safe_message(error)}", code=f"{hook}_failed")
        answer = error if isinstance(error, OUTCOMES) else failure
        outcome = accept(answer, who=f"{job.job_type}: {hook}", released=False).outcome
        self._settler.add(with_error(decide(job, job_type, outcome, released=False), error))

    def _end(self, job: Job, job_type: JobType[Any], ending: AttemptEnd) -> None:
        self._settler.add(decide(job, job_type, ending, released=False))


def _with_loaded(job_type: JobType[Any], connection: Connection, batch: Sequence[Execution]) -> list[Execution]:
    """Add what the type's `load` fetches for each job.

    Raises:
        ConfigurationError: it returned no mapping.
    """
    loaded: object = job_type.load(connection, [(execution.job, execution.payload) for execution in batch])
    if not isinstance(loaded, Mapping):
        raise ConfigurationError(f"it returned {described(loaded)}; it must return a mapping by job id")
    return [replace(execution, loaded=loaded.get(execution.job.id)) for execution in batch]


def _unreadable(job: Job, error: PayloadInvalid) -> Outcome:
    """End a job whose payload this code cannot read; what a newer release has written is left to that for an hour."""
    if not isinstance(error, ArgumentUnknown):
        return Refused(str(error), code=PAYLOAD_INVALID)
    if job.age_seconds >= NEWER_SECONDS:
        return Refused(f"{error}, and within an hour no newer release has carried it out", code=ARGUMENT_UNKNOWN)
    shortest, longest = NEWER_PAUSES
    seconds = min(max(shortest, job.age_seconds / 4), longest)
    return Snooze(seconds, f"{error}: a newer release may carry it out", code=ARGUMENT_UNKNOWN)
