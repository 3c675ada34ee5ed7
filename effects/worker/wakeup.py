"""Noticing commits soon. Polling is the contract; this makes the wait short where it can be."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from sqlalchemy import Engine

from effects.hints import channel
from effects.store.pooler import pooler_between

SQLITE_LOOK_SECONDS = 0.005  # `PRAGMA data_version` costs some 4 µs
LISTEN_SECONDS = 0.25  # a stop is noticed after so long
RECONNECT_SECONDS = 5.0

_log = logging.getLogger("effects.worker")
Wake: TypeAlias = Callable[[Collection[str] | None], None]


class Wakeup(threading.Thread):
    """Calls `wake` when somebody else may have committed a job, with its lanes where they are known.

    PostgreSQL: LISTEN on a connection of its own; a NOTIFY is sent after the commit (`effects.hints`). Not through
    a pooler: the server's answer would go to whoever has that connection then, who keeps it in memory for ever.
    SQLite: `PRAGMA data_version` tells whether another connection has committed since the last look.
    Without either (a pooler, an error), polling finds the job.
    """

    def __init__(self, engine: Engine, schema: str | None, wake: Wake) -> None:
        super().__init__(name="effects-wakeup", daemon=True)
        self._engine, self._channel, self._wake = engine, channel(schema), wake
        self._ending = threading.Event()

    def run(self) -> None:
        watch = self._listen if self._engine.dialect.name == "postgresql" else self._look
        while not self._ending.is_set():
            try:
                watch()
            except Exception as error:
                _log.debug("wakeup.failed", extra={"error": type(error).__name__})
                self._ending.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        connection: Any = self._engine.raw_connection()
        driver = connection.driver_connection
        connection.detach()  # it stays in LISTEN and must not go back to the pool
        try:
            driver.autocommit = True
            if pooler_between(driver):
                self._ending.wait()
                return
            driver.execute(f"LISTEN {self._channel}")
            while not self._ending.is_set():
                for hint in driver.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                    self._wake(hint.payload.split(",") if hint.payload else None)
        finally:
            driver.close()  # the pool's way would first roll back, and log a traceback where the server is gone

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

    def stop(self) -> None:
        self._ending.set()
