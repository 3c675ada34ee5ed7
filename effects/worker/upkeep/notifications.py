"""Noticing commits soon. Polling is the contract; this makes the wait short where it can be."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing, suppress
from typing import Any, TypeAlias

from effects.kit.logs import own_logger
from effects.store.notifier import channel, job_ids, listen, watch_channel
from effects.worker.context import WorkerContext
from effects.worker.machine.runtime import FileChanges, Readiness, Runtime
from effects.worker.supervisor import Service

SQLITE_LOOK_SECONDS = 0.005  # where the system tells of no writes; `PRAGMA data_version` costs some 4 µs
SQLITE_IDLE_SECONDS = 2.0  # else, between two looks without a write
SQLITE_FOLLOW_SECONDS = 0.5  # after a write, for its commit
SQLITE_STEP_SECONDS = 0.0005  # between two of those looks, at least
SQLITE_STEP_SHARE = 0.1  # of the time since the write
SQLITE_LONG_STEP_SECONDS = 0.005  # from here on a step ends with the next write
UNANNOUNCED_MAX = 3  # commits without a write that was told of
LISTEN_SECONDS = 5.0  # between two looks without a notification
RECONNECT_SECONDS = (0.2, 5.0)  # first and longest wait before the next try

_log = own_logger("effects.worker")
Wake: TypeAlias = Callable[[Collection[str] | None], None]


class NotificationListener(Service):
    """Calls `wake` when another process may have committed a job, with its queues if known; and tells the notifier of
    jobs whose end someone waits for.

    PostgreSQL: LISTEN on its own connection, not through a pooler; a NOTIFY is sent after the commit
    (`effects.store.notifier`). After an outage it listens on a new connection at once: the old one may lead to a server
    that hangs, or that is the primary no more, and would never fail.
    SQLite: `PRAGMA data_version` tells whether another connection has committed since the last look, which follows a
    write to the file.
    Without either (a pooler, an error), polling finds the job.
    """

    name = "wakeup"

    def __init__(self, context: WorkerContext, wake: Wake) -> None:
        super().__init__(context.runtime)
        self._again = context.runtime.event()  # connect again, now
        self._waits: Readiness | _Looks | None = None
        self._store, self._outage, self._wake, self._notifier = (
            context.store,
            context.outage,
            wake,
            context.app.notifier,
        )
        self._channel, self._watch_channel = channel(context.store.schema), watch_channel(context.store.schema)

    def run(self) -> None:
        watch = self._listen if self._store.is_postgresql else self._look
        wait = RECONNECT_SECONDS[0]
        while not self._ending.is_set():
            began = self._runtime.monotonic()
            try:
                watch()
            except Exception as error:
                _log.debug("wakeup.failed", extra={"error": type(error).__name__})
                if self._runtime.monotonic() - began > RECONNECT_SECONDS[1]:  # it had listened for a while
                    wait = RECONNECT_SECONDS[0]
                ends = self._again.wait(wait * (1 + self._runtime.random() / 2))  # the outage, or this service
                wait = RECONNECT_SECONDS[0] if ends else min(wait * 2, RECONNECT_SECONDS[1])

    def reconnect(self) -> None:
        """An outage is over."""
        self._again.set()
        self._interrupt()

    def stop(self) -> None:
        super().stop()
        self._again.set()
        self._interrupt()

    def _interrupt(self) -> None:
        if (waits := self._waits) is not None:
            with suppress(OSError):  # it has just ended
                waits.interrupt()

    def _listen(self) -> None:
        self._again.clear()
        if self._ending.is_set():  # it may have been stopped just before the line above
            return
        with self._outage.bounded(False):
            driver = listen(self._store, self._channel, self._watch_channel)
        if driver is None:
            self._again.wait()
            return
        self._wake(None)  # no one heard what was committed before this connection listened
        try:
            with closing(self._runtime.readiness(driver.fileno())) as readiness:
                self._waits = readiness
                while not (self._ending.is_set() or self._again.is_set()):
                    for hint in driver.notifies(timeout=0):
                        self._heard(hint)
                    readiness.wait(LISTEN_SECONDS)
        finally:
            self._waits = None
            driver.close()  # the pool's way would first roll back, and log a traceback where the server is gone

    def _heard(self, hint: Any) -> None:
        if hint.channel == self._watch_channel.lower():  # as the server folds it
            self._notifier.watch(job_ids(hint.payload))
        else:
            self._wake(hint.payload.split(",") if hint.payload else None)

    def _look(self) -> None:
        connection: Any = self._store.engine.raw_connection()
        try:
            cursor = connection.cursor()
            with closing(_Looks(cursor, self._ending, self._runtime)) as looks:
                self._waits = looks
                if self._ending.is_set():  # it may have been stopped just before the line above
                    return
                while looks.until_a_commit():
                    self._wake(None)
        finally:
            self._waits = None
            connection.close()


class _Looks:
    """Looks whether another connection has committed: when the file is written to, or else all the time.

    A write comes before its commit is seen, by the time of an fsync, so that looks follow it for a while.
    """

    def __init__(self, cursor: Any, ending: Any, runtime: Runtime) -> None:
        self._cursor, self._ending, self._now = cursor, ending, runtime.monotonic
        self._version: Any = None
        self._unannounced = 0
        self._changes = _changes_of(cursor, runtime)

    def until_a_commit(self) -> bool:
        """Wait for one; False when the service ends."""
        while not self._ending.is_set():
            if self._has_changed() or self._wait():
                return True
        return False

    def _wait(self) -> bool:
        if self._changes is None:
            self._ending.wait(SQLITE_LOOK_SECONDS)
            return False
        if self._changes.wait(SQLITE_IDLE_SECONDS):
            return self._follow()
        if not self._ending.is_set() and self._has_changed():
            self._unannounced += 1
            if self._unannounced >= UNANNOUNCED_MAX:  # a file system that does not tell
                self.close()
            return True
        return False

    def _follow(self) -> bool:
        """Look for the commit of a write, which comes the later the slower the disk is."""
        assert self._changes is not None
        written_at = self._now()
        while not self._ending.is_set() and (seconds := self._now() - written_at) < SQLITE_FOLLOW_SECONDS:
            if self._has_changed():
                return True
            step = max(SQLITE_STEP_SECONDS, seconds * SQLITE_STEP_SHARE)
            if step < SQLITE_LONG_STEP_SECONDS:
                self._ending.wait(step)
            elif self._changes.wait(step):
                written_at = self._now()  # of the next write
        return False

    def _has_changed(self) -> bool:
        before = self._version
        self._version = self._cursor.execute("PRAGMA data_version").fetchone()
        return bool(self._version != before)

    def interrupt(self) -> None:
        """End the wait, from another thread."""
        if (changes := self._changes) is not None:
            changes.interrupt()

    def close(self) -> None:
        """Look all the time from now on."""
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.close()


def _changes_of(cursor: Any, runtime: Runtime) -> FileChanges | None:
    """The changes of the database's file and of its log, if this system tells of them."""
    cursor.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens the log
    file = next((row[2] for row in cursor.execute("PRAGMA database_list").fetchall() if row[1] == "main"), "")
    [mode] = cursor.execute("PRAGMA journal_mode").fetchone()
    try:
        return runtime.file_changes([file, f"{file}-wal"] if mode == "wal" else [file]) if file else None
    except OSError:
        return None
