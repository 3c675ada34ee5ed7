"""Creating the tables and bringing them up to date: Alembic, one branch of revisions for each package.

Workers go on meanwhile. Each revision is a transaction of its own, which waits for no lock longer than `LOCK_MS` and is
tried again: whoever waits behind it waits as long. Indexes on tables that may be large are built before it, beside the
workers (`online`). docs/upgrades.md says what a revision may do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, MetaData, inspect, text

from effects.errors import ConfigurationError, SchemaMismatch, StoreConflict, StoreRejected, StoreUnavailable
from effects.kit.crashpoints import point
from effects.kit.logs import own_logger
from effects.store.db.engine import pooler_between
from effects.store.db.faults import is_cancelled
from effects.store.db.revisions import (
    VERSION_TABLE,
    branch_of,
    folders,
    newer_ones,
    newest,
    number_of,
    unusable_schema,
)
from effects.store.db.sql import Sql
from effects.store.db.store import Store, begin_to_write
from effects.store.schema.tables import SUPPORT, build_tables


def oldest_code(script: Script) -> str:
    """The newest revision of the oldest code that works with this one; a package's first needs what made it."""
    return str(getattr(script.module, "oldest_code", script.revision))


def _note_support(connection: Connection, schema: str | None, plan: Iterable[Script]) -> None:
    """Write down what these revisions say, for code that will not know them."""
    if not inspect(connection).has_table(SUPPORT, schema=schema):  # a package alone, before the core
        return
    statement = text(
        f"INSERT INTO {_sql(connection, schema).schema_support} (revision, oldest_code) VALUES (:revision, :oldest) "
        "ON CONFLICT (revision) DO UPDATE SET oldest_code = excluded.oldest_code"
    )
    for script in plan:
        connection.execute(statement, {"revision": script.revision, "oldest": oldest_code(script)})


def _refuse_older_workers(connection: Connection, schema: str | None, script: Script) -> None:
    """Refuse a revision that takes away what a worker needs that runs now. Until the end of the transaction none comes
    that has not looked at the tables again: a worker registers first, and looks then.

    Raises:
        SchemaMismatch: names the worker.
    """
    oldest = oldest_code(script)
    if script.down_revision is None or number_of(oldest) <= 1:
        return
    sql = _sql(connection, schema)
    if sql.postgresql:
        connection.exec_driver_sql(f"LOCK TABLE {sql.workers} IN SHARE ROW EXCLUSIVE MODE")
    alive = f"ended_at IS NULL AND seen_at >= {sql.after('-lease_seconds')}"
    for row in connection.execute(text(f"SELECT id, version, revisions FROM {sql.workers} WHERE {alive}")):
        newest = {branch_of(name): number_of(name) for name in str(row.revisions).split()}
        if newest.get(branch_of(oldest), number_of(oldest)) < number_of(oldest):
            raise SchemaMismatch(
                f"revision {script.revision} needs workers that know {oldest}, and {row.id} ({row.version}) does not: "
                "deploy the newer version there first, or end it"
            )


def _sql(connection: Connection, schema: str | None) -> Sql:
    return Sql(build_tables(MetaData(schema=schema)), connection.dialect)


OTHER_INIT_SECONDS = 300
LOCK_MS, STATEMENT_MS = 50, 1_000  # of a revision beside workers: waiting for a lock, and holding it
TRY_SECONDS, SLOW_TRIES = 300.0, 3
PAUSE_SECONDS = (0.1, 2.0)  # before another try, doubling
_HERE = Path(__file__).parent

_log = own_logger("effects.migrations")

Record = Callable[[Connection, list[str]], None]


def init(store: Store, record: Record = lambda connection, applied: None) -> list[str]:
    """Create the tables or migrate them to this version. Running it again changes nothing.

    A database without tables gets all of them in one transaction; else each revision has its own, and one that dies
    half-way is rolled back: both databases have transactional DDL. One `init` runs at a time.

    Args:
        record: called in the transaction of each step with its revisions.

    Returns:
        The revisions that were applied, oldest first; empty if the database was up to date, or is newer than this
        version and says that it works with it.

    Raises:
        SchemaMismatch: a newer version migrated it, and it no longer works with this one; or a worker that runs now is
            too old for what a revision takes away. Unchanged, but for the revisions before that one.
        StoreConflict: a transaction held the lock that a revision needs for five minutes; names it.
        ConfigurationError: no tables can be created in the schema.
    """
    applied: list[str] = []
    script = _script()
    try:
        with _one_at_a_time(store):
            while steps := _next_steps(store, script):
                applied += _take(store, script, steps, record)
    except StoreRejected as error:
        if (objection := unusable_schema(store)) is not None:
            raise ConfigurationError(objection) from error
        raise
    return sorted(applied)


def upgrade(connection: Connection, schema: str | None, to: Collection[str]) -> list[str]:
    """Apply these revisions, and those before them, in the caller's transaction; those that it has stay.

    Args:
        schema: of the tables, on PostgreSQL; created if it is missing. None: the first of the search path.

    Returns:
        The revisions that were applied, oldest first.

    Raises:
        SchemaMismatch: as `init`.
        ConfigurationError: one of them builds an index beside workers: `effects init` first.
    """
    begin_to_write(connection)
    with _within(connection, schema):
        if connection.dialect.name == "postgresql":
            _wait_for_other_inits(connection)
        script = _script()
        return _apply(connection, schema, script, _plan(connection, schema, script, to))


# -- steps -----------------------------------------------------------------------------------------------


def _next_steps(store: Store, script: ScriptDirectory) -> list[Script]:
    """What the next transaction applies: all of it where there is nothing yet, else one revision."""
    with store.read() as connection:
        plan = _plan(connection, store.located, script, newest())
        return plan[:1] if _heads(connection, store.located) else plan


def _plan(connection: Connection, schema: str | None, script: ScriptDirectory, to: Collection[str]) -> list[Script]:
    """The revisions that are missing, in their order."""
    newer = newer_ones(connection, schema)
    heads = _heads(connection, schema)
    reached = {branch_of(name): number_of(name) for name in heads}
    missing = _last_of_each(name for name in to if reached.get(branch_of(name), -1) < number_of(name))
    if missing and newer:
        raise SchemaMismatch(
            f"the database is newer than this version of effects ({', '.join(newer)}), and lacks {', '.join(missing)}: "
            "run the newer version's `effects init`"
        )
    if not missing:
        return []
    steps: Any = script._upgrade_revs(tuple(missing), heads)  # type: ignore[arg-type]
    return [step.revision for step in steps]


def _last_of_each(names: Iterable[str]) -> list[str]:
    """The newest of each package: Alembic goes to it by way of those before it, and refuses to be given both."""
    last: dict[str, str] = {}
    for name in sorted(names, key=number_of):
        last[branch_of(name)] = name
    return sorted(last.values())


def _take(store: Store, script: ScriptDirectory, steps: Sequence[Script], record: Record) -> list[str]:
    first = steps[0]
    is_beside_workers = first.down_revision is not None
    if is_beside_workers and getattr(first.module, "online", False) and store.is_postgresql:
        with store.read() as connection:
            _build_beside_workers(connection, store.located, first.module)
        point("migration.built")

    def transaction() -> list[str]:
        with store.begin() as connection:
            if store.is_postgresql and is_beside_workers:
                limits = f"SET LOCAL lock_timeout = {LOCK_MS}; SET LOCAL statement_timeout = {STATEMENT_MS}"
                connection.execution_options(no_parameters=True).exec_driver_sql(limits)
            with _within(connection, store.located):
                missing = _plan(connection, store.located, script, [step.revision for step in steps])
                applied = _apply(connection, store.located, script, missing)
            if applied:
                record(connection, applied)
            point("migration.before_commit")
            return applied

    return _until_unlocked(store, first.revision, transaction)


def _apply(connection: Connection, schema: str | None, script: ScriptDirectory, plan: Sequence[Script]) -> list[str]:
    if not plan:
        return []
    for revision in plan:
        _refuse_older_workers(connection, schema, revision)
    names = sorted(revision.revision for revision in plan)
    _run(connection, schema, script, names)
    _note_support(connection, schema, plan)
    return names


def _run(connection: Connection, schema: str | None, script: ScriptDirectory, names: Iterable[str]) -> None:
    """Apply these revisions on this connection.

    Each script gets operations of its own: `alembic.op` may belong to the app's own revision, which calls this.
    """

    def steps(heads: Any, context: MigrationContext) -> Any:
        operations = Operations(context)
        destination: Any = tuple(_last_of_each(names))
        for step in script._upgrade_revs(destination, heads):
            step.revision.module.op = operations  # type: ignore[attr-defined]
            yield step

    MigrationContext.configure(connection, opts={**_options(schema), "fn": steps}).run_migrations()


# -- locks -----------------------------------------------------------------------------------------------


@contextmanager
def _one_at_a_time(store: Store) -> Iterator[None]:
    """Hold a lock that no worker needs in a transaction beside those of the revisions. SQLite has one writer anyway."""
    if not store.is_postgresql:
        yield
        return
    with store.begin() as connection:
        _wait_for_other_inits(connection)
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def _wait_for_other_inits(connection: Connection) -> None:
    """One `init` at a time, by a lock that ends with the transaction. It is asked for again and again: the snapshot of
    a statement that waits would hold up the index that the other one builds.

    Raises:
        StoreConflict: the other one took longer than five minutes.
    """
    connection.execute(text("SET LOCAL statement_timeout = 0"))  # a large table takes its time, too
    asked_at = time.monotonic()
    while not connection.scalar(text("SELECT pg_try_advisory_xact_lock(hashtext('effects init'))")):
        if time.monotonic() - asked_at > OTHER_INIT_SECONDS:
            raise StoreConflict(f"another `effects init` has been under way for {OTHER_INIT_SECONDS} s")
        time.sleep(PAUSE_SECONDS[0])


def _until_unlocked(store: Store, revision: str, transaction: Callable[[], list[str]]) -> list[str]:
    """Try it until it gets its locks at once."""
    began, pause, slow = time.monotonic(), PAUSE_SECONDS[0], 0
    while True:
        try:
            return transaction()
        except StoreUnavailable as error:
            cancelled = is_cancelled(error)
            if not (cancelled or isinstance(error, StoreConflict)):
                raise
            slow += cancelled
            if slow == SLOW_TRIES:
                raise StoreRejected(f"revision {revision} holds its locks for too long: {error}") from error
            if time.monotonic() - began > TRY_SECONDS:
                raise StoreConflict(f"revision {revision} gets no lock: {store.lock_holder()} ({error})") from error
            _log.info("migration.waits", extra={"revision": revision, "for": store.lock_holder()})
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - it only spreads the tries
        pause = min(pause * 2, PAUSE_SECONDS[1])


# -- Alembic ---------------------------------------------------------------------------------------------


_SCHEMA_EXISTS = text("SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = :schema)")


@contextmanager
def _within(connection: Connection, schema: str | None) -> Iterator[None]:
    """Make names without a schema mean this one, and then again what they meant before."""
    if schema is None or connection.dialect.name != "postgresql":
        yield
        return
    before = connection.scalar(text("SELECT current_setting('search_path')"))
    if not connection.scalar(_SCHEMA_EXISTS, {"schema": schema}):  # IF NOT EXISTS asks for the right to create first
        connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
    connection.execute(text(f'SET LOCAL search_path TO "{schema}"'))
    yield  # after an error the transaction takes no further statement, and its end takes the setting back
    connection.execute(text("SELECT set_config('search_path', :path, true)"), {"path": before})


def _options(schema: str | None) -> dict[str, object]:
    return {"version_table": VERSION_TABLE, "version_table_schema": schema}


def _heads(connection: Connection, schema: str | None) -> tuple[str, ...]:
    return MigrationContext.configure(connection, opts=_options(schema)).get_current_heads()


def _script() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(_HERE))
    config.set_main_option("version_path_separator", "newline")
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(str, folders())))
    return ScriptDirectory.from_config(config)


_BESIDE_WORKERS = "effects_beside_workers"  # option of a migration context: no transaction is open


def create_index_online(op: Operations, name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """Build an index that is not there yet, while others write to the table; for revisions with `online = True`.

    On PostgreSQL `effects init` builds it by CREATE INDEX CONCURRENTLY, before the revision's transaction; what a
    killed build has left is dropped first. An empty table gets it within the transaction. On SQLite, whose writers
    wait meanwhile, it is built in the transaction too.

    Args:
        op: the revision's.
        options: of Alembic's `create_index`, such as `unique` and `postgresql_where`.

    Raises:
        ConfigurationError: the revision runs in a transaction of the app, and the table is not empty.
    """
    context = op.get_context()
    connection = context.connection
    assert connection is not None
    if connection.dialect.name != "postgresql":
        op.create_index(name, table, columns, if_not_exists=True, **options)
        return
    schema = context.opts.get("version_table_schema")
    place = {"schema": schema, "table": table, "name": name}
    if (valid := connection.scalar(_VALID, place)) is True:
        return
    if context.opts.get(_BESIDE_WORKERS):
        if valid is False:
            op.drop_index(name, table, schema=schema, postgresql_concurrently=True)
        op.create_index(name, table, columns, schema=schema, postgresql_concurrently=True, **options)
    elif connection.scalar(text(f"SELECT EXISTS (SELECT 1 FROM {_qualified(schema, table)})")):
        raise ConfigurationError(
            f"the index {name} is built beside running workers, which is not possible in a transaction: run "
            "`effects init` first, and then this again"
        )
    else:
        op.create_index(name, table, columns, schema=schema, **options)


_VALID = text("""
    SELECT x.indisvalid FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indexrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_class AS t ON t.oid = x.indrelid
    WHERE c.relname = :name AND t.relname = :table
    AND n.nspname = COALESCE(CAST(:schema AS text), current_schema())""")


def _qualified(schema: str | None, table: str) -> str:
    return f'"{table}"' if schema is None else f'"{schema}"."{table}"'


def _build_beside_workers(connection: Connection, schema: str | None, module: Any) -> None:
    """Run the `upgrade` of an online revision outside a transaction; its version is not written.

    Its waits are for transactions that began earlier, and no one waits for them: they have no bound.
    """
    driver = connection.connection.driver_connection
    if not pooler_between(driver):  # where others would get the session's settings
        connection.detach()
        connection.exec_driver_sql("SET lock_timeout = 0")
        connection.exec_driver_sql("SET statement_timeout = 0")
    options = {"version_table_schema": schema, _BESIDE_WORKERS: True}
    module.op = Operations(MigrationContext.configure(connection, opts=options))
    module.upgrade()
