"""From claimed rows to attempts that a thread can run: decode, prepare, load. A bad job leaves alone."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from effects.app import Effects
from effects.errors import KeyUnavailable, PayloadInvalid, StoreUnavailable
from effects.job import Job
from effects.job_type import JobType
from effects.logs import Seldom
from effects.outcome import Cancelled, Outcome, Refused, Retry, Snooze
from effects.sealing import open_payload, seal_payload, sealed_document
from effects.settlement import Ending, Expired, GivenBack, Settlement, Unready, decide
from effects.store.enqueue import adopt
from effects.store.ledger import CORE_LEDGER, states
from effects.store.rotate import replace_payload
from effects.worker.attempt import RunningAttempt

RECHECK_SECONDS = 60.0  # while EFFECTS_KEYS lacks a key

_log = logging.getLogger("effects.worker")


class Intake:
    """Sorts one claimed batch into attempts to run and settlements to write.

    Args:
        release: what an attempt calls at its point of no return.
        finish: takes the settlements of jobs that are not to run.
    """

    def __init__(self, app: Effects, release: Callable[[Job], bool], finish: Callable[[Settlement], None]) -> None:
        self._app, self._release, self._finish = app, release, finish
        self.draining = False  # told to every attempt
        self._waiting = Seldom(_log, "job.waiting")

    def attempts(self, jobs: Sequence[Job]) -> list[RunningAttempt]:
        """The attempts that can run, in the order of the claim."""
        ready: dict[str, list[tuple[Job, Any]]] = defaultdict(list)
        try:
            done = self._already_done(jobs)
        except StoreUnavailable:
            for job in jobs:
                self._end(job, self._app.job_types.get(job.job_type), GivenBack())
            return []
        for job in jobs:
            job_type = self._app.job_types.get(job.job_type)
            ending = self._not_to_run(job, job.id in done)
            if ending is None:
                try:
                    clear = open_payload(self._app.keys, job.job_type, job.payload)
                    payload = job_type.decode(clear)
                    ending = None if job.prepared else self._prepare(job, job_type, payload, clear)
                except PayloadInvalid as error:
                    ending = Refused(str(error), code="payload_invalid")
                except KeyUnavailable as error:
                    ending = self._wait_for_operator(str(error))
                except StoreUnavailable:
                    ending = GivenBack()
                except Exception as error:  # a job type's own `place`
                    ending = Retry(f"prepare failed: {type(error).__name__}", code="prepare_failed")
            if ending is None:
                ready[job.job_type].append((job, payload))
            else:
                self._end(job, job_type, ending)
        made = {a.job.id: a for name, batch in ready.items() for a in self._load(self._app.job_types.get(name), batch)}
        return [made[job.id] for job in jobs if job.id in made]

    def _not_to_run(self, job: Job, done: bool) -> Ending | None:
        if job.cancel_requested:
            return Cancelled("cancelled by request")
        if done:
            return Cancelled("the effect is already done")
        return Expired() if job.expired else None

    def _already_done(self, jobs: Sequence[Job]) -> set[int]:
        """A requeued job whose effect was found done meanwhile runs no more."""
        doubtful: dict[str, list[int]] = defaultdict(list)
        for job in jobs:
            if job.requeued_from is not None and job.key is not None:
                ledger = self._app.job_types.get(job.job_type).ledger or CORE_LEDGER
                doubtful[ledger.table].append(job.id)
        done: set[int] = set()
        for table, ids in doubtful.items():
            with self._app.store.read() as connection:
                found = states(self._app.store, connection, table, ids)
            done.update(job_id for job_id, state in found.items() if state == "done")
        return done

    def _wait_for_operator(self, reason: str) -> Snooze:
        """This worker's configuration is at fault: it costs no try and no age, and the log says it, not for every job.

        The job's key is not paused: the other workers may have what this one lacks.
        """
        self._waiting.say(reason)
        return Snooze(RECHECK_SECONDS, reason, ages=False)

    def _prepare(self, job: Job, job_type: JobType[Any], payload: Any, clear: str) -> Ending:
        """A job from a plain INSERT goes back to the lane, group and limit of its type, sealed, its intent written."""
        if job_type.sensitive and sealed_document(job.payload) is None:
            replace_payload(self._app.store, job, seal_payload(self._app.keys, job_type, clear))
        if job.key is not None and job_type.ledger is None:
            digest = self._app.keys.digest(job_type.canonical(clear))
            with self._app.store.begin() as connection:
                holder = adopt(self._app.store, connection, job, digest)
            if holder != job.id:
                return Cancelled(f"its idempotency key belongs to job {holder}")
        placed = job_type.place(payload)
        default = self._app.job_types.get(job.job_type)
        return Unready(
            queue=job.queue if job.queue != "default" else placed.queue or default.queue,
            priority=job.priority,
            group_key=job.group_key or placed.group_key,
            limit_key=job.limit_key or placed.limit_key,
        )

    def _load(self, job_type: JobType[Any], batch: Sequence[tuple[Job, Any]]) -> list[RunningAttempt]:
        """Fetch what the batch needs; if that fails, one by one, so that one bad job stops no other."""
        loaded: Any = {}
        if type(job_type).load is not JobType.load:
            try:
                with self._app.store.read() as connection:
                    loaded = job_type.load(connection, batch)
            except StoreUnavailable:
                for job, _ in batch:
                    self._end(job, job_type, GivenBack())
                return []
            except Exception as error:
                return self._load_failed(job_type, batch, error)
        return [
            RunningAttempt(job, job_type, payload, loaded.get(job.id), self._release, draining=self.draining)
            for job, payload in batch
        ]

    def _load_failed(
        self, job_type: JobType[Any], batch: Sequence[tuple[Job, Any]], error: Exception
    ) -> list[RunningAttempt]:
        if len(batch) > 1:
            return [attempt for one in batch for attempt in self._load(job_type, [one])]
        job = batch[0][0]
        failure: Outcome = Retry(f"load failed: {type(error).__name__}", code="load_failed")
        self._end(job, job_type, failure)
        return []

    def _end(self, job: Job, job_type: JobType[Any], ending: Ending) -> None:
        self._finish(decide(job, job_type, ending, released=False))
