"""The dashboard's own connections, and readings that pages share.

Pages take no connection from the app or its workers, and none of their statements lasts. What takes long to count is
counted once for all who look at it.
"""

from __future__ import annotations

import copy
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from effects.app.effects import Effects, installed_tables
from effects.errors import StoreConflict, StoreUnavailable
from effects.store.db.deadlines import Bounds, Deadlines
from effects.store.db.engine import (
    HAS_DEFAULTS,
    LOCK_SECONDS,
    autocommit_engine,
    create_engine,
    engine_beside,
    set_for_session,
)
from effects.store.db.faults import is_cancelled
from effects.store.db.store import Store

T = TypeVar("T")

STATEMENT_SECONDS = 2.0
COUNT_SECONDS = 10.0  # of a statement that no page waits for
ACT_BOUNDS = Bounds(lock_seconds=LOCK_SECONDS, seconds=10.0)
# A server ends statements that take too long, unless it is frozen. Then `DeadlineWatch` ends the transaction, later.
PAGE_BOUNDS = Bounds(lock_seconds=LOCK_SECONDS, seconds=30.0)
COUNT_BOUNDS = Bounds(lock_seconds=LOCK_SECONDS, seconds=6 * COUNT_SECONDS)
WATCH_SECONDS = 1.0
APPLICATION_NAME = "effects-web"
_SQLITE_STEPS = 20_000  # of its machine, between two looks at the clock


def twice(read: Callable[[], T]) -> T:
    """Read, and once more where the connection was lost: a server that was started again answers a fresh one."""
    try:
        return read()
    except StoreUnavailable as error:
        if isinstance(error, StoreConflict) or is_cancelled(error):
            raise
    return read()


def bounded(store: Store, bounds: Bounds) -> AbstractContextManager[None]:
    """On PostgreSQL each transaction of this thread ends within these bounds; in a file a statement has its clock."""
    return store.within(bounds) if store.is_postgresql else nullcontext()


class DeadlineWatch:
    """A thread that closes the connections of transactions that are past their bounds: no one else ends their wait.

    It ends with `close`, or once the app is disposed of.
    """

    def __init__(self, app: Effects, stores: Sequence[Store]) -> None:
        self._app = app
        self._stores = [store for store in stores if store.is_postgresql]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="effects-web-watch", daemon=True)
        if self._stores:
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.set()

    def _look(self) -> None:
        while not self._end.wait(WATCH_SECONDS) and not self._app.disposed:
            for store in self._stores:
                store.deadlines.cut_overdue()


def beside(app: Effects, seconds: float = STATEMENT_SECONDS) -> Effects:
    """The same app, with a Store on connections of its own: a statement is ended after so many seconds, and a wait for
    a lock after 2. An action has `ACT_BOUNDS`; in an SQLite file, which has one lock for all, it waits as long for it.

    The dashboard answers three requests at a time, so that there are at most three connections of each kind. They are
    closed by the app's `dispose`. Behind a connection pooler, which shares its sessions, the server's own limits hold.
    """
    engine, autocommit = _engines_beside(app)
    twin = copy.copy(app)
    twin._states = {}  # what packages keep is of the app on these connections, and the app's own stays on its own
    twin.engine = engine
    twin.store = Store(engine, schema=app.settings.schema, builders=list(installed_tables()), autocommit=autocommit)
    twin.store.shift_clock(app.store.sql.shift_seconds)
    for own in filter(None, (engine, autocommit)):
        _bound_statements(own, seconds, twin.store.deadlines)
        app.own_engine(own)
    twin.store.init_command = app.store.init_command
    return twin


def _engines_beside(app: Effects) -> tuple[Engine, Engine | None]:
    """As ours, or as the app's own, which alone knows how its connections are made."""
    if app.store.is_postgresql and len(app.store.engines) == 1:
        return engine_beside(app.engine), None
    engine = create_engine(app.engine.url.render_as_string(hide_password=False))
    return engine, autocommit_engine(engine)


def _bound_statements(engine: Engine, seconds: float, deadlines: Deadlines) -> None:
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", partial(_limit_session, seconds))
    else:
        event.listen(engine, "connect", _limit_file)
        event.listen(engine, "checkout", partial(_start_clock, seconds, deadlines))


def _limit_session(seconds: float, driver: Any, record: ConnectionPoolEntry) -> None:
    """The limits of a page. An action that writes sets its own, because the session no longer has the defaults."""
    session = {
        "statement_timeout": f"{seconds:g}s", "lock_timeout": f"{LOCK_SECONDS:g}s",
        "application_name": APPLICATION_NAME,
    }  # fmt: skip
    autocommit = driver.autocommit
    driver.autocommit = True
    try:
        if set_for_session(driver, session):
            record.info.pop(HAS_DEFAULTS, None)
    finally:
        driver.autocommit = autocommit


def _limit_file(driver: sqlite3.Connection, record: Any) -> None:
    info = record.info
    driver.set_progress_handler(lambda: time.monotonic() > info.get("until", float("inf")), _SQLITE_STEPS)


def _start_clock(seconds: float, deadlines: Deadlines, driver: sqlite3.Connection, record: Any, proxy: object) -> None:
    """Of a page; an action has the time of its own bounds, and may spend it behind a worker that writes and writes."""
    bounds = deadlines.bounds
    lock_seconds, seconds = (LOCK_SECONDS, seconds) if bounds is None else (bounds.seconds, bounds.seconds)
    driver.execute(f"PRAGMA busy_timeout={round(lock_seconds * 1000)}")
    record.info["until"] = time.monotonic() + seconds


# For a person who opens a page, an answer is kept for 20 times as long as it took: at most a twentieth of the time.
PERSON_TIMES = 20.0
# For pages that refresh themselves, so that all their questions together take at most 1/125 of the database's time.
POLL_TIMES = 125.0
OPEN_SECONDS = 120.0  # a question that no one has asked for so long is on no open page
OLD_SECONDS = 600.0  # what expired before that is not shown while it is counted again
PATIENCE_SECONDS = 0.2
_KEPT_MAX = 1_000


class StillCountingError(Exception):
    """The answer is being read, and takes longer than a page waits."""


@dataclass(slots=True)
class Reading:
    """What was read, when, how many seconds it took, and when it was last shown (of a monotonic clock)."""

    value: Any
    read_at: float
    cost: float
    used_at: float


class Readings:
    """What was read last, by question. Of many who ask at once one reads, and the others wait for it.

    Args:
        patience: how long a page waits for a count; seconds.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._kept: dict[Hashable, Reading] = {}
        self._counting: dict[Hashable, Future[Any]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def get(self, question: Hashable, seconds: float, read: Callable[[], T], *, polled: bool = False) -> T:
        """The answer, at most `seconds` old, or longer where it takes long to read.

        What `read` raises is passed on, and nothing is kept. Questions that are answered are few: names in our code,
        and ids of rows that are there.

        Args:
            polled: whether a page refreshes itself, and no person waits.
        """
        with self._lock:
            lock = self._locks.setdefault(question, threading.Lock())
        try:
            with lock:
                kept = self._fresh(question, seconds, polled=polled)
                if kept is None:
                    kept = self._read(question, read, self._kept)
                answer: T = kept.value
                return answer
        finally:
            with self._lock:
                self._locks.pop(question, None)  # those who wait for it have it, and find the answer

    def count(self, question: Hashable, seconds: float, read: Callable[[], T], *, polled: bool = False) -> T:
        """The same for what may take seconds: it is read in a thread, one question after the other.

        An answer that is too old is given while the next one is read.

        Raises:
            StillCountingError: nothing was kept, and it takes longer than a page waits; asked again, it comes.
        """
        kept = self._fresh(question, seconds, polled=polled)
        if kept is None:
            kept = self._kept.get(question)
            counting = self._begin(question, read)
            if kept is None or counting.done() or self.age(question) > OLD_SECONDS + PERSON_TIMES * kept.cost:
                return self._await(question, counting)  # type: ignore[no-any-return]
        answer: T = kept.value
        return answer

    def age(self, question: Hashable) -> float:
        """How many seconds ago it was read; 0 where it never was."""
        kept = self._kept.get(question)
        return 0.0 if kept is None else time.monotonic() - kept.read_at

    def forget(self) -> None:
        """Read again from here on: a person has acted."""
        with self._lock:
            self._kept = {}
            self._counting = {}

    def close(self) -> None:
        """End the thread, once it has read what it reads."""
        with self._lock:
            threads = self._threads
        if threads is not None:
            threads.shutdown(cancel_futures=True)

    # -- what is kept ------------------------------------------------------------------------------------------

    def _fresh(self, question: Hashable, seconds: float, *, polled: bool) -> Reading | None:
        now = time.monotonic()
        kept = self._kept.get(question)
        if kept is None or now - kept.read_at > self.keeps(kept, seconds, polled=polled):
            return None
        kept.used_at = now
        return kept

    def keeps(self, kept: Reading, seconds: float, *, polled: bool) -> float:
        """For how long it is given again.

        By the square root of its cost, which is where the sum of all ages is least within the budget.
        """
        if not polled:
            return max(seconds, PERSON_TIMES * kept.cost)
        since = time.monotonic() - OPEN_SECONDS
        with self._lock:
            roots = sum(math.sqrt(each.cost) for each in self._kept.values() if each.used_at >= since)
        return max(seconds, POLL_TIMES * math.sqrt(kept.cost) * roots)

    def keep(self, question: Hashable, value: Any, cost: float) -> Reading:
        """Give it from now on to whoever asks."""
        return self._keep(question, value, cost, self._kept)

    def _read(self, question: Hashable, read: Callable[[], Any], kept_by: dict[Hashable, Reading]) -> Reading:
        """Kept where it was begun: what was read before a person acted is not given after it."""
        began = time.monotonic()
        value = read()
        return self._keep(question, value, time.monotonic() - began, kept_by)

    def _keep(self, question: Hashable, value: Any, cost: float, kept_by: dict[Hashable, Reading]) -> Reading:
        now = time.monotonic()
        reading = Reading(value, now, cost, now)
        with self._lock:
            kept_by[question] = reading
            if len(kept_by) > _KEPT_MAX:
                del kept_by[min(kept_by, key=lambda each: kept_by[each].used_at)]
        return reading

    # -- counting ----------------------------------------------------------------------------------------------

    def _begin(self, question: Hashable, read: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="effects-web-count")
            counting = self._counting.get(question)
            if counting is None:
                counting = self._threads.submit(self._count, question, read, self._kept, self._counting)
                self._counting[question] = counting
        return counting

    def _count(
        self, question: Hashable, read: Callable[[], Any], kept_by: dict[Hashable, Reading],
        counted_by: dict[Hashable, Future[Any]],
    ) -> Any:  # fmt: skip
        """What it raises stays for the next who asks."""
        value = self._read(question, read, kept_by).value
        with self._lock:
            counted_by.pop(question, None)
        return value

    def _await(self, question: Hashable, counting: Future[Any]) -> Any:
        if not wait([counting], self.patience).done:
            raise StillCountingError
        with self._lock:
            if self._counting.get(question) is counting:
                del self._counting[question]
        return counting.result()
