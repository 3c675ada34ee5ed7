"""The Store: one database, its tables and its clock. Everything that reads or writes goes through one."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Connection, Engine, MetaData, Row, Table, TextClause, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from effects.errors import StoreUnavailable
from effects.store.schema import build_tables
from effects.store.sql import Sql

Statement: TypeAlias = Callable[[Sql], str]
TableBuilder: TypeAlias = Callable[[MetaData], Mapping[str, Table]]

_json = msgspec.json.Encoder()


class Store:
    """The tables of the core (and of the packages that bring their own) in one database.

    Args:
        engine: from `effects.store.engine.create_engine`, or the app's own.
        schema: PostgreSQL schema of the tables, or None for the search path.
        builders: further tables, from the effect packages.
        autocommit: from `effects.store.engine.autocommit_twin`, where the engine is ours.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        schema: str | None = None,
        builders: Sequence[TableBuilder] = (),
        autocommit: Engine | None = None,
    ) -> None:
        self.engine = engine
        self._autocommit = autocommit
        self.schema = schema
        self.is_postgresql = engine.dialect.name == "postgresql"
        self.metadata = MetaData(schema=schema)
        self.tables: dict[str, Table] = dict(build_tables(self.metadata))
        for build in builders:
            self.tables.update(build(self.metadata))
        self.sql = Sql(self.tables, postgresql=self.is_postgresql)
        self._statements: dict[Statement, TextClause] = {}
        # SQLite has one writer. Threads of one process queue here, fairly, instead of in its busy handler.
        self._writer = nullcontext() if self.is_postgresql else threading.RLock()

    # -- transactions --------------------------------------------------------------------------------------

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction that may write.

        Raises:
            StoreUnavailable: the database is away. Whether a COMMIT that was under way took place is not
                known: every write of effects is fenced, so that repeating it is harmless.
        """
        with self._writer, _translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading: one snapshot on SQLite, autocommit on PostgreSQL.

        Raises:
            StoreUnavailable: the database is away.
        """
        with _translated(), (self._autocommit or self.engine).connect() as connection:
            if self._autocommit is not None:
                yield connection
            elif self.is_postgresql:
                yield connection.execution_options(isolation_level="AUTOCOMMIT")
            else:
                yield connection.execution_options(effects_readonly=True)

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """For exactly one writing statement: it commits by itself on PostgreSQL, two round trips fewer."""
        if not self.is_postgresql:
            with self.begin() as connection:
                yield connection
            return
        if self._autocommit is None:
            with self.read() as connection:
                yield connection
            return
        # Not by way of `read`: an idle worker's claim pays for every layer while its caches are cold.
        with _translated(), self._autocommit.connect() as connection:
            yield connection

    # -- statements ----------------------------------------------------------------------------------------

    def statement(self, build: Statement) -> TextClause:
        """The statement that `build` describes, for this database; built once."""
        try:
            return self._statements[build]
        except KeyError:
            made = self._statements[build] = text(build(self.sql))
            return made

    def all(self, connection: Connection, build: Statement, **parameters: Any) -> Sequence[Row[Any]]:
        return connection.execute(self.statement(build), parameters).all()

    def one(self, connection: Connection, build: Statement, **parameters: Any) -> Row[Any] | None:
        return connection.execute(self.statement(build), parameters).first()

    def write(self, connection: Connection, build: Statement, **parameters: Any) -> int:
        """Execute and give the number of rows changed."""
        return connection.execute(self.statement(build), parameters).rowcount

    def value(self, connection: Connection, build: Statement, **parameters: Any) -> Any:
        return connection.execute(self.statement(build), parameters).scalar()

    # -- the clock -----------------------------------------------------------------------------------------

    def now(self, connection: Connection) -> float:
        """The database's time, in seconds since 1970. No other clock decides anything."""
        return float(self.value(connection, _now))

    def shift_clock(self, seconds: float) -> None:
        """Move this Store's clock, for tests."""
        self.sql.shift_seconds += seconds
        self._statements.clear()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Every engine that statements go through."""
        return (self.engine,) if self._autocommit is None else (self.engine, self._autocommit)

    def dispose(self) -> None:
        for engine in self.engines:
            engine.dispose()


def _now(sql: Sql) -> str:
    return f"SELECT {sql.epoch(sql.now)}"


def as_json(value: Any) -> str:
    """Rows for `Sql.rows`, names for `Sql.any_of`."""
    return _json.encode(value).decode()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        if is_outage(error):
            raise StoreUnavailable(f"the database cannot be reached ({type(error).__name__})") from error
        raise


# SQLSTATEs of a database that is away, restarting or shutting down; and of a conflict that a repeat solves.
_AWAY = ("08", "57P", "53")
_CONFLICT = ("40001", "40P01", "55P03", "25P03")


def is_outage(error: Exception) -> bool:
    """True where waiting and repeating is the answer, not a traceback."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return bool(state.startswith(_AWAY) or state in _CONFLICT)
    if isinstance(error.orig, sqlite3.Error):
        message = str(error.orig)
        return any(word in message for word in ("locked", "busy", "disk I/O", "full", "unable to open"))
    # psycopg raises a bare OperationalError (no SQLSTATE) when the socket is gone or cannot be opened.
    return isinstance(error, OperationalError | InterfaceError)
