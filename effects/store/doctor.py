"""What `effects doctor` asks the database. Reads catalogues and statistics; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, inspect, text

from effects.store.counts import Due, Workers, count_due, count_workers
from effects.store.pooler import pooler_between
from effects.store.sql import Sql
from effects.store.store import Store, as_json

Level: TypeAlias = Literal["ok", "warning", "error"]

SNAPSHOT_WARNING_SECONDS, SNAPSHOT_ERROR_SECONDS = 300.0, 3_600.0
CLOCK_WARNING_SECONDS, CLOCK_ERROR_SECONDS = 1.0, 120.0
DEAD_TUPLES_MIN = 10_000
FREE_PAGES_MIN_BYTES = 100 * 1024 * 1024
BUSY_MS_MIN = 1_000
DUE_WARNING_SECONDS = 600.0


class Finding(msgspec.Struct, frozen=True):
    """One check's result. `advice` says what to do; it is None where nothing is."""

    check: str
    level: Level
    text: str
    advice: str | None = None


def examine_tables(store: Store) -> Iterator[Finding]:
    """Indexes and dead rows. The tables must be those of this version."""
    with store.read() as connection:
        yield from _indexes(store, connection)
        yield from _vacuum_postgresql(store, connection) if store.is_postgresql else _vacuum_sqlite(connection)


def examine_server(store: Store) -> Iterator[Finding]:
    """Clock, durability, oldest snapshot, pooler; the file's modes on SQLite."""
    with store.read() as connection:
        yield _clock(store, connection)
        yield from _postgresql(connection) if store.is_postgresql else _sqlite(connection)


def examine_work(store: Store, lease_seconds: float, job_types: Sequence[str]) -> Iterator[Finding]:
    """Workers, what is due, and live jobs that nobody here knows."""
    with store.read() as connection:
        workers = count_workers(store, connection, lease_seconds)
        due = count_due(store, connection)
        strangers = store.all(connection, _strangers, types=as_json(list(job_types)))
    yield from _about_workers(workers, due)
    if strangers:
        named = ", ".join(f"{row.job_type} ({row.jobs:,})" for row in strangers)
        yield Finding(
            "job types",
            "warning",
            f"live jobs of types that are not registered here: {named}",
            "name the app that knows them (--app, EFFECTS_APP), or let a worker of that app run",
        )
    else:
        yield Finding("job types", "ok", "every live job's type is registered here")


# -- tables ----------------------------------------------------------------------------------------------


def _indexes(store: Store, connection: Connection) -> Iterator[Finding]:
    """By table and columns: the names depend on the schema."""
    inspector = inspect(connection)
    missing = []
    for table in store.tables.values():
        there = {tuple(one["column_names"]) for one in inspector.get_indexes(table.name, schema=store.schema)}
        missing += [
            f"{table.name} ({', '.join(index.columns.keys())})"
            for index in table.indexes
            if tuple(index.columns.keys()) not in there
        ]
    broken = [row.name for row in store.all(connection, _invalid_indexes)] if store.is_postgresql else []
    if missing:
        yield Finding(
            "indexes",
            "error",
            f"missing: {'; '.join(missing)}",
            "restore them; their definitions are in "
            "effects/store/schema.py, or make a new database with `effects init` and compare",
        )
    if broken:
        yield Finding("indexes", "error", f"not valid: {', '.join(broken)}", f"REINDEX INDEX CONCURRENTLY {broken[0]};")
    if not missing and not broken:
        yield Finding("indexes", "ok", "all indexes are there and valid")


def _invalid_indexes(sql: Sql) -> str:
    return f"""
    SELECT c.relname AS name FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
    WHERE i.indrelid IN (CAST('{sql.jobs}' AS regclass), CAST('{sql.job_history}' AS regclass),
        CAST('{sql.job_attempts}' AS regclass)) AND NOT i.indisvalid ORDER BY c.relname"""


def _vacuum_postgresql(store: Store, connection: Connection) -> Iterator[Finding]:
    rows = store.all(connection, _dead_tuples, least=DEAD_TUPLES_MIN)
    for row in rows:
        yield Finding(
            "vacuum",
            "warning",
            f"{row.relname}: {row.n_dead_tup:,} dead rows beside {row.n_live_tup:,} live ones",
            f"VACUUM {row.relname}; if the number stays, something holds an old snapshot (see that check), or "
            "autovacuum is too slow for this server",
        )
    if connection.exec_driver_sql("SHOW autovacuum").scalar() != "on":
        yield Finding("vacuum", "error", "autovacuum is off", "turn it on: a queue's table bloats within hours without")
    elif not rows:
        yield Finding("vacuum", "ok", "no table has more dead rows than live ones")


def _dead_tuples(sql: Sql) -> str:
    return """
    SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
    WHERE relname LIKE 'effects\\_%' AND n_dead_tup >= :least AND n_dead_tup > n_live_tup ORDER BY n_dead_tup DESC"""


def _vacuum_sqlite(connection: Connection) -> Iterator[Finding]:
    free, pages, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0)
        for name in ("freelist_count", "page_count", "page_size")
    )
    if free * size >= FREE_PAGES_MIN_BYTES and free * 2 > pages:
        yield Finding(
            "vacuum",
            "warning",
            f"{free * size // 2**20:,} MiB of the file are empty pages",
            "run VACUUM while no worker runs, if the space is needed; the queue itself does not mind",
        )
    else:
        yield Finding("vacuum", "ok", "the file holds little empty space")


# -- server ----------------------------------------------------------------------------------------------


def _clock(store: Store, connection: Connection) -> Finding:
    store.now(connection)  # the first statement may build the connection
    asked = time.time()
    there = store.now(connection)
    answered = time.time()
    apart = there - (asked + answered) / 2
    shown = f"this host's clock is {abs(apart):.1f} s {'behind' if apart > 0 else 'ahead of'} the database's"
    if abs(apart) - (answered - asked) / 2 <= CLOCK_WARNING_SECONDS:
        return Finding("clock", "ok", "this host and the database agree on the time")
    level: Level = "error" if abs(apart) > CLOCK_ERROR_SECONDS else "warning"
    return Finding(
        "clock",
        level,
        shown,
        "set up NTP on both. The queue goes by the database's clock, but signatures carry this host's, and receivers "
        "refuse those that are 5 minutes off",
    )


def _postgresql(connection: Connection) -> Iterator[Finding]:
    if connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar():
        yield Finding("server", "error", "this server is a read-only replica", "give the primary's address")
    risky = [
        name
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off"
    ]
    if risky:
        yield Finding(
            "durability",
            "warning",
            f"{', '.join(risky)} off: a power cut may lose what was acknowledged",
            "turn it on, for this database at least",
        )
    else:
        yield Finding("durability", "ok", "an acknowledged commit survives a power cut of this server")
    yield _snapshot(connection)
    yield _pooler(connection)


_SNAPSHOTS = """
    SELECT 'connection ' || pid || ' (' || concat_ws(', ', usename, nullif(application_name, ''), state) || ')' AS who,
        date_part('epoch', clock_timestamp() - xact_start) AS seconds,
        'SELECT pg_terminate_backend(' || pid || ')' AS cure
    FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    AND (datname = current_database() OR datid IS NULL)  -- those of other databases hold nothing back here
    UNION ALL
    SELECT 'prepared transaction ' || gid, date_part('epoch', clock_timestamp() - prepared),
        'ROLLBACK PREPARED ' || quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()
    ORDER BY seconds DESC LIMIT 1"""


def _snapshot(connection: Connection) -> Finding:
    """The oldest snapshot keeps dead rows from being removed, and the claim reads through them."""
    oldest = connection.execute(text(_SNAPSHOTS)).first()
    seconds = float(oldest.seconds) if oldest is not None else 0.0
    if oldest is None or seconds < SNAPSHOT_WARNING_SECONDS:
        return Finding("snapshot", "ok", "no transaction is old")
    level: Level = "error" if seconds > SNAPSHOT_ERROR_SECONDS else "warning"
    return Finding(
        "snapshot",
        level,
        f"{oldest.who} has held a snapshot for {seconds:,.0f} s",
        f"end that transaction ({oldest.cure};) and look why it is open: until then no dead row can be removed",
    )


def _pooler(connection: Connection) -> Finding:
    driver: Any = connection.connection.driver_connection
    prepares = getattr(driver, "prepare_threshold", None) is not None
    between = pooler_between(driver)
    if prepares and between:
        return Finding(
            "pooler",
            "error",
            "a pooler stands between, and prepared statements are on: they fail where it pools transactions",
            "make the engine with connect_args={'prepare_threshold': None}",
        )
    if prepares:
        return Finding(
            "pooler",
            "warning",
            "prepared statements are on: they fail behind a transaction pooler",
            "make the engine with connect_args={'prepare_threshold': None}, or use no such pooler",
        )
    if between:
        return Finding("pooler", "ok", "a pooler stands between: hints do not pass it, polling finds the jobs")
    return Finding("pooler", "ok", "prepared statements are off: a transaction pooler may stand between")


def _sqlite(connection: Connection) -> Iterator[Finding]:
    mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar()).lower()
    if mode == "wal":
        yield Finding("journal", "ok", "write-ahead log: readers and the writer do not wait for each other")
    else:
        yield Finding(
            "journal",
            "warning",
            f"journal_mode is {mode}: every reader stops the writer",
            "PRAGMA journal_mode=WAL; a network file system cannot have it, and is no place for this file",
        )
    if int(connection.exec_driver_sql("PRAGMA synchronous").scalar() or 0) >= 2:
        yield Finding("durability", "ok", "an acknowledged commit survives a power cut")
    else:
        yield Finding(
            "durability",
            "warning",
            "synchronous is below FULL: a power cut may lose what was acknowledged",
            "PRAGMA synchronous=FULL on every connection of the app's engine",
        )
    busy = int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar() or 0)
    if busy < BUSY_MS_MIN:
        yield Finding(
            "busy timeout",
            "warning",
            f"writers wait {busy} ms for each other, then fail",
            "make the engine with connect_args={'timeout': 30}",
        )
    else:
        yield Finding("busy timeout", "ok", f"writers wait up to {busy / 1000:g} s for each other")


# -- work ------------------------------------------------------------------------------------------------


def _about_workers(workers: Workers, due: Due) -> Iterator[Finding]:
    if workers.silent:
        yield Finding(
            "workers",
            "warning",
            f"{workers.silent} of {workers.alive + workers.silent} workers are silent for longer than a lease",
            "look at their hosts; the others rescue their jobs, and their rows go when none is left",
        )
    else:
        yield Finding("workers", "ok", f"{workers.alive} alive, none silent")
    waited = due.oldest_seconds or 0.0
    if waited < DUE_WARNING_SECONDS:
        yield Finding(
            "backlog", "ok", f"{due.jobs:,} due, the oldest for {waited:,.0f} s" if due.jobs else "nothing is due"
        )
        return
    level: Level = "warning" if workers.alive else "error"
    cure = (
        "add workers or threads, or see whether a limit is paused (`effects status`)"
        if workers.alive
        else "start `effects work`"
    )
    yield Finding("backlog", level, f"{due.jobs:,} jobs are due, the oldest for {waited:,.0f} s", cure)


def _strangers(sql: Sql) -> str:
    return f"""
    SELECT job_type, count(*) AS jobs FROM {sql.jobs} WHERE NOT (job_type {sql.any_of("types")})
    GROUP BY job_type ORDER BY jobs DESC, job_type LIMIT 10"""
