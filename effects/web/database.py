"""The dashboard's own connections, so that pages take none from the app or its workers, and none of them lasts."""

from __future__ import annotations

import copy
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from effects.app import Effects, installed_tables
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
