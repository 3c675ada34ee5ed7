"""The Store: one database, its tables and its clock. Everything that reads or writes goes through one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec
from sqlalchemy import URL, Connection, CursorResult, Dialect, Engine, Row, text
from sqlalchemy.engine.interfaces import IsolationLevel

from effects.errors import StoreRejected
from effects.kit.plain_values import to_plain
from effects.store.db.deadlines import BoundedLock, Bounds, Deadlines
from effects.store.db.engine import (
    HAS_DEFAULTS,
    IDLE_SECONDS,
    LOCK_SECONDS,
    SQLITE_BUSY_SECONDS,
    close_for_good,
    engine_beside,
    local_settings,
)
from effects.store.db.faults import OURS, Fault, cannot_carry, drop_connections, translated
from effects.store.db.location import TableBuilder, find_schema, tables_of
from effects.store.db.sql import Sql

IDLE_MS = round(IDLE_SECONDS * 1000)
Statement: TypeAlias = Callable[[Sql], str]

_json = msgspec.json.Encoder(enc_hook=to_plain)  # texts of a subclass, such as SafeString
_decoded = partial(str, encoding="utf-8", errors="replace")


class Store:
    """The tables of the core (and of the packages that bring their own) in one database.

    Args:
        engine: from `effects.store.db.engine.create_engine`, or the app's own.
        schema: PostgreSQL schema of the tables, or None for the first of the search path that has them; see `locate`.
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
        self.init_command: Callable[[], str] = lambda: (
            "effects init"
        )  # what a person runs to create or migrate the tables
        self._autocommit = autocommit
        self.schema = schema
        self.is_postgresql = engine.dialect.name == "postgresql"
        self._builders = tuple(builders)
        self.located = schema  # that of the tables: the one that is set, or the one where they were found
        self._located_at: URL | None = None  # the database in which they were
        self.metadata, self.tables = tables_of(schema, self._builders)  # as declared, and as found
        self.sql = Sql(self.tables, engine.dialect)
        self._statements: dict[tuple[Statement, str], tuple[str, list[str] | None]] = {}
        # SQLite has one writer. Threads of one process queue here, fairly, instead of in its busy handler.
        self._writer = nullcontext() if self.is_postgresql else BoundedLock(SQLITE_BUSY_SECONDS)
        self.deadlines = Deadlines()
        for own in self.engines:
            self.deadlines.follow(own)
            drop_connections(own)
        is_ours = autocommit is not None
        self._transactions = self._connecting(engine, None if is_ours else "READ COMMITTED")
        self._own_transactions = self._connecting(autocommit or engine, "READ COMMITTED")
        self._alone = self._connecting(autocommit or engine, None if is_ours else "AUTOCOMMIT", readonly=True)
        self._repeatable = self._connecting(engine, "REPEATABLE READ")

    def _connecting(
        self, engine: Engine, isolation: IsolationLevel | None, *, readonly: bool = False
    ) -> Callable[[], Connection]:
        """Give what opens connections of this isolation; on SQLite, `whole_transaction` sees to it.

        An app's engine may be set to any. It is set on the connection: an option of the app's engine goes before one
        of an engine derived from it.
        """
        engine = engine.execution_options(**OURS, effects_readonly=readonly)
        if not self.is_postgresql or isolation is None:
            return engine.connect
        return lambda: engine.connect().execution_options(isolation_level=isolation)

    # -- where the tables are ------------------------------------------------------------------------------

    def locate(self) -> None:
        """Find the schema of the tables, once for a database; from then on every statement names it.

        By a connection as an engine opens it, never one that an app has: a search path that the app sets later,
        or has set in one of its pool, leads nowhere else. Tables that are not there yet are looked for again.

        Raises:
            StoreUnavailable, StoreConflict, StoreRejected: as `begin`.
        """
        url = self.engine.url  # another object once the engine leads to another database, as that of a test
        if not self.is_postgresql or self.schema is not None or self._located_at is url:
            return
        schema = self._find_schema()
        if schema != self.located:
            _, self.tables = tables_of(schema, self._builders, is_found=True)
            self.sql.tables = self.tables
            self._statements = {}  # after the names: what a thread builds meanwhile it keeps among the old ones
        self.located, self._located_at = schema, None if schema is None else url

    def _find_schema(self) -> str | None:
        if self._autocommit is not None:
            with self._reading(self._alone) as connection:
                return find_schema(connection, own=True)
        beside = engine_beside(self.engine)
        try:
            with self.deadlines.call() as call, translated(self.init_command), beside.connect() as connection:
                if call is not None:
                    call.driver = connection.connection.driver_connection
                return find_schema(connection, own=False)
        finally:
            close_for_good(beside)

    # -- transactions --------------------------------------------------------------------------------------

    def begin(self) -> AbstractContextManager[Connection]:
        """A transaction that may write, READ COMMITTED.

        Raises:
            StoreUnavailable: the database is unavailable. Whether a COMMIT that was under way took place is not
                known: every write of effects is fenced, so that repeating it is harmless.
            StoreConflict: another transaction was in the way. Nothing was written.
            StoreRejected: the database refuses a statement.
        """
        self.locate()
        return self._begin(self._transactions)

    def begin_own(self) -> AbstractContextManager[Connection]:
        """As `begin`, where no code of an app takes part: its statements are prepared if the engine is ours.

        Raises:
            StoreUnavailable, StoreConflict, StoreRejected: as `begin`.
        """
        self.locate()
        return self._begin(self._own_transactions)

    @contextmanager
    def _begin(self, connect: Callable[[], Connection]) -> Iterator[Connection]:
        with (
            self.deadlines.call() as call, self._writer, translated(self.init_command), connect() as connection,
            connection.begin(), self._whole(connection, "BEGIN IMMEDIATE"), self._any_text(connection),
        ):  # fmt: skip
            if call is not None:
                call.driver = connection.connection.driver_connection
            self._set_locally(connection)
            yield connection

    def read(self) -> AbstractContextManager[Connection]:
        """A connection for reading: one snapshot on SQLite, autocommit on PostgreSQL.

        Raises:
            StoreUnavailable, StoreConflict, StoreRejected: as `begin`.
        """
        self.locate()
        return self._reading(self._alone)

    def snapshot(self) -> AbstractContextManager[Connection]:
        """A connection for reading whose statements all see the same state.

        Raises:
            StoreUnavailable, StoreConflict, StoreRejected: as `begin`.
        """
        self.locate()
        return self._reading(self._repeatable if self.is_postgresql else self._alone)

    @contextmanager
    def _reading(self, connect: Callable[[], AbstractContextManager[Connection]]) -> Iterator[Connection]:
        with (
            self.deadlines.call() as call, translated(self.init_command), connect() as connection,
            self._whole(connection, "BEGIN"), self._any_text(connection),
        ):  # fmt: skip
            if call is not None:
                call.driver = connection.connection.driver_connection
            with self._read_with_settings(connection, alone=connect is self._alone):
                yield connection

    @contextmanager
    def _read_with_settings(self, connection: Connection, *, alone: bool) -> Iterator[None]:
        """What commits `alone` does so in one transaction, where the session's settings are not as ours must be."""
        settings = local_settings(connection) if self.is_postgresql else ""
        if not settings:
            yield
            return
        _simply(connection, f"BEGIN; {settings}" if alone else settings)
        try:
            yield
        except BaseException:
            if alone:
                with suppress(Exception):
                    _simply(connection, "ROLLBACK")
            raise
        if alone:
            _simply(connection, "COMMIT")

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

    def free_writer(self) -> None:
        """On SQLite, let others write while a thread that does not return has the turn; see `Deadlines.abandon`."""
        if isinstance(self._writer, BoundedLock):
            self._writer.free()

    def _whole(self, connection: Connection, begin: str) -> AbstractContextManager[None]:
        return nullcontext() if self.is_postgresql else whole_transaction(connection, begin)

    def _any_text(self, connection: Connection) -> AbstractContextManager[None]:
        return nullcontext() if self.is_postgresql else any_text(connection)

    def _set_locally(self, connection: Connection) -> None:
        """In one round trip. A statement timeout could turn the wait for a synchronous standby into a COMMIT."""
        if not self.is_postgresql:
            return
        settings, bounds = local_settings(connection), self.deadlines.bounds
        if bounds is not None and (bounds.lock_seconds != LOCK_SECONDS or HAS_DEFAULTS not in connection.info):
            lock = round(bounds.lock_seconds * 1000)
            settings = (
                f"SET LOCAL lock_timeout = {max(1, lock)}; SET LOCAL statement_timeout = 0; "
                f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}; {settings}"
            )
        if settings:
            _simply(connection, settings)

    # -- statements ----------------------------------------------------------------------------------------

    def sql_of(self, build: Statement) -> str:
        """The statement that `build` describes, for this database, with `:name` for each parameter."""
        return build(self.sql)

    def all(self, connection: Connection, build: Statement, **parameters: Any) -> Sequence[Row[Any]]:
        return self._execute(connection, build, parameters).all()

    def tuples(self, connection: Connection, build: Statement, **parameters: Any) -> list[tuple[Any, ...]]:
        """`all` for many rows, as the driver gives them: read by position, at a third of the cost."""
        result = self._execute(connection, build, parameters)
        rows = cast("list[tuple[Any, ...]]", result.cursor.fetchall())
        result.close()
        return rows

    def row(self, connection: Connection, build: Statement, **parameters: Any) -> Row[Any] | None:
        return self._execute(connection, build, parameters).first()

    def write(self, connection: Connection, build: Statement, **parameters: Any) -> int:
        """Execute and give the number of rows changed."""
        return self._execute(connection, build, parameters).rowcount

    def write_each(self, connection: Connection, build: Statement, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute once for each of these, of which there is at least one."""
        statement, names = self._text(connection.dialect, build)
        connection.exec_driver_sql(statement, [_values(names, row) for row in rows])

    def value(self, connection: Connection, build: Statement, **parameters: Any) -> Any:
        return self._execute(connection, build, parameters).scalar()

    def _execute(self, connection: Connection, build: Statement, parameters: Mapping[str, Any]) -> CursorResult[Any]:
        statement, names = self._text(connection.dialect, build)
        try:
            return connection.exec_driver_sql(statement, _values(names, parameters))
        except UnicodeEncodeError as error:
            if error.encoding in ("utf-8", "utf8"):
                raise  # half a surrogate pair
            raise StoreRejected(cannot_carry(error.encoding), fault=Fault.DENIED) from None

    def _text(self, dialect: Dialect, build: Statement) -> tuple[str, list[str] | None]:
        """The statement in the driver's own words, made once, and the order of its parameters if they have no names.

        SQLAlchemy's way, which compares a statement with those that it has compiled, costs half as much again.
        """
        statements = self._statements  # `locate` begins others
        try:
            return statements[build, dialect.paramstyle]
        except KeyError:
            compiled: Any = text(self.sql_of(build)).compile(dialect=dialect)
            statement = statements[build, dialect.paramstyle] = compiled.string, compiled.positiontup
            return statement

    # -- the clock -----------------------------------------------------------------------------------------

    def now(self, connection: Connection) -> float:
        """The database's time, in seconds since 1970. No other clock decides anything."""
        return float(self.value(connection, _now))

    def shift_clock(self, seconds: float) -> None:
        """Move this Store's clock, for tests."""
        self.sql.shift_seconds += seconds
        self._statements.clear()

    def forget_histories(self) -> None:
        """Ask this server no more for the name of its history: it has none."""
        self.sql.names_histories = False
        self._statements.clear()

    def lock_holder(self) -> str:
        """Who holds up others, in words: the oldest transaction that has locked a table of ours on PostgreSQL.

        `connection 4711 (shop, psql, idle in transaction) has used effects_limits for 63 s`
        """
        holder = None
        if self.is_postgresql:
            with self.read() as connection:
                holder = self.value(connection, _oldest_lock)
        return str(holder or "another transaction")

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Every engine that statements go through."""
        return (self.engine,) if self._autocommit is None else (self.engine, self._autocommit)

    def dispose(self) -> None:
        for engine in self.engines:
            close_for_good(engine)


def _simply(connection: Connection, statements: str) -> None:
    """Send several statements at a time, none of which has parameters."""
    connection.exec_driver_sql(statements, execution_options={"no_parameters": True})


@contextmanager
def whole_transaction(connection: Connection, begin: str) -> Iterator[None]:
    """On SQLite, make one transaction of all that follows, however the app has set up its engine.

    With SQLAlchemy's defaults, Python begins one with the first statement that writes, so that what was read before
    may have changed; in AUTOCOMMIT it begins none.
    """
    if not connection.in_transaction():
        connection.begin()  # here ours begin
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        yield
        return
    connection.exec_driver_sql(begin)
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            driver.execute("ROLLBACK")  # SQLAlchemy may be told to leave it out, and Python's own may do nothing
        raise


def begin_to_write(connection: Connection) -> None:
    """On SQLite, begin the caller's transaction where it has not yet, as Python does before an INSERT.

    Before a SAVEPOINT it does not, and the savepoint's release would commit; nor before a CREATE TABLE. The file's lock
    is waited for here: a transaction that begins by reading is refused it at once where another one has written
    meanwhile.
    """
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


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


def _values(names: Sequence[str] | None, parameters: Mapping[str, Any]) -> Any:
    return parameters if names is None else tuple([parameters[name] for name in names])


def _now(sql: Sql) -> str:
    return f"SELECT {sql.epoch(sql.now)}"


def as_json(value: Any) -> str:
    """Rows for `Sql.rows`, names for `Sql.any_of`."""
    return _json.encode(value).decode()


def _oldest_lock(sql: Sql) -> str:
    return """
    SELECT 'connection ' || a.pid || ' (' || concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state)
        || ') has used ' || c.relname || ' for ' || round(date_part('epoch', now() - a.xact_start)) || ' s'
    FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE c.relkind = 'r' AND starts_with(c.relname, 'effects_') AND l.granted AND a.pid <> pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY a.xact_start LIMIT 1"""
