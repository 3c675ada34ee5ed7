"""Looks at the schedules beside the worker, and makes the jobs of the slots that have come."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from effects.app import Effects
from effects.errors import StoreUnavailable
from effects.firing import fire_due
from effects.store import schedule_slots
from effects.store.records import moment
from effects.store.schedules import Definition
from effects.worker.outage import Outage

LOOK_SECONDS = 10.0  # between two looks at the schedules, at most: a pause or a new one is seen by then
_log = logging.getLogger("effects.schedules")


class Scheduler(threading.Thread):
    """Fires due slots. Every worker has one: which of them comes first does not matter.

    Args:
        fired: called when there are new jobs.
    """

    def __init__(self, app: Effects, outage: Outage, *, fired: Callable[[], None]) -> None:
        super().__init__(name="effects-scheduler", daemon=True)
        self._app, self._outage, self._fired = app, outage, fired
        self._ending = threading.Event()
        self._complained: set[str] = set()

    def run(self) -> None:
        while not self._ending.is_set():
            self._ending.wait(self.try_round())

    def try_round(self) -> float:
        """A round, whose failure is logged; the seconds until the next one."""
        try:
            return self.round()
        except StoreUnavailable as error:
            self._outage.began(error)
        except Exception as error:  # the next round may fare better, and the worker must go on
            _log.error("schedules.failed", extra={"error": type(error).__name__})
        return LOOK_SECONDS

    def round(self) -> float:
        """Fire what is due; the seconds until the next slot, at most 10.

        Raises:
            StoreUnavailable: the database is away.
        """
        store = self._app.store
        with store.read() as connection:
            now = moment(store.now(connection))
            active, invalid = schedule_slots.active(store, connection, self._app.job_types.names())
        self._complain(invalid)
        wait = LOOK_SECONDS
        for definition in active:
            next_slot = next(definition.schedule.times.after(definition.last_slot), None)
            if next_slot is None:
                continue
            if next_slot <= now:
                wait = 0.0 if self._fire(definition) else wait  # there may be more of them
            else:
                wait = min(wait, (next_slot - now).total_seconds())
        return max(0.0, wait) + 0.05 * random.random()  # noqa: S311 - not all workers at the same instant

    def _fire(self, definition: Definition) -> bool:
        """Whether a slot came of it; what goes wrong with one schedule does not keep the others."""
        try:
            fired = fire_due(self._app, definition)
        except StoreUnavailable:
            raise
        except Exception as error:
            _log.error("schedule.failed", extra={"schedule": definition.schedule.name, "error": type(error).__name__})
            return False
        if fired:
            self._fired()
        return bool(fired)

    def _complain(self, invalid: list[str]) -> None:
        for name in set(invalid) - self._complained:
            _log.error("schedule.invalid", extra={"schedule": name})
        self._complained = set(invalid)

    def stop(self) -> None:
        self._ending.set()
