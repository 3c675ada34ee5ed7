"""Creating the tables and bringing them up to date: Alembic, one branch of revisions for each package.

Workers go on meanwhile. Each revision is a transaction of its own, which waits for no lock longer than `LOCK_MS` and is
tried again: whoever waits behind it waits as long. Indexes on tables that may be large are built before it, beside the
workers (`online`). docs/upgrades.md says what a revision may do.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, text

from effects.crashpoints import point
from effects.errors import SchemaMismatch, StoreConflict, StoreRejected, StoreUnavailable
from effects.store.db.faults import is_cancelled
from effects.store.db.lock_holder import lock_holder
from effects.store.db.revisions import VERSION_TABLE, branch_of, folders, newer_ones, newest, number_of
from effects.store.db.store import Store, begin_to_write
from effects.store.migrations.code_support import note_support, refuse_older_workers
from effects.store.migrations.online import build_beside_workers

OTHER_INIT_SECONDS = 300
LOCK_MS, STATEMENT_MS = 50, 1_000  # of a revision beside workers: waiting for a lock, and holding it
TRY_SECONDS, SLOW_TRIES = 300.0, 3
PAUSE_SECONDS = (0.1, 2.0)  # before another try, doubling
_HERE = Path(__file__).parent

_log = logging.getLogger("effects.migrations")

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
    """
    applied: list[str] = []
    script = _script()
    with _one_at_a_time(store):
        while steps := _next_steps(store, script):
            applied += _take(store, script, steps, record)
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
        plan = _plan(connection, store.schema, script, newest())
        return plan[:1] if _heads(connection, store.schema) else plan


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
            build_beside_workers(connection, store.schema, first.module)
        point("migration.built")

    def transaction() -> list[str]:
        with store.begin() as connection:
            if store.is_postgresql and is_beside_workers:
                limits = f"SET LOCAL lock_timeout = {LOCK_MS}; SET LOCAL statement_timeout = {STATEMENT_MS}"
                connection.execution_options(no_parameters=True).exec_driver_sql(limits)
            with _within(connection, store.schema):
                missing = _plan(connection, store.schema, script, [step.revision for step in steps])
                applied = _apply(connection, store.schema, script, missing)
            if applied:
                record(connection, applied)
            point("migration.before_commit")
            return applied

    return _until_unlocked(store, first.revision, transaction)


def _apply(connection: Connection, schema: str | None, script: ScriptDirectory, plan: Sequence[Script]) -> list[str]:
    if not plan:
        return []
    for revision in plan:
        refuse_older_workers(connection, schema, revision)
    names = sorted(revision.revision for revision in plan)
    _run(connection, schema, script, names)
    note_support(connection, schema, plan)
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
                raise StoreConflict(f"revision {revision} gets no lock: {lock_holder(store)} ({error})") from error
            _log.info("migration.waits", extra={"revision": revision, "for": lock_holder(store)})
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
