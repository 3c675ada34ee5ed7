"""Database checks of `effects doctor`: read-only, from catalogues and statistics."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Index, inspect
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import CreateIndex

from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.queue_pauses import paused_queues
from effects.store.numbers.samples import seconds_without_worker
from effects.store.operator.counts import (
    Due,
    DueFailures,
    OperatorWait,
    UnknownType,
    Workers,
    count_due,
    count_unknown,
    count_workers,
    read_due_failures,
    read_operator_waits,
)
from effects.store.operator.dead_letters import Cause, count_causes
from effects.store.operator.queue_status import PausedKey, WorkerState, paused_keys, read_workers
from effects.text.wording import cause_of, jobs_with, moment_text

Level: TypeAlias = Literal["ok", "warning", "error"]

DEAD_TUPLES_MIN = 10_000
FREE_PAGES_MIN_BYTES = 100 * 1024 * 1024
DUE_WARNING_SECONDS = 600.0
# Without a worker: so long no trace of one, and a job due for as long. A drain by cron every five minutes passes.
ABSENT_WARNING_SECONDS = 420.0
ABSENT_DAY_SECONDS = 86_400.0  # and so long in any case: schedules and the cleanup need one


class DoctorFinding(msgspec.Struct, frozen=True):
    """One check's result. `advice` is what to do, or None."""

    check: str
    level: Level
    text: str
    advice: str | None = None


def examine_tables(store: Store) -> Iterator[DoctorFinding]:
    """Indexes and dead rows. The tables must be those of this version."""
    with store.read() as connection:
        yield from _indexes(store, connection)
        yield from _vacuum_postgresql(store, connection) if store.is_postgresql else _vacuum_sqlite(connection)


def examine_work(store: Store, lease_seconds: float, job_types: Sequence[str]) -> Iterator[DoctorFinding]:
    """Check workers, due jobs, and live jobs of unknown types."""
    with store.read() as connection:
        workers = count_workers(store, connection, lease_seconds)
        due = count_due(store, connection)
        unknown = count_unknown(store, connection, job_types)
        pauses = paused_queues(store, connection)
        absent_seconds = seconds_without_worker(store, connection)
        failures = read_due_failures(store, connection)
        lacking = read_operator_waits(store, connection)
        states = read_workers(store, connection, lease_seconds)
        causes = count_causes(store, connection)
        paused = [pause for pause in paused_keys(store, connection) if pause.waiting]
    yield from _about_workers(workers, due, failures, absent_seconds)
    yield from _about_heartbeats(states, lease_seconds)
    yield _about_unresolved(causes)
    yield from _about_operator_waits(lacking)
    yield from _about_paused_keys(paused)
    for pause in pauses:
        advice = f"run `effects queues resume {shlex.quote(pause.queue)}` when it may run again"
        yield DoctorFinding("queues", "warning", f"{pause}; {jobs_with(pause.waiting, 'waits')}", advice)
    if not pauses:
        yield DoctorFinding("queues", "ok", "no queue is paused")
    if unknown:
        named = ", ".join(_named_unknown(unknown_type) for unknown_type in unknown)
        yield DoctorFinding(
            "job types",
            "warning",
            f"live jobs of types that are not registered here: {named}",
            "name the app that knows them (--app, EFFECTS_APP), or let a worker of that app run",
        )
    else:
        yield DoctorFinding("job types", "ok", "every live job's type is registered here")


# -- tables ----------------------------------------------------------------------------------------------


def _indexes(store: Store, connection: Connection) -> Iterator[DoctorFinding]:
    """By table and columns: the names depend on the schema."""
    inspector = inspect(connection)
    missing: list[tuple[str, Index]] = []
    for table in store.tables.values():
        try:
            there = {tuple(index["column_names"]) for index in inspector.get_indexes(table.name, schema=store.schema)}
        except NoSuchTableError:
            cure = "restore it from a backup, or make a new database with `effects init` of this version"
            yield DoctorFinding("tables", "error", f"the table {table.name} is missing", cure)
            continue
        missing += [(table.name, index) for index in table.indexes if tuple(index.columns.keys()) not in there]
    tables = as_json([table.fullname for table in store.tables.values()])
    broken = [row.name for row in store.all(connection, _invalid_indexes, tables=tables)] if store.is_postgresql else []
    for name, index in missing:
        text = f"missing: {name} ({', '.join(index.columns.keys())})"
        yield DoctorFinding("indexes", "error", text, f"{CreateIndex(index).compile(connection)};")
    if broken:
        yield DoctorFinding(
            "indexes", "error", f"not valid: {', '.join(broken)}", f"REINDEX INDEX CONCURRENTLY {broken[0]};"
        )
    if not missing and not broken:
        yield DoctorFinding("indexes", "ok", "all indexes are there and valid")


def _invalid_indexes(sql: Sql) -> str:
    """With their schema where the search path does not have it."""
    return """
    SELECT CAST(CAST(indexrelid AS regclass) AS text) AS name FROM pg_index
    WHERE NOT indisvalid AND indrelid IN (
        SELECT CAST(to_regclass(name) AS oid) FROM jsonb_array_elements_text(CAST(:tables AS jsonb)) AS name)
    ORDER BY name"""


def _vacuum_postgresql(store: Store, connection: Connection) -> Iterator[DoctorFinding]:
    rows = store.all(connection, _dead_tuples, least=DEAD_TUPLES_MIN)
    for row in rows:
        yield DoctorFinding(
            "vacuum",
            "warning",
            f"{row.relname}: {row.n_dead_tup:,} dead rows and {row.n_live_tup:,} live rows",
            f"VACUUM {row.relname}; if the number stays, something holds an old snapshot (see that check), or "
            "autovacuum is too slow for this server",
        )
    if connection.exec_driver_sql("SHOW autovacuum").scalar() != "on":
        yield DoctorFinding(
            "vacuum", "error", "autovacuum is off", "turn it on: a queue's table bloats within hours without"
        )
    elif not rows:
        yield DoctorFinding("vacuum", "ok", "no table has more dead rows than live ones")


def _dead_tuples(sql: Sql) -> str:
    return """
    SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
    WHERE relname LIKE 'effects\\_%' AND n_dead_tup >= :least AND n_dead_tup > n_live_tup ORDER BY n_dead_tup DESC"""


def _vacuum_sqlite(connection: Connection) -> Iterator[DoctorFinding]:
    free, pages, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0)
        for name in ("freelist_count", "page_count", "page_size")
    )
    if free * size >= FREE_PAGES_MIN_BYTES and free * 2 > pages:
        yield DoctorFinding(
            "vacuum",
            "warning",
            f"{free * size // 2**20:,} MiB of the file are empty pages",
            "run VACUUM while no worker runs, if the space is needed; the queue itself does not mind",
        )
    else:
        yield DoctorFinding("vacuum", "ok", "no vacuum needed")


def _about_unresolved(causes: Sequence[Cause]) -> DoctorFinding:
    """What only an operator ends: a night's job that died is told of here, alerts or not."""
    if not causes:
        return DoctorFinding("dead letters", "ok", "no dead letter is unresolved")
    named = ", ".join(cause_of(cause.job_type, cause.error_code, cause.jobs) for cause in causes[:5])
    more = f" and {len(causes) - 5:,} further causes" if len(causes) > 5 else ""
    total = sum(cause.jobs for cause in causes)
    return DoctorFinding(
        "dead letters", "warning", f"{total:,} unresolved: {named}{more}",
        "see `effects dead causes` and `effects dead list`, then requeue, ignore or resolve each",
    )  # fmt: skip


def _about_operator_waits(waits: Sequence[OperatorWait]) -> Iterator[DoctorFinding]:
    """Jobs that no worker has tried for want of a setting or a key of its own."""
    for wait in waits:
        yield DoctorFinding(
            "worker settings",
            "warning",
            f"{wait.job_type}: {jobs_with(wait.jobs, 'waits')} for an operator: {wait.lacks or 'see their attempts'}",
            "set it where the workers run and start them again; a worker looks at such a job once a minute",
        )
    if not waits:
        yield DoctorFinding("worker settings", "ok", "no job waits for a setting or a key that the workers lack")


def _about_paused_keys(paused: Sequence[PausedKey]) -> Iterator[DoctorFinding]:
    """What waits for a pause: a peer that is down, a throttle, an operator."""
    for pause in paused:
        reason = f": {pause.reason}" if pause.reason else ""
        waiting = jobs_with(pause.waiting, "waits")
        yield DoctorFinding(
            "limit keys",
            "warning",
            f"{pause.limit_key} is paused until {moment_text(pause.until)}{reason}; {waiting}",
            "mend that cause; the next run of a worker after the pause tries them again, and "
            f"`effects limits resume {shlex.quote(pause.limit_key)}` ends it at once",
        )
    if not paused:
        yield DoctorFinding("limit keys", "ok", "no job waits for a paused limit key")


def _about_workers(
    workers: Workers, due: Due, failures: DueFailures | None, absent_seconds: float | None
) -> Iterator[DoctorFinding]:
    if workers.silent:
        yield DoctorFinding(
            "workers",
            "warning",
            f"{workers.silent} of {workers.alive + workers.silent} workers are silent for longer than a lease",
            "check their hosts; other workers rescue their jobs, and their rows are then deleted",
        )
    elif not workers.alive:
        yield _without_worker(due, absent_seconds)
    elif not workers.idle:
        yield DoctorFinding("workers", "ok", f"{workers.alive} alive, 0 silent")
    if workers.idle:
        yield DoctorFinding(
            "workers",
            "warning",
            f"{workers.idle} of {workers.alive} workers are alive but have not worked for a lease",
            "restart them (listed by `effects status`); see worker.part_failed in their logs",
        )
    if workers.failed > 1:
        yield DoctorFinding(
            "failed workers",
            "warning",
            f"{workers.failed} workers failed within the last hour, most often: {workers.reason}",
            "see worker.part_failed in their logs; their jobs were returned or rescued",
        )
    waited = due.oldest_seconds or 0.0
    if waited < DUE_WARNING_SECONDS:
        yield DoctorFinding(
            "backlog", "ok", f"{due.jobs:,} due, the oldest for {waited:,.0f} s" if due.jobs else "no job is due"
        )
        return
    level: Level = "warning" if workers.alive else "error"
    text = f"{jobs_with(due.jobs, 'is due/are due')}, the oldest for {waited:,.0f} s"
    if failures is not None:
        error = f" ({failures.error})" if failures.error else ""
        text += f"; {failures.jobs:,} failed with {failures.error_code}{error}"
    yield DoctorFinding("backlog", level, text, _backlog_cure(workers, failures))


def _backlog_cure(workers: Workers, failures: DueFailures | None) -> str:
    if failures is not None:
        again = "they are tried again by themselves" if workers.alive else "the next `effects work` tries them again"
        return f"mend that cause (`effects jobs list --code {shlex.quote(failures.error_code)}`); {again}"
    if workers.alive:
        return "add workers or threads, or check for a paused limit or queue (`effects status`)"
    return "start `effects work`, or see why `effects work --drain` no longer runs"


def _about_heartbeats(states: Sequence[WorkerState], lease_seconds: float) -> Iterator[DoctorFinding]:
    """Workers that were not heard of lately, and those whose lease is another than the reader's."""
    for worker in states:
        if worker.state == "silent" and worker.alive:
            yield DoctorFinding(
                "heartbeats",
                "warning",
                f"worker {worker.id} was last heard of {worker.silent_seconds:,.0f} s ago and sends a heartbeat every "
                f"{worker.heartbeat_seconds:g} s",
                f"see whether its process runs; its jobs are taken back after {worker.lease_seconds:g} s of silence",
            )
        if worker.state != "failed" and worker.lease_seconds != lease_seconds:
            yield DoctorFinding(
                "leases",
                "warning",
                f"worker {worker.id} has a lease of {worker.lease_seconds:g} s, and here it is {lease_seconds:g} s",
                "set the same EFFECTS_LEASE_SECONDS everywhere: each worker takes back jobs by its own",
            )


def _without_worker(due: Due, absent_seconds: float | None) -> DoctorFinding:
    """None is no fault in itself: drains by cron come and go. Each leaves a sample, as every worker does."""
    seen = "no worker has run yet" if absent_seconds is None else f"the last one ran {absent_seconds / 60:,.0f} min ago"
    absent, waited = absent_seconds or 0.0, due.oldest_seconds or 0.0
    if absent_seconds is None:
        absent = waited
    if min(absent, waited) < ABSENT_WARNING_SECONDS and absent < ABSENT_DAY_SECONDS:
        return DoctorFinding("workers", "ok", f"no worker is running; {seen}")
    return DoctorFinding(
        "workers",
        "warning",
        f"no worker is running; {seen}" + (f", and {jobs_with(due.jobs, 'is due/are due')}" if due.jobs else ""),
        "start `effects work`, or see why `effects work --drain` no longer runs",
    )


def _named_unknown(unknown: UnknownType) -> str:
    lost = f", {unknown.lost:,} of them left running by a worker" if unknown.lost else ""
    return f"{unknown.job_type} ({unknown.jobs:,}{lost})"
