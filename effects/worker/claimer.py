"""Claiming through an outage. A claim whose COMMIT had no answer may have leased jobs that nobody here knows of."""

from __future__ import annotations

import logging
from collections.abc import Callable

from effects.app import Effects
from effects.settlement import GivenBack, Settlement, decide
from effects.store.claim import Claimed, Lane, claim
from effects.store.liveness import leased_to
from effects.worker.outage import Outage

_log = logging.getLogger("effects.worker")


class Claimer:
    """Claims until the database answers. Jobs of an unanswered claim are given back before the next one; left alone,
    they would be found when their time limit has passed, and run in quarantine, one by one.

    Args:
        held: the ids of all jobs that this worker has at hand, and of those whose outcome it has yet to write.
        finish: takes the settlements of the jobs that go back.
    """

    def __init__(
        self, app: Effects, outage: Outage, held: Callable[[], set[int]], finish: Callable[[Settlement], None]
    ) -> None:
        self._app, self._outage, self._held, self._finish = app, outage, held, finish
        self._unanswered = False

    def claim(self, lane: Lane, worker: str, room: int, *, give_up: Callable[[], bool]) -> Claimed | None:
        """Up to `room` jobs; None once `give_up()` says so. Called by one thread, which alone claims for the worker."""
        return self._outage.ride_out(lambda: self._try(lane, worker, room), give_up=give_up)

    def _try(self, lane: Lane, worker: str, room: int) -> Claimed:
        if self._unanswered:
            self._give_back(worker)
        self._unanswered = True
        claimed = claim(self._app.store, lane, worker, room)
        self._unanswered = False
        return claimed

    def _give_back(self, worker: str) -> None:
        held = self._held()  # before the question: what is settled meanwhile no longer runs
        with self._app.store.read() as connection:
            jobs = leased_to(self._app.store, connection, worker, self._app.job_types, held)
        for job in jobs:
            self._finish(decide(job, self._app.job_types.get(job.job_type), GivenBack(), released=False))
        if jobs:
            _log.warning("claim.given_back", extra={"jobs": len(jobs)})
