"""The worker's scheduler, which enqueues the jobs of due slots."""

from __future__ import annotations

import datetime as dt

from effects.app.firing import fire_due
from effects.errors import ConfigurationError, StoreUnavailable
from effects.kit.logs import error_places, own_logger
from effects.kit.moments import moment
from effects.model.schedules import Schedule
from effects.store import schedules as schedule_slots
from effects.store.db.faults import is_lost
from effects.store.schedules import Definition
from effects.worker.context import WorkerContext
from effects.worker.queues.worker_queues import WorkerQueues
from effects.worker.supervisor import Service

LOOK_SECONDS = 10.0  # between two looks at the schedules, at most: a pause or a new one is seen by then
_log = own_logger("effects.schedules")


class Scheduler(Service):
    """Fires due slots, and has the queues look for their jobs. Which worker's is the first does not matter."""

    name = "scheduler"

    def __init__(self, context: WorkerContext, queues: WorkerQueues) -> None:
        super().__init__(context.runtime)
        self._app, self._outage, self._queues = context.app, context.outage, queues
        self.bound_seconds = 10 * LOOK_SECONDS
        self._rest = 0.0  # until the next round; the first may have been the start's
        self._complained: set[str] = set()
        self._checked: dict[str, Schedule] = {}

    def run(self) -> None:
        while not self._ending.wait(self._rest):
            self.try_round()
            self.came_round()

    def try_round(self) -> None:
        """Run one round and log its failure; the next one is due when its schedules say so."""
        self._rest = LOOK_SECONDS
        try:
            with self._outage.bounded(False):
                self._rest = self.round()
        except StoreUnavailable as error:
            self._outage.began(error)
        except Exception as error:  # the next round may succeed, and the worker must continue
            _log.error("schedules.failed", extra={"error": type(error).__name__, "at": error_places(error)})

    def round(self) -> float:
        """Fire what is due; the seconds until the next slot, at most 10.

        Raises:
            StoreUnavailable: the database is unavailable.
        """
        store = self._app.store
        with store.read() as connection:
            schedules = schedule_slots.active(store, connection, self._app.job_types.names())
        self._complain(schedules.invalid)
        self._check(schedules.definitions)
        wait = LOOK_SECONDS
        now = moment(schedules.now or 0.0)
        for definition in schedules.definitions:
            next_slot = next(definition.schedule.times.after(self._last_slot(definition, now)), None)
            if next_slot is None:
                continue
            if next_slot <= now:
                wait = 0.0 if self._fire(definition) else wait  # there may be more of them
            else:
                wait = min(wait, (next_slot - now).total_seconds())
        return max(0.0, wait) + 0.05 * self._runtime.random()  # not all workers at the same instant

    def _last_slot(self, definition: Definition, now: dt.datetime) -> dt.datetime:
        """The last handled slot; or now, if it is in the future because a clock was ahead for a moment.

        A slot after the next one cannot be due. Slots fired meanwhile keep their rows, so none runs twice.
        """
        if definition.last_slot <= now:
            return definition.last_slot
        next_slot = next(definition.schedule.times.after(now), None)
        if next_slot is None or definition.last_slot <= next_slot:
            return definition.last_slot
        with self._app.store.begin() as connection:
            schedule_slots.turn_back(self._app.store, connection, definition.id, beyond=next_slot)
        fields = {"schedule": definition.schedule.name, "last_slot": definition.last_slot.isoformat()}
        _log.warning("schedule.turned_back", extra=fields)
        return now

    def _fire(self, definition: Definition) -> bool:
        """Whether it fired a slot; an error of one schedule does not stop the others."""
        try:
            fired = fire_due(self._app, definition)
        except Exception as error:
            if isinstance(error, StoreUnavailable) and not is_lost(error):  # else the next one shows what it was
                raise
            facts = {"schedule": definition.schedule.name, "error": type(error).__name__, "at": error_places(error)}
            _log.error("schedule.failed", extra=facts)
            return False
        if fired:
            self._queues.poll()
        return bool(fired)

    def _check(self, definitions: list[Definition]) -> None:
        """Report a schedule whose jobs will be refused, before its slot comes; it runs nevertheless."""
        checked, self._checked = self._checked, {each.schedule.name: each.schedule for each in definitions}
        for schedule in self._checked.values():
            if checked.get(schedule.name) == schedule:
                continue
            try:
                self._app.job_types.check_declared(schedule)
            except ConfigurationError as error:
                _log.error("schedule.invalid", extra={"schedule": schedule.name, "reason": str(error)})

    def _complain(self, invalid: list[str]) -> None:
        for name in set(invalid) - self._complained:
            _log.error("schedule.invalid", extra={"schedule": name})
        self._complained = set(invalid)
