"""What the parts of one worker share: its database, settings, clock, lease, and the state of an outage.

During an outage every thread that needs the database waits here; nothing else decides that it is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from effects.app.effects import Effects
from effects.errors import StoreConflict, StoreRejected, StoreUnavailable, WorkerCannotContinue
from effects.kit.logs import RateLimitedLogger, error_places, frame_places, own_logger
from effects.store.db.deadlines import Bounds
from effects.store.db.engine import LOCK_SECONDS
from effects.store.db.faults import Fault, fault_of, is_lost
from effects.store.db.store import Store
from effects.worker.machine.runtime import Runtime
from effects.worker.supervisor import Supervisor

LOG_EVERY_SECONDS = 5.0
WAIT_SECONDS = (0.1, 1.0)  # first and longest wait between two tries
CONFLICT_SECONDS = 5.0  # a conflict that lasts longer is worth a line
BRISK_LOCK_SECONDS = 0.1
TRANSACTION_SECONDS_MIN = 5.0

T = TypeVar("T")
_log = own_logger("effects.worker")


QUICK_SECONDS = 1.0  # a statement whose connection ends later may have met a database that hangs: that is an outage
EXCUSES = 3  # of a statement with which the whole server went away, and came back


class Outage:
    """State of a database outage, shared by the threads of one worker.

    Args:
        store: its transactions are bounded. None: nothing is bounded, and no statement is to blame for its lost
            connection.
        lease_seconds: so long tables that are missing are waited for: a deploy may be under way.

    Attributes:
        bound_seconds: a transaction that takes longer is cut off.
    """

    def __init__(self, runtime: Runtime, store: Store | None = None, *, lease_seconds: float = 120.0) -> None:
        self._store, self._lease_seconds = store, lease_seconds
        self._patient, self._brisk = bounds(lease_seconds)
        self.bound_seconds = self._patient.seconds
        self._runtime, self._now = runtime, runtime.monotonic
        self._while_waiting: list[Callable[[], object]] = []
        self._when_over: list[Callable[[], object]] = []
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

    def while_waiting(self, call: Callable[[], object]) -> None:
        """Have each thread that waits call this after every try."""
        self._while_waiting.append(call)

    def when_over(self, call: Callable[[], object]) -> None:
        """Have the thread that sees the end of an outage call this."""
        self._when_over.append(call)

    def bounded(self, brisk: bool) -> AbstractContextManager[None]:
        """Within it a thread's transactions wait no longer than they may; a brisk one's hardly for a lock."""
        return nullcontext() if self._store is None else self._store.within(self._brisk if brisk else self._patient)

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
        for call in self._when_over:
            call()

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

        Only for calls that may be repeated: every write of effects is fenced, so they all may. One that loses its
        connection is called again once the database has answered the probe; the second time it is to blame (LOST).
        Where the server went away with it, it is called again, `EXCUSES` times: a server may crash more than once.

        Args:
            passing: errors that the caller handles; they are raised. An outage cannot be among them.
            brisk: wait hardly for a lock: the caller has reason to think that one is held.
            long_seconds: the error of a try that took so long is raised too: it asked too much, or the database hangs.

        Raises:
            WorkerCannotContinue: tables have been missing for too long, or the file is damaged.
        """
        first_asked_at, wait = self._now(), WAIT_SECONDS[0]
        losses = _Losses(self._store)
        while True:
            asked_at = self._now()
            try:
                with self.bounded(brisk):
                    result = losses.call(call)
            except (StoreUnavailable, StoreRejected, DBAPIError) as error:
                if fault_of(error) in passing:
                    raise
                is_quick = self._now() - asked_at < QUICK_SECONDS
                if is_quick and losses.is_first(error) and not give_up():
                    losses.suspected, self.began_count = True, self.began_count + 1  # another server may answer next
                    _log.warning("database.connection_lost", extra={"error": str(error), "at": error_places(error)})
                    continue
                losses.suspected = losses.suspected and fault_of(error) is not Fault.LOST
                self._heard(error, self._now() - first_asked_at)
                for tell in self._while_waiting:
                    tell()
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
        elif fault is Fault.CORRUPT or (fault is Fault.SCHEMA and seconds > self._lease_seconds):
            raise WorkerCannotContinue(str(error)) from error
        else:  # of an error of the driver's the text may quote a row
            self._rejections.error(str(error) if isinstance(error, StoreRejected) else type(error).__name__)


class _Losses:
    """The connections that one statement loses: whether it is to blame, or the server.

    Attributes:
        suspected: it has lost one, and the database is probed before it is called again.
    """

    def __init__(self, store: Store | None) -> None:
        self._store, self.suspected, self._excuses = store, False, EXCUSES

    def is_first(self, error: Exception) -> bool:
        """Whether it lost its connection, and is not suspected yet."""
        return not self.suspected and self._store is not None and is_lost(error)

    def call(self, call: Callable[[], T]) -> T:
        """Raises:
        StoreRejected: it lost its connection again (LOST), and not because the server went away.
        StoreUnavailable: the database is; among others where the server went away with the statement.
        """
        if not self.suspected or self._store is None:
            return call()
        server = _probe(self._store)
        try:
            return call()
        except StoreUnavailable as error:
            if not is_lost(error):
                raise
            if self._excuses:
                self._excuses -= 1  # a statement that crashes the server has no more
                if _probe(self._store) != server:
                    raise
            text = "a statement lost its connection again, while the database answers others"
            raise StoreRejected(text, fault=Fault.LOST) from error


def _probe(store: Store) -> str | None:
    """Ask for nothing by each of the Store's engines, so that neither has a connection from before.

    Since when the server is up; a crash of one backend changes nothing about that.
    """
    statement = "SELECT CAST(pg_catalog.pg_postmaster_start_time() AS text)" if store.is_postgresql else "SELECT NULL"
    up_since = None
    for begin in (store.begin, store.begin_own):
        with begin() as connection:
            up_since = connection.exec_driver_sql(statement).scalar()
    return up_since


def bounds(lease_seconds: float) -> tuple[Bounds, Bounds]:
    """Of a worker's transactions, and of those that hardly wait for a lock.

    A transaction may take a third of a lease, so that a server that hangs is left within the lease; and at least 5 s,
    because a machine that is merely busy would count as one.
    """
    whole = max(lease_seconds / 3, TRANSACTION_SECONDS_MIN)
    return Bounds(LOCK_SECONDS, whole), Bounds(BRISK_LOCK_SECONDS, whole)


def cut_overdue(store: Store, runtime: Runtime) -> None:
    """End every transaction that is overdue: the waiting thread then rides out an outage, or blames an `apply`."""
    silent = 0
    for call in store.deadlines.cut_overdue():
        if call.code is None:
            silent += 1
            continue
        job, frame = call.code.job, runtime.frame(call.thread)
        facts = {"job": job.id, "type": job.job_type, "at": frame_places(frame) if frame is not None else None}
        _log.error("apply.overdue", extra=facts)
    if silent:
        _log.warning("database.silent", extra={"connections_cut": silent})


class Lease:
    """The worker's own lease, by the lease clock. `renewed_at`: when the last heartbeat was sent."""

    def __init__(self, runtime: Runtime, seconds: float) -> None:
        self._clock, self._valid_seconds = runtime.lease_clock, seconds / 2
        self.renewed_at = self._clock()

    @property
    def is_valid(self) -> bool:
        """Whether the last heartbeat is younger than half the lease; only then an effect may start."""
        return self._clock() - self.renewed_at < self._valid_seconds


class WorkerContext:
    """One worker's database, settings, clock and state; every part takes it.

    Args:
        supervisor: starts the threads of the parts.

    Attributes:
        ledgers: job type → the ledger that records its effects, as of the worker's start.
        wake: set when the dispatcher has something to look at.
        stopping: set when no more jobs may start.
        logs_error_texts: whether texts of exceptions are logged, which may be personal.
        give_up_at: monotonic; when to stop waiting for the database or for jobs (the end of a drain's time).
    """

    def __init__(
        self, app: Effects, runtime: Runtime, supervisor: Supervisor, *, logs_error_texts: bool = False
    ) -> None:
        self.app, self.runtime, self.supervisor = app, runtime, supervisor
        self.logs_error_texts = logs_error_texts
        self.store, self.settings = app.store, app.settings
        self.job_types, self.ledgers = app.job_types, app.ledgers
        self.outage = Outage(runtime, app.store, lease_seconds=app.settings.lease_seconds)
        self.lease = Lease(runtime, app.settings.lease_seconds)
        self.wake, self.stopping = runtime.event(), runtime.event()
        self.give_up_at = float("inf")
        self._now = runtime.monotonic

    def may_start(self) -> bool:
        """Whether an attempt may begin now."""
        return not self.stopping.is_set() and self.lease.is_valid

    def gives_up(self) -> bool:
        """Whether to stop waiting for the database or for jobs."""
        return self.stopping.is_set() or self._now() >= self.give_up_at
