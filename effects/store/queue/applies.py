"""Running the `apply` of outcomes: code of the app, within the transaction that records them.

Each may take `APPLY_SECONDS`, has a savepoint, and must not end the transaction. `ApplyFailed` names the one to blame.

No COMMIT can write half of a batch. On PostgreSQL a cursor WITH HOLD is open while they run: a COMMIT would run its
query, which fails. On SQLite an authorizer refuses the statement. A ROLLBACK, which PostgreSQL cannot refuse, takes the
savepoint with it, and so is noticed. The message that releases the savepoint of one makes that of the next: a round
trip for each, and three for the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection

from effects.errors import ConfigurationError, EffectsError, StoreUnavailable
from effects.kit.crashpoints import CrashPoint
from effects.model.settlement import Settlement
from effects.store.db.deadlines import CodeAbandoned, CodeTime, shut
from effects.store.db.faults import Fault, fault_of, is_lost, state_of
from effects.store.db.store import Store

APPLY_SECONDS = 10.0  # what it waits for included
_ENDED = "an apply runs in the transaction of its outcome, and must not end it"
_SAVEPOINT = "SAVEPOINT effects_apply"
_RELEASE = "RELEASE SAVEPOINT effects_apply"
_CURSOR = (
    f"DECLARE effects_apply NO SCROLL CURSOR WITH HOLD FOR "
    f"SELECT CAST('{_ENDED}: ' || pg_catalog.random() AS pg_catalog.int4)"
)
# Of a session: what the next transaction on the same connection must not find changed.
_SETTINGS = (
    "role", "session_authorization", "search_path", "statement_timeout", "lock_timeout",
    "idle_in_transaction_session_timeout", "default_transaction_isolation", "default_transaction_read_only",
    "transaction_read_only", "session_replication_role", "row_security", "synchronous_commit", "TimeZone", "DateStyle",
)  # fmt: skip
_CURRENT = ", ".join(f"pg_catalog.current_setting('{name}')" for name in _SETTINGS)
_READ_SETTINGS = f"SELECT {_CURRENT}, pg_catalog.pg_advisory_unlock_all()"
_PRAGMAS = {
    "busy_timeout", "case_sensitive_like", "foreign_keys", "ignore_check_constraints", "locking_mode", "query_only",
    "read_uncommitted", "recursive_triggers", "reverse_unordered_selects", "synchronous", "writable_schema",
}  # fmt: skip
_LOOK_STEPS = 100_000  # of SQLite's machine: some milliseconds
_IN_TRANSACTION, _IN_ERROR, _LOST = 2, 3, 4  # libpq's PQtransactionStatus


class ApplyFailed(EffectsError):
    """The `apply` of an outcome failed, for the reason in `__cause__`. Nothing of the batch was written.

    Attributes:
        settlement: the outcome.
        fault: OUTAGE: it lost its connection, or took too long, which a database that goes away looks like as well.
    """

    def __init__(self, settlement: Settlement, fault: Fault = Fault.BUG) -> None:
        super().__init__("the apply of an outcome failed")
        self.settlement, self.fault = settlement, fault


class ApplyOverdue(EffectsError):
    """An `apply` took longer than it may."""


class SettingsChanged(EffectsError):
    """One of several `apply`s changed the session's settings: each is to run alone."""


def run_applies(store: Store, connection: Connection, settlements: Sequence[Settlement]) -> None:
    """Run the `apply` of each outcome that has one; afterwards the transaction is the one that it was.

    If it raises, the caller rolls back, and the connection is not used again.

    Raises:
        ApplyFailed: one of them is to blame.
        SettingsChanged: one of several is, and it is not known which.
        StoreUnavailable: together they took too long.
    """
    applying = [settlement for settlement in settlements if settlement.apply is not None]
    if not applying:
        return
    guard = _ServerGuard(store, connection) if store.is_postgresql else _FileGuard(connection)
    alone = len(applying) == 1
    try:
        guard.begin()
        for settlement in applying:
            passed = guard.next if settlement is not applying[-1] else partial(guard.end, alone=alone)
            _run(store, connection, settlement, guard, passed, alone=alone)
    except BaseException as error:
        guard.stop()
        lost = isinstance(error, CodeAbandoned) or (isinstance(error, ApplyFailed) and error.fault is Fault.OUTAGE)
        if lost and not connection.closed:
            connection.invalidate()
        elif not (connection.closed or connection.invalidated):
            connection.detach()  # closed after the rollback, with whatever was changed in its session
        raise


def _run(
    store: Store, connection: Connection, settlement: Settlement, guard: _ServerGuard | _FileGuard,
    passed: Callable[[], None], *, alone: bool,
) -> None:  # fmt: skip
    apply: Any = settlement.apply
    time = CodeTime(APPLY_SECONDS)
    try:
        with store.deadlines.code(settlement, time, guard.cut), _kept_open(connection):
            apply(connection)
        if time.is_over:
            raise ApplyOverdue(f"an apply may take {APPLY_SECONDS:g} s")
        guard.check()
        passed()
    except (CrashPoint, CodeAbandoned, SettingsChanged):
        raise
    except BaseException as error:
        overdue = time.is_over
        if fault_of(error) is Fault.CORRUPT:
            raise
        if store.deadlines.is_cut and not overdue and not alone:
            raise StoreUnavailable("a transaction took too long, and was cut") from error
        raise ApplyFailed(settlement, Fault.OUTAGE if overdue else _fault(error, guard)) from error


def _fault(error: BaseException, guard: _ServerGuard | _FileGuard) -> Fault:
    """OUTAGE: it lost its connection. CONFLICT: it may succeed later. BUG: else."""
    if is_lost(error) or (state_of(error) is None and guard.is_lost()):  # one with a state has SQLAlchemy close it
        return Fault.OUTAGE
    return Fault.CONFLICT if fault_of(error) in (Fault.CONFLICT, Fault.OUTAGE) else Fault.BUG


@contextmanager
def _kept_open(connection: Connection) -> Iterator[None]:
    """Refuse what would end the transaction by way of SQLAlchemy."""

    def refuse(*_: object, **__: object) -> None:
        raise ConfigurationError(_ENDED)

    ways = ("commit", "rollback", "close", "detach")  # not `invalidate`: SQLAlchemy does, when the server is gone
    for way in ways:
        setattr(connection, way, refuse)
    try:
        yield
    finally:
        for way in ways:
            delattr(connection, way)


class _ServerGuard:
    """Keeps a transaction of PostgreSQL from being ended while `apply`s run, and notices if it was.

    `check` tells what is known without asking the server, `next` comes between two of them. `cut` is for another
    thread; False if it is too early.
    """

    def __init__(self, store: Store, connection: Connection) -> None:
        self._connection, self._bounds = connection, store.deadlines.bounds
        self._driver: Any = connection.connection.driver_connection
        self._cursor: Any = connection.connection.cursor()  # a third of what SQLAlchemy's way costs

    def begin(self) -> None:
        self._cursor.execute(f"SET LOCAL statement_timeout = {round(APPLY_SECONDS * 1000)}; {_CURSOR}; {_SAVEPOINT}")
        settings = self._connection.info.setdefault("effects_settings", {})
        self._before = settings.get(self._bounds) or settings.setdefault(self._bounds, self._settings())

    def check(self) -> None:
        status = self._status()
        if status == _IN_ERROR:
            raise ConfigurationError("an apply went on after a statement had failed: use a savepoint")
        if status != _IN_TRANSACTION:
            raise ConfigurationError(_ENDED)

    def is_lost(self) -> bool:
        return self._status() == _LOST

    def next(self) -> None:
        self._checked(f"{_RELEASE}; {_SAVEPOINT}")

    def end(self, *, alone: bool) -> None:
        self._checked(_RELEASE)
        changed = {
            name: before
            for name, before, now in zip(_SETTINGS, self._before, self._settings(), strict=True)
            if now != before
        }
        if changed and not alone:
            raise SettingsChanged(f"an apply changed settings of the session: {', '.join(changed)}")
        self._checked("CLOSE effects_apply; SET LOCAL statement_timeout = 0")
        for name, before in changed.items():
            self._cursor.execute(f"SELECT pg_catalog.set_config('{name}', $effects${before}$effects$, true)")
        if changed:
            self._connection.detach()

    def stop(self) -> None:
        """The rollback ends all of it."""

    def cut(self) -> bool:
        shut(self._driver)
        return True

    def _status(self) -> int:
        info = getattr(self._driver, "info", None)  # psycopg and psycopg2
        return int(info.transaction_status) if info is not None else _IN_TRANSACTION

    def _settings(self) -> tuple[str, ...]:
        self._cursor.execute(_READ_SETTINGS)
        return tuple(self._cursor.fetchone()[:-1])

    def _checked(self, statements: str) -> None:
        try:
            self._cursor.execute(statements)
        except Exception as error:
            if self.is_lost():
                raise
            raise ConfigurationError(_ENDED) from error


class _FileGuard:
    """The same for SQLite."""

    def __init__(self, connection: Connection) -> None:
        self._driver: Any = connection.connection.driver_connection
        self._cut = False

    def begin(self) -> None:
        self._driver.set_authorizer(self._authorize)
        self._driver.set_progress_handler(lambda: self._cut, _LOOK_STEPS)
        self._driver.execute(_SAVEPOINT)

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_TRANSACTION:
            refused = not (self._cut and first == "ROLLBACK")
        elif action == sqlite3.SQLITE_PRAGMA:
            refused = first in _PRAGMAS and second is not None and not self._cut
        else:
            refused = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def check(self) -> None:
        if not self._driver.in_transaction:  # by ON CONFLICT ROLLBACK, or by an error that ends it
            raise ConfigurationError(_ENDED)

    def is_lost(self) -> bool:
        return False

    def next(self) -> None:
        self._driver.execute(_RELEASE)
        self._driver.execute(_SAVEPOINT)

    def end(self, *, alone: bool) -> None:
        self._driver.execute(_RELEASE)
        self.stop()

    def stop(self) -> None:
        with suppress(sqlite3.Error):  # it was closed
            self._driver.set_authorizer(None)
            self._driver.set_progress_handler(None, 0)

    def cut(self) -> bool:
        """Roll back, so that others may write, and keep what still runs from writing on its own.

        An interrupt that comes between two statements is lost, and the next one may have no end. Whoever speaks to the
        connection would wait for it: the statement itself looks, now and then, whether it is to end.
        """
        self._cut = True
        try:
            self._driver.interrupt()
            self._driver.execute("PRAGMA query_only = ON")
            self._driver.execute("ROLLBACK")
        except sqlite3.ProgrammingError:  # it was closed
            return True
        except sqlite3.Error:  # a statement that runs is not yet interrupted; or there is no transaction any more
            return not self._driver.in_transaction
        return True
