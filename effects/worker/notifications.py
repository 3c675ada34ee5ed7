"""Noticing commits soon. Polling is the contract; this makes the wait short where it can be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from sqlalchemy import Engine

from effects.notifier import channel, job_ids, listen, watch_channel
from effects.worker.runtime import Runtime
from effects.worker.supervisor import Service

SQLITE_LOOK_SECONDS = 0.005  # `PRAGMA data_version` costs some 4 µs
LISTEN_SECONDS = 0.25  # a stop, or the end of an outage, is noticed after so long
RECONNECT_SECONDS = (0.2, 5.0)  # first and longest wait before the next try

_log = logging.getLogger("effects.worker")
Wake: TypeAlias = Callable[[Collection[str] | None], None]
Watch: TypeAlias = Callable[[Collection[int]], None]


class NotificationListener(Service):
    """Calls `wake` when another process may have committed a job, with its queues if known; and `watch` with the ids of
    jobs whose end someone waits for.

    PostgreSQL: LISTEN on a connection of its own, not through a pooler; a NOTIFY is sent after the commit
    (`effects.notifier`). After an outage it listens on a new connection at once: the old one may lead to a server that
    hangs, or that is the primary no more, and would never fail.
    SQLite: `PRAGMA data_version` tells whether another connection has committed since the last look.
    Without either (a pooler, an error), polling finds the job.
    """

    name = "wakeup"

    def __init__(self, engine: Engine, schema: str | None, wake: Wake, watch: Watch, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._again = runtime.event()  # connect again, now
        self._engine, self._wake, self._on_watch = engine, wake, watch
        self._channel, self._watch_channel = channel(schema), watch_channel(schema)

    def run(self) -> None:
        watch = self._listen if self._engine.dialect.name == "postgresql" else self._look
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

    def stop(self) -> None:
        super().stop()
        self._again.set()

    def _listen(self) -> None:
        self._again.clear()
        if self._ending.is_set():  # it may have been stopped just before the line above
            return
        driver = listen(self._engine, self._channel, self._watch_channel)
        if driver is None:
            self._again.wait()
            return
        self._wake(None)  # no one heard what was committed before this connection listened
        try:
            while not (self._ending.is_set() or self._again.is_set()):
                for hint in driver.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                    self._heard(hint)
        finally:
            driver.close()  # the pool's way would first roll back, and log a traceback where the server is gone

    def _heard(self, hint: Any) -> None:
        if hint.channel == self._watch_channel.lower():  # as the server folds it
            self._on_watch(job_ids(hint.payload))
        else:
            self._wake(hint.payload.split(",") if hint.payload else None)

    def _look(self) -> None:
        connection: Any = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            seen = None
            while not self._ending.wait(SQLITE_LOOK_SECONDS):
                version = cursor.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    seen = version
                    self._wake(None)
        finally:
            connection.close()
