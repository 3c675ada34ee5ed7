"""The world's database: one SQLite file by virtual time, whose transactions meet faults at their edges.

The file and its connections serve one world after another: to open one and prepare its statements costs as much as
twenty effects.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from effects import Effects
from effects.errors import StoreUnavailable
from effects.store.db.faults import translated
from tests.simulator.scheduler import Scheduler, Signal, SimProcess

UNIX_DAY = 2440587.5  # 1970-01-01 as a Julian day
EPOCH = 1_800_000_000.0  # true time 0 of every world
TRANSACTION_SECONDS = 0.004  # at most, before and after each: without any, what looks again soon would never end
APPLIED = "CREATE TABLE applied (job_id INTEGER NOT NULL, token INTEGER NOT NULL)"  # the app's own table
# When each attempt lost its job, in true time, and until when it was leased: a worker may hear of it late, or never.
ENDS = "CREATE TABLE ends (job_id INTEGER NOT NULL, token INTEGER NOT NULL, at REAL NOT NULL, leased INTEGER NOT NULL)"
_ON_END = """CREATE TRIGGER {name} AFTER {event} ON effects_jobs WHEN OLD.status = 'running'
BEGIN INSERT INTO ends VALUES (OLD.id, OLD.lease_token, true_time(), OLD.locked_until); END"""


def lost_connection() -> OperationalError:
    """What SQLAlchemy raises where a connection is gone."""
    original = sqlite3.OperationalError("the connection is lost")
    original.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return OperationalError("", {}, original)


class SimFile:
    """The file. `connection` is the world's own, which no fault meets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        app = Effects(f"sqlite:///{path}", job_types=[])
        app.create_tables()
        app.store.dispose()
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.create_function("true_time", 0, lambda: 0.0)
        for statement in (APPLIED, ENDS, _ON_END.format(name="ends_deleted", event="DELETE"),
                          _ON_END.format(name="ends_raised", event="UPDATE OF lease_token")):  # fmt: skip
            self.connection.execute(statement)
        names = [name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self._first = {name: self.connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}

    def reset(self) -> None:
        """Have it as it was at first."""
        self.connection.execute("BEGIN IMMEDIATE")
        for name, rows in self._first.items():
            self.connection.execute(f"DELETE FROM {name}")
            if rows:
                places = ", ".join("?" * len(rows[0]))
                self.connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
        self.connection.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()


class SimDatabase:
    """What one world has of the file.

    Attributes:
        committed: woken by each commit.
        offset: how far its clock is ahead of true time.
        away_until: until then every transaction is refused.
        edge: called by a process before (True) and after each of its commits; it may crash the process or raise.
    """

    def __init__(self, scheduler: Scheduler, file: SimFile) -> None:
        self._scheduler, self.file = scheduler, file
        self.committed = Signal(scheduler)
        self.offset = self.away_until = 0.0
        self.edge: Callable[[SimProcess, bool], None] = lambda process, before: None
        self._copy = sqlite3.connect(":memory:")

    def now(self) -> float:
        return EPOCH + self.true_time() + self.offset

    def true_time(self) -> float:
        return self._scheduler.now

    def random(self) -> int:
        return self._scheduler.random.getrandbits(63)

    def query(self, statement: str, *values: object) -> list[Any]:
        """Look without taking part in the world."""
        return self.file.connection.execute(statement, values).fetchall()

    def remember(self) -> None:
        """Take the copy that a failover may go on with."""
        self.file.connection.backup(self._copy)

    def forget(self) -> None:
        """Go on with the copy: what was committed since then is lost."""
        self._copy.backup(self.file.connection)
        self.committed.notify()

    def close(self) -> None:
        self._copy.close()

    def begin(self, process: SimProcess, begin: Callable[[], Any]) -> Iterator[Any]:
        self._arrive()
        with begin() as connection:
            yield connection
            self._scheduler.check()
            self.edge(process, True)
        self.committed.notify()
        with translated(str):
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
        self.database: SimDatabase | None = None
        self.process: SimProcess | None = None
        store: Any = app.store
        for engine in app.store.engines:
            event.listen(engine, "connect", lambda driver, record: self._tell(driver))
        begin, reading = store._begin, store._reading
        store._begin = contextmanager(lambda connect: self._world().begin(self.process, lambda: begin(connect)))  # type: ignore[arg-type]
        store._reading = contextmanager(lambda connect: self._world().read(lambda: reading(connect)))

    def _tell(self, driver: sqlite3.Connection) -> None:
        """The world's clock and randomness in place of SQLite's own; as that, the clock is read once a statement."""
        driver.create_function(
            "julianday", 1, lambda of: UNIX_DAY + self._world().now() / 86400.0, deterministic=True
        )  # fmt: skip
        driver.create_function("random", 0, lambda: self._world().random())
        driver.create_function("true_time", 0, lambda: self._world().true_time())

    def _world(self) -> SimDatabase:
        assert self.database is not None
        return self.database

    def enter(self, database: SimDatabase, process: SimProcess) -> Host:
        self.database, self.process = database, process
        return self
