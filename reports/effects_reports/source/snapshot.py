"""One instant for all chunks: an exported snapshot on PostgreSQL, a copy of the file on SQLite.

A snapshot of PostgreSQL lives as long as the transaction that exported it. The worker that plans the run keeps that
transaction open, for 15 minutes at most, because meanwhile VACUUM removes nothing. If the worker ends, the snapshot is
gone, and the run is planned again. A copy outlives its worker; it needs as much room as the database.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from effects import StoreRejected, StoreUnavailable
from effects.extend.process import own_logger
from effects.extend.text import whole_number
from effects_reports.errors import ReportRefused

HELD_SECONDS = 900.0
LOOK_SECONDS = 1.0
_COPY_INFIX = "-report-"
_EXPORTED = re.compile(r"[0-9A-Fa-f-]+")
_log = own_logger("effects.reports")


class SnapshotLost(Exception):
    """What the run's chunks read together is no longer there."""


class Holder:
    """A PostgreSQL transaction whose snapshot others may import, until it is released.

    Args:
        ready: called with the connection before its transaction begins.
        seconds: when it is released in any case.
    """

    def __init__(
        self, engine: Engine, ready: Callable[[Connection], None] | None = None, *, seconds: float = HELD_SECONDS
    ) -> None:
        self._until = time.monotonic() + seconds
        self._released = threading.Event()
        plain = engine.connect()
        try:
            if ready is not None:
                ready(plain)
            self.connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            self.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            self.snapshot = str(self.connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one())
        except BaseException:
            plain.close()
            raise

    def hold(self, needed: Callable[[str], bool]) -> None:
        """Keep it open, in its own thread, while `needed(snapshot)`, called once a second, is true."""
        threading.Thread(target=self._hold, args=(needed,), name="effects-snapshot", daemon=True).start()

    def _hold(self, needed: Callable[[str], bool]) -> None:
        try:
            while time.monotonic() < self._until and _ask(needed, self.snapshot):
                if self._released.wait(LOOK_SECONDS):
                    return
        finally:
            self.release()

    def release(self) -> None:
        """Let it go; chunks that come later find it gone."""
        self._released.set()
        try:
            self.connection.close()
        except SQLAlchemyError as error:  # the server has gone first
            _log.debug("snapshot not closed: %s", type(error).__name__)


def _ask(needed: Callable[[str], bool], snapshot: str) -> bool:
    try:
        return needed(snapshot)
    except (StoreUnavailable, StoreRejected):
        return True  # not known; the time limit applies


def _import_snapshot(connection: Connection, snapshot: str) -> None:
    """Let the connection's transaction, which has just begun, see what the snapshot saw.

    Raises:
        SnapshotLost: its transaction has ended.
    """
    if not _EXPORTED.fullmatch(snapshot):  # it is a stored row's, and stands in the statement itself
        raise SnapshotLost
    try:
        connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{snapshot}'")  # it takes no parameter
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        raise SnapshotLost from error


# -- SQLite -----------------------------------------------------------------------------------------------------


def copy_database(engine: Engine, run_id: str, number: int) -> str:
    """Copy the database's file beside it, as of now; the path of the copy. Writers continue meanwhile.

    Raises:
        ReportRefused: it has no file.
        OSError, sqlite3.Error: there is no room for the copy, or no permission. Nothing is left then.
    """
    if not engine.url.database:
        raise ReportRefused("a snapshot of SQLite is a copy of its file, and this database has none", code="no_file")
    source = Path(engine.url.database).absolute()
    target = source.with_name(f"{source.name}{_COPY_INFIX}{run_id}-{number}")
    target.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(target)) as copy:
            target.chmod(source.stat().st_mode)
            original.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # so that it can be read without writing beside it
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return str(target)


@contextmanager
def _opened_copy(path: str) -> Iterator[Engine]:
    """An engine on a copy, read-only.

    Raises:
        SnapshotLost: the copy is gone.
    """
    if not Path(path).exists():
        raise SnapshotLost
    address = URL.create("sqlite", database=f"file:{quote(path)}", query={"immutable": "1", "uri": "true"})
    engine = create_engine(address, poolclass=NullPool, hide_parameters=True)
    try:
        yield engine
    finally:
        engine.dispose()


def delete_copy(path: str) -> None:
    """Delete a copy, and what a killed copying left beside it; what is not there is not missed."""
    for ending in ("", "-journal"):
        Path(path + ending).unlink(missing_ok=True)


def copies(engine: Engine) -> dict[str, tuple[str, int]]:
    """The copies that lie beside the database's file: path → the run that each was made for, and its round."""
    if engine.dialect.name != "sqlite" or not engine.url.database:
        return {}
    source = Path(engine.url.database).absolute()
    readers = {}
    for path in source.parent.glob(f"{source.name}{_COPY_INFIX}*"):
        run_id, _, text = path.name.rpartition(_COPY_INFIX)[2].rpartition("-")
        if (number := whole_number(text)) is not None:
            readers[str(path)] = (run_id, number)
    return readers


_QUERY_CANCELED = "57014"
_SESSION = text(
    "SELECT set_config('statement_timeout', :milliseconds, true), set_config('DateStyle', 'ISO', true), "
    "set_config('IntervalStyle', 'postgres', true), set_config('bytea_output', 'hex', true), "
    "set_config('extra_float_digits', '1', true), set_config('client_encoding', 'UTF8', true)"
)


@contextmanager
def reading(
    engine: Engine, *, seconds: float, snapshot: str | None = None, ready: Callable[[Connection], None] | None = None
) -> Iterator[Connection]:
    """One read-only transaction, rolled back at the end.

    Args:
        seconds: PostgreSQL ends a statement that takes longer.
        snapshot: what the transaction then sees: an exported snapshot of PostgreSQL, the path of a copy on SQLite.
        ready: called with the connection before its transaction begins, on PostgreSQL; what it raises passes through.

    Raises:
        SnapshotLost: it is no longer there.
    """
    if engine.dialect.name != "postgresql":
        source = nullcontext(engine) if snapshot is None else _opened_copy(snapshot)
        with source as source_engine, source_engine.connect() as connection:
            yield connection.execution_options(effects_readonly=True)
        return
    with engine.connect() as plain:
        if ready is not None:
            ready(plain)
        connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        if snapshot is not None:
            _import_snapshot(connection, snapshot)
        begin_reading(connection, seconds)
        yield connection


def begin_reading(connection: Connection, seconds: float) -> None:
    """Let PostgreSQL end a statement of this transaction that takes longer, and print what formats and driver expect.

    That is for all routes alike, because the SELECT's own casts to text depend on it. How dates are read stays.
    """
    connection.execute(_SESSION, {"milliseconds": str(max(1, int(seconds * 1000)))})


def was_too_long(error: Exception) -> bool:
    """Whether PostgreSQL ended the statement for its time."""
    return has_state(error, _QUERY_CANCELED)


def has_state(error: Exception, state: str) -> bool:
    """Whether PostgreSQL raised this with this SQLSTATE, by way of SQLAlchemy or of the driver alone."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return getattr(original, "sqlstate", None) == state
