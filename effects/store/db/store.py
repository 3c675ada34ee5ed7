"""The Store: one database, its tables and its clock. Everything that reads or writes goes through one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Connection, Engine, MetaData, Row, Table, TextClause, text

from effects.store.db.deadlines import BoundedLock, Bounds, Deadlines
from effects.store.db.engine import SQLITE_BUSY_SECONDS, close_for_good
from effects.store.db.faults import OURS, drop_connections, translated
from effects.store.db.sql import Sql
from effects.store.schema.tables import build_tables

Statement: TypeAlias = Callable[[Sql], str]
TableBuilder: TypeAlias = Callable[[MetaData], Mapping[str, Table]]

_json = msgspec.json.Encoder()
_decoded = partial(str, encoding="utf-8", errors="replace")


@cache
def _tables(schema: str | None, builders: tuple[TableBuilder, ...]) -> tuple[MetaData, Mapping[str, Table]]:
    """The tables of the core and of these packages; the same for every Store, since nothing changes them."""
    metadata = MetaData(schema=schema)
    tables = dict(build_tables(metadata))
    for build in builders:
        tables.update(build(metadata))
    return metadata, MappingProxyType(tables)


class Store:
    """The tables of the core (and of the packages that bring their own) in one database.

    Args:
        engine: from `effects.store.db.engine.create_engine`, or the app's own.
        schema: PostgreSQL schema of the tables, or None for the search path.
        builders: further tables, from the effect packages.
        autocommit: from `effects.store.db.engine.autocommit_engine`, where the engine is ours.
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
        self.metadata, self.tables = _tables(schema, tuple(builders))
        self.sql = Sql(self.tables, postgresql=self.is_postgresql)
        self._statements: dict[Statement, TextClause] = {}
        # SQLite has one writer. Threads of one process queue here, fairly, instead of in its busy handler.
        self._writer = nullcontext() if self.is_postgresql else BoundedLock(SQLITE_BUSY_SECONDS)
        self.deadlines = Deadlines()
        for own in self.engines:
            self.deadlines.follow(own)
            drop_connections(own)
        # An app's engine may be set to any isolation; every statement of ours is written for this one.
        pinned = {"isolation_level": "READ COMMITTED"} if self.is_postgresql and autocommit is None else {}
        self._transactions = engine.execution_options(**OURS, **pinned)
        self._alone = self._reading_engine()
        repeatable = {"isolation_level": "REPEATABLE READ"} if self.is_postgresql else {}
        self._repeatable = engine.execution_options(**OURS, **repeatable)

    def _reading_engine(self) -> Engine:
        if self._autocommit is not None:
            return self._autocommit.execution_options(**OURS)
        option = {"isolation_level": "AUTOCOMMIT"} if self.is_postgresql else {"effects_readonly": True}
        return self.engine.execution_options(**OURS, **option)

    # -- transactions --------------------------------------------------------------------------------------

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction that may write, READ COMMITTED.

        Raises:
            StoreUnavailable: the database is unavailable. Whether a COMMIT that was under way took place is not
                known: every write of effects is fenced, so that repeating it is harmless.
            StoreConflict: another transaction was in the way. Nothing was written.
            StoreRejected: the database refuses a statement.
        """
        call = self.deadlines.enter()
        try:
            with self._writer, translated(), self._transactions.begin() as connection, self._any_text(connection):
                if call is not None:
                    self.deadlines.attach(call, connection)
                    self._limit(connection)
                yield connection
        finally:
            if call is not None:
                self.deadlines.leave(call)

    def read(self) -> AbstractContextManager[Connection]:
        """A connection for reading: one snapshot on SQLite, autocommit on PostgreSQL.

        Raises:
            StoreUnavailable, StoreConflict, StoreRejected: as `begin`.
        """
        return self._reading(self._alone.connect)

    def snapshot(self) -> AbstractContextManager[Connection]:
        """A connection for reading whose statements all see the same state.

        Raises:
            StoreUnavailable, StoreConflict, StoreRejected: as `begin`.
        """
        return self._reading(self._repeatable.begin if self.is_postgresql else self._alone.connect)

    @contextmanager
    def _reading(self, connect: Callable[[], AbstractContextManager[Connection]]) -> Iterator[Connection]:
        call = self.deadlines.enter()
        try:
            with translated(), connect() as connection, self._any_text(connection):
                if call is not None:
                    self.deadlines.attach(call, connection)
                yield connection
        finally:
            if call is not None:
                self.deadlines.leave(call)

    def single(self) -> AbstractContextManager[Connection]:
        """For exactly one writing statement: it commits by itself where the engine is ours, two round trips fewer."""
        return self.begin() if self._autocommit is None else self.read()

    def joined(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        """The transaction of the caller, who ends it; or else one of our own, as `begin`."""
        return self.begin() if connection is None else nullcontext(connection)

    def within(self, bounds: Bounds) -> AbstractContextManager[None]:
        """Every transaction that this thread begins meanwhile ends within these bounds, one way or the other.

        The server enforces the lock timeout; `deadlines.cut_overdue` closes an overdue connection.
        """
        return self.deadlines.within(bounds)

    def _any_text(self, connection: Connection) -> AbstractContextManager[None]:
        return nullcontext() if self.is_postgresql else any_text(connection)

    def _limit(self, connection: Connection) -> None:
        """In one round trip. No statement timeout: it could turn the wait for a synchronous standby into a COMMIT."""
        bounds = self.deadlines.bounds
        if self.is_postgresql and bounds is not None:
            lock = round(bounds.lock_seconds * 1000)
            connection.execution_options(no_parameters=True).exec_driver_sql(
                f"SET LOCAL lock_timeout = {max(1, lock)}; SET LOCAL statement_timeout = 0"
            )

    # -- statements ----------------------------------------------------------------------------------------

    def statement(self, build: Statement) -> TextClause:
        """The statement that `build` describes, for this database; built once."""
        try:
            return self._statements[build]
        except KeyError:
            statement = self._statements[build] = text(build(self.sql))
            return statement

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
            close_for_good(engine)


@contextmanager
def any_text(connection: Connection) -> Iterator[None]:
    """On SQLite, read texts that are not UTF-8 too, with U+FFFD for what cannot be decoded; meanwhile only.

    A row that cannot be read could not be shown or cancelled, and Python's error would quote it.
    """
    driver: Any = connection.connection.driver_connection
    before, driver.text_factory = driver.text_factory, _decoded
    try:
        yield
    finally:
        driver.text_factory = before


def _now(sql: Sql) -> str:
    return f"SELECT {sql.epoch(sql.now)}"


def as_json(value: Any) -> str:
    """Rows for `Sql.rows`, names for `Sql.any_of`."""
    return _json.encode(value).decode()
