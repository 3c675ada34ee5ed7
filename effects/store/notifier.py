"""Telling others that something was committed: `NOTIFY` as a hint, never as the contract.

NOTIFY inside an enqueuing transaction takes a database-wide lock at commit. So the hint is sent after the
commit, from its own thread, and many commits within a few milliseconds share one.

Idle workers hear of queues with new jobs. Who waits for the end of a job says so on a second channel, and the worker
that ends it announces it on a third: where no one waits, nothing is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Any, Self

from effects.kit.logs import own_logger
from effects.kit.process import Newest, after_fork_in_child
from effects.kit.text.unsafe import whole_number
from effects.store.db.engine import pooler_between
from effects.store.db.store import Store

INTERVAL_SECONDS = 0.01
CLOSE_SECONDS = 5.0
REST_SECONDS = 10.0  # without a hint, after which the thread ends
PAYLOAD_BYTES_MAX = 7_900  # PostgreSQL takes 7,999
WATCHED_MAX = 10_000  # jobs whose end is announced; the oldest are forgotten, and their waiters poll
_log = own_logger("effects.notifier")


def channel(schema: str | None) -> str:
    """The NOTIFY channel of one set of tables."""
    return f"effects_{schema}" if schema else "effects"


def watch_channel(schema: str | None) -> str:
    """Where those who wait for the end of jobs name their ids."""
    return f"effects$watch_{schema}" if schema else "effects$watch"


def end_channel(schema: str | None) -> str:
    """Where the ids of these jobs are announced."""
    return f"effects$end_{schema}" if schema else "effects$end"


def job_ids(payload: str) -> set[int]:
    """The ids of a notification, which anyone may have sent."""
    return {number for text in payload.split(",") if (number := whole_number(text)) is not None}


def _notify(channel: str, names: Collection[str]) -> str:
    """The command and not `pg_notify`: it is not planned. An empty list of names means all.

    Its commit awaits no disk: a hint that is lost with the server is found by polling.
    """
    payload = ",".join(sorted(names)).replace("'", "''")
    if len(payload.encode()) >= PAYLOAD_BYTES_MAX:
        payload = ""
    return f"SET LOCAL synchronous_commit = off; NOTIFY {channel}, '{payload}'"


class Notifier:
    """Sends coalesced hints on PostgreSQL; on SQLite it does nothing, because workers see the file change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channel, self._end_channel = channel(store.schema), end_channel(store.schema)
        self.enabled = store.is_postgresql  # on SQLite workers see the file change
        self._closed = False
        self._reset()
        after_fork_in_child(self, Notifier._reset)

    def _reset(self) -> None:
        """Without thread and hints, as at the start. After a fork the child has neither the thread nor its locks."""
        self._hints: dict[str, set[str]] = {}  # channel → names
        self._watched = Newest[int, None](WATCHED_MAX)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def send(self, queues: Iterable[str]) -> None:
        """Hint soon, from another thread. Never fails, and waits for no one's statement."""
        self._send(self._channel, set(queues))

    def watch(self, ids: Iterable[int]) -> None:
        """Announce the end of these jobs, once, if it is this process that ends them."""
        with self._changed:
            for job_id in ids:
                self._watched[job_id] = None

    def ended(self, job_id: int) -> None:
        """Announce the end of a job that is watched; call it after the commit."""
        if job_id in self._watched:
            with self._changed:
                self._watched.pop(job_id, None)
            self._send(self._end_channel, {str(job_id)})

    def _send(self, channel: str, names: set[str]) -> None:
        if not (self.enabled and names):
            return
        with self._changed:
            if self._closed:
                return
            self._hints.setdefault(channel, set()).update(names)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="effects-notifier", daemon=True)
                self._thread.start()
            self._changed.notify()

    def note(self, queues: Iterable[str]) -> str | None:
        """The hint as a statement of the transaction that it is about; None where none is needed.

        NOTIFY takes a lock of the whole database at the commit: other transactions with one wait for it.
        """
        names = set(queues)
        return _notify(self._channel, names).partition("; ")[2] if self.enabled and names else None

    def close(self) -> None:
        """Send what is waiting and end the thread; one that hangs is left to itself after 5 s."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout=CLOSE_SECONDS)

    def _run(self) -> None:
        pause = threading.Event()
        while (hints := self._next()) is not None:
            for channel, names in hints.items():
                self._notify(channel, names)
            pause.wait(INTERVAL_SECONDS)

    def _next(self) -> dict[str, set[str]] | None:
        """Wait for hints and take them; None once closed, or after a rest, with nothing left to send."""
        with self._changed:
            self._changed.wait_for(lambda: self._hints or self._closed, REST_SECONDS)
            hints, self._hints = self._hints, {}
            if not hints:
                self._thread = None  # the next hint starts another
        return hints or None

    def _notify(self, channel: str, names: set[str]) -> None:
        try:
            with self._store.single() as connection:
                connection.execution_options(no_parameters=True).exec_driver_sql(_notify(channel, names))
        except Exception as error:  # whatever it is: the thread stays for the next hint, and polling finds the jobs
            _log.debug("hint not sent: %s", type(error).__name__)


def listen(store: Store, *channels: str) -> Any:
    """A driver's connection that listens to these channels, for the caller to close; None behind a pooler.

    There, notifications would go to another client of that connection, which would keep them in memory forever. The
    thread's bounds hold until it listens.
    """
    with store.deadlines.call() as call:
        connection: Any = store.engine.raw_connection()
        driver = connection.driver_connection
        connection.detach()  # it stays in LISTEN and must not go back to the pool
        if call is not None:
            call.driver = driver
        try:
            driver.autocommit = True
            if not pooler_between(driver):
                driver.execute("; ".join(f"LISTEN {name}" for name in channels))
                return driver
        except BaseException:
            driver.close()  # the pool's way would first roll back, and log a traceback where the server is gone
            raise
        driver.close()
        return None


class EndListener:
    """Waits for the announced end of a job, on its own connection; as a context manager.

    Where there are no notifications (SQLite, a pooler, an error) it only lets the time pass: its user looks himself.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._driver: Any = None

    def __enter__(self) -> Self:
        if self._store.is_postgresql:
            try:
                self._driver = listen(self._store, end_channel(self._store.schema))
            except Exception as error:
                _log.debug("not listening: %s", type(error).__name__)
        return self

    def __exit__(self, *error: object) -> None:
        if self._driver is not None:
            self._driver.close()

    def wait(self, job_id: int, seconds: float) -> None:
        """Return when the end of this job was announced, or after so many seconds."""
        try:
            if self._driver is not None and self._heard(job_id, seconds):
                return
        except Exception as error:  # the server has closed it, most often: looking still works
            _log.debug("no longer listening: %s", type(error).__name__)
            self._driver.close()
            self._driver = None
        if self._driver is None:
            threading.Event().wait(seconds)

    def _heard(self, job_id: int, seconds: float) -> bool:
        self._driver.execute(_notify(watch_channel(self._store.schema), [str(job_id)]))
        return any(
            not hint.payload or job_id in job_ids(hint.payload)
            for hint in self._driver.notifies(timeout=seconds, stop_after=1)
        )
