"""What an error of the database means for us: one table for each database.

| fault | what is right |
|---|---|
| `conflict` | another transaction was in the way: repeat it; the database is there |
| `outage` | the database is unavailable, full or shutting down: wait, and repeat it on fresh connections |
| `read_only` | as an outage: this is not the server to write to, and a fresh connection may find the one that is |
| `schema` | our tables are not there: a deploy may be under way, so wait for a while |
| `data` | a row, or what is to be written, is at fault: narrow it down, and repeat the others |
| `denied` | a privilege is missing: an operator can grant it meanwhile |
| `lost` | a statement lost its connection a second time, while the database answers others: as `data` |
| `corrupt` | the file is damaged: no reaction of ours can help |
| `bug` | anything else: log it and continue |
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine, ExceptionContext, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from effects.errors import EffectsError, StoreConflict, StoreRejected, StoreUnavailable

_QUERY_CANCELED = "57014"
_LOCK_NOT_AVAILABLE = "55P03"
_OF_ENCODINGS = ("22021", "22P05")  # a character that the other encoding has not
_ENDED_BY_SERVER = ("25P03", "25P04", "57P01", "57P02", "57P05")  # idle, transaction_timeout, terminated, crash, idle
_SQLITE_SCHEMA = (
    "no such table",
    "no such column",
    "has no column named",
    "no such index",
)  # SQLITE_ERROR, by its text
_SQLITE_DATA = ("malformed JSON", "bad JSON path", "JSON path error", "integer overflow")
_MISSING_TABLE = re.compile(r'(?:relation "|no such table: )(?:\w+\.)?(\w+)')
# Execution option of the Store's connections: those whose server is unavailable are not used again.
OURS = {"effects_store": True}


class Fault(StrEnum):
    """The classes of errors; see the table above."""

    CONFLICT = "conflict"
    OUTAGE = "outage"
    READ_ONLY = "read_only"
    SCHEMA = "schema"
    DATA = "data"
    LOST = "lost"
    DENIED = "denied"
    CORRUPT = "corrupt"
    BUG = "bug"


# SQLSTATE, or the beginning of some; the longest that fits holds. (PostgreSQL, Appendix A.)
POSTGRESQL = {
    "08": Fault.OUTAGE,  # connection exceptions
    "21": Fault.DATA,  # cardinality violation
    "22": Fault.DATA,  # data exceptions
    "23": Fault.DATA,  # integrity constraint violations
    "25006": Fault.READ_ONLY,
    "25P03": Fault.CONFLICT,  # idle_in_transaction_session_timeout
    "25P04": Fault.CONFLICT,  # transaction_timeout
    "28": Fault.DENIED,  # invalid authorization
    "3D": Fault.SCHEMA,  # no such database
    "3F": Fault.SCHEMA,  # no such schema
    "40": Fault.CONFLICT,  # serialization failure, deadlock
    "40003": Fault.OUTAGE,  # whether the statement completed is unknown
    "42501": Fault.DENIED,
    "42703": Fault.SCHEMA,  # no such column
    "42704": Fault.SCHEMA,  # no such object
    "42883": Fault.SCHEMA,  # no such function
    "42P01": Fault.SCHEMA,  # no such table
    "42P10": Fault.SCHEMA,  # ON CONFLICT names a unique index that is not there
    "44": Fault.DATA,  # WITH CHECK OPTION violation
    "53": Fault.OUTAGE,  # insufficient resources: too many connections, disk full, out of memory
    "54": Fault.DATA,  # a value larger than a program limit, such as that of an index's row
    "55P03": Fault.CONFLICT,  # lock_timeout
    "57": Fault.OUTAGE,  # operator intervention: shutdown, crash, a cancelled statement
    "58": Fault.OUTAGE,  # system errors: I/O, a file that is gone
    "P0": Fault.DATA,  # raised by a trigger, about a row
}  # fmt: skip

# The primary result code: the low byte of `sqlite_errorcode`. (sqlite.org/rescode.html.)
SQLITE = {
    sqlite3.SQLITE_PERM: Fault.OUTAGE,
    sqlite3.SQLITE_ABORT: Fault.CONFLICT,
    sqlite3.SQLITE_BUSY: Fault.CONFLICT,
    sqlite3.SQLITE_LOCKED: Fault.CONFLICT,
    sqlite3.SQLITE_NOMEM: Fault.OUTAGE,
    sqlite3.SQLITE_READONLY: Fault.READ_ONLY,
    sqlite3.SQLITE_INTERRUPT: Fault.CONFLICT,
    sqlite3.SQLITE_IOERR: Fault.OUTAGE,
    sqlite3.SQLITE_CORRUPT: Fault.CORRUPT,
    sqlite3.SQLITE_FULL: Fault.OUTAGE,
    sqlite3.SQLITE_CANTOPEN: Fault.OUTAGE,
    sqlite3.SQLITE_PROTOCOL: Fault.CONFLICT,  # many processes open the WAL at once
    sqlite3.SQLITE_SCHEMA: Fault.CONFLICT,  # the schema changed under a statement
    sqlite3.SQLITE_TOOBIG: Fault.DATA,
    sqlite3.SQLITE_CONSTRAINT: Fault.DATA,
    sqlite3.SQLITE_MISMATCH: Fault.DATA,
    sqlite3.SQLITE_NOLFS: Fault.OUTAGE,  # the file system holds no larger file
    sqlite3.SQLITE_AUTH: Fault.DENIED,
    sqlite3.SQLITE_RANGE: Fault.DATA,
    sqlite3.SQLITE_NOTADB: Fault.CORRUPT,
}


def fault_of(error: BaseException) -> Fault:
    """Classify an error of SQLAlchemy, or of ours; BUG if it is not the database's."""
    if isinstance(error, StoreRejected):
        return Fault(error.fault)
    if isinstance(error, StoreConflict):
        return Fault.CONFLICT
    if isinstance(error, StoreUnavailable):
        return Fault.READ_ONLY if error.read_only else Fault.OUTAGE
    if isinstance(error, PoolTimeout):  # our own threads hold every connection
        return Fault.CONFLICT
    if not isinstance(error, DBAPIError):
        return Fault.BUG
    original: Any = error.orig
    if isinstance(original, sqlite3.Error):
        return _of_sqlite(original)
    if _preparation_is_stale(error):
        return Fault.CONFLICT
    if (state := state_of(error)) is not None:
        return Fault.DENIED if _session_encoding(error) else _of_state(state)
    if error.connection_invalidated:
        return Fault.OUTAGE
    if type(error).__name__ == "DataError":  # psycopg refuses a value before the server sees it
        return Fault.DATA
    # psycopg raises a bare OperationalError (no SQLSTATE) when the socket is gone or cannot be opened.
    return Fault.OUTAGE if isinstance(error, OperationalError | InterfaceError) else Fault.BUG


def may_pass(error: BaseException) -> bool:
    """Whether the whole transaction may succeed later: another one was in the way, or the database is unavailable."""
    return fault_of(error) in (Fault.CONFLICT, Fault.OUTAGE, Fault.READ_ONLY)


def state_of(error: BaseException) -> str | None:
    """The SQLSTATE, or SQLite's name of the error; None where there is neither."""
    original = getattr(error, "orig", None)
    names = ("sqlstate", "pgcode", "sqlite_errorname")  # of psycopg 3, psycopg2 and sqlite3
    state = next((state for name in names if (state := getattr(original, name, None))), None)
    return str(state) if state is not None else None


def is_locked_out(error: Exception) -> bool:
    """Whether PostgreSQL ended the statement because it waited for a lock for longer than it may."""
    return state_of(error.__context__ or error) == _LOCK_NOT_AVAILABLE


def is_cancelled(error: Exception) -> bool:
    """Whether PostgreSQL ended the statement: it took longer than it may, or someone cancelled it."""
    return state_of(error.__context__ or error) == _QUERY_CANCELED


def is_lost(error: BaseException) -> bool:
    """Whether a connection ended under a statement; not: none could be made, or the server refused something."""
    original = error.__context__ if isinstance(error, StoreUnavailable) else error
    if original is None or fault_of(error) not in (Fault.CONFLICT, Fault.OUTAGE):
        return False
    state = state_of(original)
    if state is None:
        return isinstance(original, DBAPIError) and not _unconnected(original, state)
    return state.startswith("08") or state in _ENDED_BY_SERVER


def _preparation_is_stale(error: BaseException) -> bool:
    """Whether a statement that we prepared holds no longer: a migration changed a column's type, or it is gone."""
    state = state_of(error)
    if state == "0A000":  # "cached plan must not change result type": the text is translated, this name is not
        diagnostics: Any = getattr(getattr(error, "orig", None), "diag", None)
        return getattr(diagnostics, "source_function", None) == "RevalidateCachedQuery"
    return state == "26000"


def _session_encoding(error: BaseException) -> str | None:
    """The encoding of a session that cannot carry every text, where that is the fault, and no row's."""
    if state_of(error) not in _OF_ENCODINGS:
        return None
    original: Any = getattr(error, "orig", None)
    encoding = getattr(original, "_encoding", "utf-8")  # that of the session, by which psycopg has read the message
    return None if encoding in ("utf-8", "utf8") else encoding


def _of_state(state: str) -> Fault:
    return next((POSTGRESQL[state[:length]] for length in (5, 2) if state[:length] in POSTGRESQL), Fault.BUG)


def _of_sqlite(original: sqlite3.Error) -> Fault:
    code = getattr(original, "sqlite_errorcode", None)
    text = str(original)
    if code is None:  # Python's own: a text that is no UTF-8, a value that it cannot bind
        return Fault.DATA if "decode" in text or "binding parameter" in text else Fault.BUG
    if code & 0xFF == sqlite3.SQLITE_ERROR and any(word in text for word in _SQLITE_SCHEMA):
        return Fault.SCHEMA
    if code & 0xFF == sqlite3.SQLITE_ERROR and text.startswith(_SQLITE_DATA):
        return Fault.DATA
    return SQLITE.get(code & 0xFF, Fault.BUG)


# -- what our callers see ------------------------------------------------------------------------------------


def drop_connections(engine: Engine) -> None:
    """Invalidate the engine's connections after an outage, since only a fresh one reaches the current server, and when
    a statement that was prepared holds no longer.

    Holds for statements of the Store. What an app does on its own engine is left as it is.
    """
    event.listen(engine, "handle_error", _drop_connection)


def _drop_connection(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is None or not connection.get_execution_options().get("effects_store"):
        return
    error = context.sqlalchemy_exception or context.original_exception
    if _preparation_is_stale(error) or fault_of(error) in (Fault.OUTAGE, Fault.READ_ONLY):
        driver: Any = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):  # closed with a statement under way it would keep its write lock
            with suppress(sqlite3.Error):
                driver.execute("ROLLBACK")  # Python's own does nothing in AUTOCOMMIT
        context.is_disconnect = True  # the pool opens new ones, for this connection and for those that wait in it


@contextmanager
def translated(init_command: Callable[[], str]) -> Iterator[None]:
    """Translate database errors to ours by class. Data errors pass: the caller knows the rows to narrow down.

    What ours says is all there is to know, but for a statement that the database does not understand: only there a
    traceback has the driver's, and SQLAlchemy's. `__context__` has it always.

    Args:
        init_command: gives the command that creates or migrates the tables.

    Raises:
        StoreConflict, StoreUnavailable, StoreRejected: see the table at the top.
    """
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        fault = fault_of(error)
        if fault is Fault.DATA:
            raise
        raise _as_ours(fault, error, init_command) from (error if fault is Fault.BUG else None)


def _identifiers(error: DBAPIError | PoolTimeout, state: str | None) -> str | None:
    """The database's message, if it names only tables and columns and cannot quote a value."""
    original: Any = getattr(error, "orig", None)
    if state is not None and state.startswith("42"):  # PostgreSQL: syntax error or access rule violation
        return str(original.diag.message_primary)
    return str(original) if state == "SQLITE_ERROR" else None


def _is_of_effects(error: DBAPIError | PoolTimeout, state: str | None) -> bool:
    """Whether what is missing may be of effects: not if it is a table of another name, as in an outcome's `apply`."""
    table = _MISSING_TABLE.search(_identifiers(error, state) or "")
    return table is None or table[1].startswith("effects_")


def _unconnected(error: DBAPIError | PoolTimeout, state: str | None) -> str:
    """Why PostgreSQL gave no connection, in the driver's words: host, port, user, database, and no value."""
    words, *_ = [*str(getattr(error, "orig", None) or "").strip().splitlines(), ""]
    return f": {words}" if state is None and words.startswith(("connection failed: ", "connection to server ")) else ""


def _as_ours(fault: Fault, error: DBAPIError | PoolTimeout, init_command: Callable[[], str]) -> EffectsError:
    state = state_of(error)
    cause = ", ".join(filter(None, (type(error).__name__, state, _identifiers(error, state))))
    text = _TEXTS[fault, state is not None and state.startswith("SQLITE")]
    if fault is Fault.SCHEMA:
        text = "a table of the app's own is missing: create it (its migrations, or metadata.create_all)"
        if _is_of_effects(error, state):
            text = f"a table, a column or a schema is missing: run `{init_command()}`"
    if isinstance(error, PoolTimeout):
        text = "every connection of the pool is in use: give the engine a larger one (pool_size, max_overflow)"
    if (encoding := _session_encoding(error)) is not None:
        text = cannot_carry(encoding)
    text = f"{_OF_STATES.get((state or '')[:2], text)} ({cause}){_unconnected(error, state)}"
    if fault is Fault.CONFLICT:
        return StoreConflict(text)
    if fault in (Fault.OUTAGE, Fault.READ_ONLY):
        return StoreUnavailable(text, read_only=fault is Fault.READ_ONLY)
    return StoreRejected(text, fault=fault)


def cannot_carry(encoding: str) -> str:
    """What is wrong with a session of this encoding, and how to mend it."""
    return (
        f"the session's client_encoding ({encoding}) cannot carry this text: connect with client_encoding=utf8 "
        "(PGCLIENTENCODING, or a role or database, has set another)"
    )


_OF_STATES = {
    "53": "the server is short of connections, memory or disk",
    "58": "the server cannot use a file of its own: its log says which",
}
_ANY = {
    Fault.CONFLICT: "another transaction is in the way",
    Fault.OUTAGE: "the database cannot be reached",
    Fault.READ_ONLY: "this server is read-only: it is a standby (give all hosts and "
    "target_session_attrs=read-write), or default_transaction_read_only is set for the role or the database",
    Fault.SCHEMA: "a table, a column or a schema is missing",
    Fault.DENIED: "the database denies us a privilege",
    Fault.CORRUPT: "the file is not a sound database: restore it from a backup",
    Fault.BUG: "the database rejected a statement",
}
_OF_SQLITE = {
    Fault.CONFLICT: "the database file is locked by another transaction; if it is the caller's own, pass session=",
    Fault.READ_ONLY: "the database file is read-only for this process; give it the permission to write",
}
_TEXTS = {
    (fault, sqlite): (_OF_SQLITE.get(fault, text) if sqlite else text)
    for fault, text in _ANY.items()
    for sqlite in (False, True)
}
