"""The dashboard's own connections, so that pages take none from the app or its workers, and none of them lasts."""

from __future__ import annotations

import copy
import sqlite3
import time
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from effects.app import Effects, installed_tables
from effects.store.db.deadlines import Bounds
from effects.store.db.engine import HAS_DEFAULTS, LOCK_SECONDS, autocommit_engine, create_engine, set_for_session
from effects.store.db.store import Store

STATEMENT_SECONDS = 2.0
ACT_BOUNDS = Bounds(lock_seconds=LOCK_SECONDS, seconds=10.0)
APPLICATION_NAME = "effects-web"
_SQLITE_STEPS = 20_000  # of its machine, between two looks at the clock
_SESSION = {
    "statement_timeout": f"{STATEMENT_SECONDS:g}s", "lock_timeout": f"{LOCK_SECONDS:g}s",
    "application_name": APPLICATION_NAME,
}  # fmt: skip


def beside(app: Effects) -> Effects:
    """The same app, with a Store on connections of its own: a statement is ended after 2 seconds, and so is a wait for
    a lock.

    The dashboard answers three requests at a time, so that there are at most three connections of each kind. They are
    closed by the app's `dispose`. Behind a connection pooler, which shares its sessions, the server's own limits hold.
    """
    engine = create_engine(app.engine.url.render_as_string(hide_password=False))
    autocommit = autocommit_engine(engine)
    for own in filter(None, (engine, autocommit)):
        _bound_statements(own)
        app.own_engine(own)
    twin = copy.copy(app)
    twin._states = {}  # what packages keep is of the app on these connections, and the app's own stays on its own
    twin.engine = engine
    twin.store = Store(engine, schema=app.settings.schema, builders=list(installed_tables()), autocommit=autocommit)
    twin.store.init_command = app.store.init_command
    return twin


def _bound_statements(engine: Engine) -> None:
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _limit_session)
    else:
        event.listen(engine, "connect", _limit_file)
        event.listen(engine, "checkout", _start_clock)


def _limit_session(driver: Any, record: ConnectionPoolEntry) -> None:
    """The limits of a page. An action that writes sets its own, because the session no longer has the defaults."""
    autocommit = driver.autocommit
    driver.autocommit = True
    try:
        if set_for_session(driver, _SESSION):
            record.info.pop(HAS_DEFAULTS, None)
    finally:
        driver.autocommit = autocommit


def _limit_file(driver: sqlite3.Connection, record: Any) -> None:
    driver.execute(f"PRAGMA busy_timeout={round(LOCK_SECONDS * 1000)}")
    info = record.info
    driver.set_progress_handler(lambda: time.monotonic() > info.get("until", float("inf")), _SQLITE_STEPS)


def _start_clock(driver: object, record: Any, proxy: object) -> None:
    record.info["until"] = time.monotonic() + STATEMENT_SECONDS
