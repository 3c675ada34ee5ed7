"""The world's database: a SQLite file in memory by virtual time, whose transactions meet faults at their edges."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event

from effects import Effects
from effects.errors import StoreUnavailable
from tests.simulator.scheduler import Scheduler, Signal, SimProcess

UNIX_DAY = 2440587.5  # 1970-01-01 as a Julian day
EPOCH = 1_800_000_000.0  # true time 0 of every world
TRANSACTION_SECONDS = 0.004  # at most, before and after each: without any, what looks again soon would never end
LOG_SUFFIXES = ("", "-wal", "-shm")


class SimDatabase:
    """One file, copied from a template.

    Attributes:
        committed: woken by each commit.
        offset: how far its clock is ahead of true time.
        away_until: until then every transaction is refused.
        edge: called by a process before (True) and after each of its commits; it may crash the process or raise.
    """

    def __init__(self, scheduler: Scheduler, file: Path) -> None:
        self._scheduler, self.file = scheduler, file
        self.committed = Signal(scheduler)
        self.offset = self.away_until = 0.0
        self.edge: Callable[[SimProcess, bool], None] = lambda process, before: None

    def now(self) -> float:
        return EPOCH + self._scheduler.now + self.offset

    def create_functions(self, driver: sqlite3.Connection) -> None:
        """Its clock and its randomness in place of SQLite's own."""
        driver.create_function("julianday", 1, lambda of: UNIX_DAY + self.now() / 86400.0)
        driver.create_function("random", 0, lambda: self._scheduler.random.getrandbits(63))

    def begin(self, process: SimProcess, begin: Callable[[], Any]) -> Iterator[Any]:
        self._arrive()
        with begin() as connection:
            yield connection
            self._scheduler.check()
            self.edge(process, True)
        self.committed.notify()
        self.edge(process, False)
        self._give_way()

    def read(self, begin: Callable[[], Any]) -> Iterator[Any]:
        self._arrive()
        with begin() as connection:
            yield connection
        self._give_way()

    def _arrive(self) -> None:
        self._give_way()
        if self._scheduler.now < self.away_until:
            raise StoreUnavailable("the database is away")

    def _give_way(self) -> None:
        if self._scheduler.running is not None:
            self._scheduler.sleep(self._scheduler.random.random() * TRANSACTION_SECONDS)


class Host:
    """An app that is used again by one world after another: what it costs to build is no part of a world."""

    def __init__(self, app: Effects) -> None:
        self.app = app
        self._database: SimDatabase | None = None
        self._process: SimProcess | None = None
        store: Any = app.store
        for engine in app.store.engines:
            event.listen(engine, "connect", lambda driver, record: self._world().create_functions(driver))
        begin, reading = store._begin, store._reading
        store._begin = contextmanager(
            lambda connect: self._world().begin(self._process, lambda: begin(connect))  # type: ignore[arg-type]
        )
        store._reading = contextmanager(lambda connect: self._world().read(lambda: reading(connect)))

    def _world(self) -> SimDatabase:
        assert self._database is not None
        return self._database

    def enter(self, database: SimDatabase, process: SimProcess) -> None:
        self._database, self._process = database, process
        self.app.engine.dispose()


def copy_template(template: Path, file: Path) -> None:
    for suffix in LOG_SUFFIXES:
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(template, file)
