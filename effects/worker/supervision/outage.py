"""When the database does not answer: how long a worker's transactions may take, what cuts those that are overdue, and
the wait until it is back, with one line in the log every few seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, TypeVar

from sqlalchemy.exc import DBAPIError

from effects.errors import StoreConflict, StoreRejected, StoreUnavailable, WorkerCannotContinue
from effects.logs import RateLimitedLogger
from effects.store.db.deadlines import Bounds
from effects.store.db.engine import LOCK_SECONDS
from effects.store.db.faults import Fault, fault_of
from effects.store.db.store import Store
from effects.worker.machine.runtime import Runtime

LOG_EVERY_SECONDS = 5.0
WAIT_SECONDS = (0.1, 1.0)  # first and longest wait between two tries
CONFLICT_SECONDS = 5.0  # a conflict that lasts longer is worth a line
BRISK_LOCK_SECONDS = 0.1
TRANSACTION_SECONDS_MIN = 5.0

T = TypeVar("T")
Bounded: TypeAlias = Callable[[bool], AbstractContextManager[None]]
_log = logging.getLogger("effects.worker")


def unbounded(brisk: bool) -> AbstractContextManager[None]:
    return nullcontext()


class Outage:
    """State of a database outage, shared by the threads of one worker.

    Args:
        bounded: within it a thread's transactions wait no longer than they may; a brisk one's hardly for a lock.
        missing_seconds: how long tables that are missing are waited for: a deploy may be under way.
        came_round: called by a thread that waits, after every try.
        ended: called when an outage is over, by the thread that saw it.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        bounded: Bounded = unbounded,
        missing_seconds: float = 120.0,
        came_round: Callable[[], None] = lambda: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime, self._now, self._came_round = runtime, runtime.monotonic, came_round
        self.bounded, self._missing_seconds, self._ended = bounded, missing_seconds, ended
        self._lock = threading.Lock()
        self._down_since: float | None = None
        self._logged_at = float("-inf")
        self._told = False  # the log knows of this outage
        self.ended_at = float("-inf")  # monotonic; when the last outage was over
        self.began_count = 0  # outages so far
        self._conflicts, self._rejections = (
            RateLimitedLogger(_log, "database.conflict"),
            RateLimitedLogger(_log, "database.rejected"),
        )

    @property
    def under_way(self) -> bool:
        return self._down_since is not None

    def began(self, error: StoreUnavailable) -> None:
        """Note that a statement found the database unavailable. A conflict is not an outage."""
        if isinstance(error, StoreConflict):
            return
        with self._lock:
            now = self._now()
            if self._down_since is None:
                self._down_since, self.began_count = now, self.began_count + 1
            if now - self._logged_at >= LOG_EVERY_SECONDS:
                self._logged_at, self._told = now, True
                event = "database.read_only" if error.read_only else "database.away"
                _log.warning(event, extra={"seconds": round(now - self._down_since, 1), "error": str(error)})

    def over(self, asked_at: float) -> None:
        """Note that a statement sent at `asked_at` succeeded; one sent before the outage does not end it."""
        if self._down_since is None:
            return
        with self._lock:
            if self._down_since is not None and asked_at > self._down_since:
                self.ended_at = self._now()
                if self._told:  # a database that comes and goes (a full disk: some writes fit) is no flood of lines
                    _log.warning("database.back", extra={"seconds": round(self.ended_at - self._down_since, 1)})
                self._down_since, self._told = None, False
            else:
                return
        self._ended()

    def retry_until_available(
        self,
        call: Callable[[], T],
        *,
        give_up: Callable[[], bool],
        passing: Collection[Fault] = (),
        brisk: bool = False,
        long_seconds: float = float("inf"),
    ) -> T | None:
        """Call until the database succeeds; None once `give_up()` is true.

        Only for calls that may be repeated: every write of effects is fenced, so they all may.

        Args:
            passing: errors that the caller handles; they are raised. An outage cannot be among them.
            brisk: wait hardly for a lock: the caller has reason to think that one is held.
            long_seconds: the error of a try that took so long is raised too: it asked too much, or the database hangs.

        Raises:
            WorkerCannotContinue: tables have been missing for too long, or the file is damaged.
        """
        first_asked_at, wait = self._now(), WAIT_SECONDS[0]
        while True:
            asked_at = self._now()
            try:
                with self.bounded(brisk):
                    result = call()
            except (StoreUnavailable, StoreRejected, DBAPIError) as error:
                if fault_of(error) in passing:
                    raise
                self._heard(error, self._now() - first_asked_at)
                self._came_round()
                if self._now() - asked_at >= long_seconds:
                    raise
            else:
                self.over(asked_at)
                return result
            if give_up():
                return None
            self._runtime.sleep(wait * (0.5 + self._runtime.random() / 2))
            wait = min(wait * 2, WAIT_SECONDS[1])

    def _heard(self, error: Exception, seconds: float) -> None:
        """Say what it is, now and then; end where no retry can help."""
        fault = fault_of(error)
        if isinstance(error, StoreConflict):
            if seconds > CONFLICT_SECONDS:
                self._conflicts.error(f"for {seconds:.0f} s: {error}")
        elif isinstance(error, StoreUnavailable):
            self.began(error)
        elif fault is Fault.CORRUPT or (fault is Fault.SCHEMA and seconds > self._missing_seconds):
            raise WorkerCannotContinue(str(error)) from error
        else:  # of an error of the driver's the text may quote a row
            self._rejections.error(str(error) if isinstance(error, StoreRejected) else type(error).__name__)


def bounds(lease_seconds: float) -> tuple[Bounds, Bounds]:
    """Of a worker's transactions, and of those that hardly wait for a lock.

    A transaction may take a third of a lease, so that a server that hangs is left within the lease; and at least 5 s,
    because a machine that is merely busy would count as one.
    """
    whole = max(lease_seconds / 3, TRANSACTION_SECONDS_MIN)
    return Bounds(LOCK_SECONDS, whole), Bounds(BRISK_LOCK_SECONDS, whole)


def cut_overdue(store: Store) -> None:
    """Cut the connection of every transaction that is overdue: the waiting thread then rides out an outage."""
    if cut := store.deadlines.cut_overdue():
        _log.warning("database.silent", extra={"connections_cut": cut})
