"""Database checks of `effects doctor`: read-only, from catalogues and statistics."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlalchemy import Connection, Index, inspect
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import CreateIndex

from effects.kit.text.wording import cause_of, jobs_with
from effects.model.advice import DoctorFinding, Level
from effects.model.registry import Registry
from effects.operate.tables.counts import (
    Due,
    DueFailures,
    Workers,
    count_due,
    count_workers,
    read_due_failures,
)
from effects.operate.tables.dead_letters import Cause, count_causes
from effects.operate.tables.held_up import HeldKind, HeldUp, read_held_up
from effects.operate.tables.queue_status import WorkerState, read_workers, served_queues
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.numbers.samples import seconds_without_worker

DEAD_TUPLES_MIN = 10_000
FREE_PAGES_MIN_BYTES = 100 * 1024 * 1024
DUE_WARNING_SECONDS = 600.0
# Without a worker: so long no trace of one, and a job due for as long. A drain by cron every five minutes passes.
ABSENT_WARNING_SECONDS = 420.0
ABSENT_DAY_SECONDS = 86_400.0  # and so long in any case: schedules and the cleanup need one

_HELD: Mapping[HeldKind, str] = {
    "queue_paused": "queues", "limit_paused": "limit keys", "half_open": "limit keys", "operator": "worker settings",
    "put_off": "put off", "group_blocked": "groups", "type_not_registered": "job types",
    "queue_unserved": "queues", "schedule_paused": "schedules",  # of what a package says: its own
}  # fmt: skip
_NOTHING_HELD = {
    "queues": "no queue is paused", "limit keys": "no limit key is paused",
    "worker settings": "no job waits for a setting or a key that the workers lack",
    "put off": "no job is put off by its last answer", "groups": "no group with jobs is blocked",
    "job types": "every live job's type is registered here",
}  # fmt: skip


def examine_tables(store: Store) -> Iterator[DoctorFinding]:
    """Indexes and dead rows. The tables must be those of this version."""
    with store.read() as connection:
        yield from _indexes(store, connection)
        yield from _vacuum_postgresql(store, connection) if store.is_postgresql else _vacuum_sqlite(connection)


def examine_work(
    store: Store, lease_seconds: float, job_types: Registry, queues: Collection[str]
) -> Iterator[DoctorFinding]:
    """Check workers, due jobs, and live jobs of types and queues that the reader's app does not name."""
    with store.read() as connection:
        workers = count_workers(store, connection, lease_seconds)
        due = count_due(store, connection)
        absent_seconds = seconds_without_worker(store, connection)
        failures = read_due_failures(store, connection)
        states = read_workers(store, connection, lease_seconds)
        causes = count_causes(store, connection)
        served = served_queues(states)
        held_up = read_held_up(store, connection, job_types=job_types, queues=queues, served=served)
    unserved = [held for held in held_up if held.kind == "queue_unserved"]
    yield from _about_workers(workers, due, failures, absent_seconds, _start_of_worker(due, unserved))
    yield from _about_heartbeats(states)
    yield _about_unresolved(causes)
    yield from _about_held_up(held_up)


# -- tables ----------------------------------------------------------------------------------------------


def _indexes(store: Store, connection: Connection) -> Iterator[DoctorFinding]:
    """By table and columns: the names depend on the schema."""
    inspector = inspect(connection)
    missing: list[tuple[str, Index]] = []
    for table in store.tables.values():
        try:
            there = {tuple(index["column_names"]) for index in inspector.get_indexes(table.name, schema=store.located)}
        except NoSuchTableError:
            cure = "restore it from a backup, or make a new database with `effects init` of this version"
            yield DoctorFinding("tables", "error", f"the table {table.name} is missing", cure)
            continue
        missing += [(table.name, index) for index in table.indexes if tuple(index.columns.keys()) not in there]
    tables = as_json([getattr(store.sql, name) for name in store.tables])
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
    WHERE starts_with(relname, 'effects_') AND n_dead_tup >= :least AND n_dead_tup > n_live_tup
    ORDER BY n_dead_tup DESC"""


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


def _about_held_up(held_up: Sequence[HeldUp]) -> Iterator[DoctorFinding]:
    """What waits, by its kind; a check without any is in order."""
    seen = set()
    for held in held_up:
        check = held.name if held.kind == "package" else _HELD[held.kind]
        seen.add(check)
        if held.needs_attention:
            yield DoctorFinding(check, "warning", held.text, held.ends)
        else:
            yield DoctorFinding(check, "ok", f"{held.text}; {held.ends}")
    for check, text in _NOTHING_HELD.items():
        if check not in seen:
            yield DoctorFinding(check, "ok", text)


def _about_workers(
    workers: Workers, due: Due, failures: DueFailures | None, absent_seconds: float | None, start: str
) -> Iterator[DoctorFinding]:
    if workers.silent:
        yield DoctorFinding(
            "workers",
            "warning",
            f"{workers.silent} of {workers.alive + workers.silent} workers are silent for longer than a lease",
            "check their hosts; other workers rescue their jobs, and their rows are then deleted",
        )
    elif not workers.alive:
        yield _without_worker(due, absent_seconds, start)
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
    yield DoctorFinding("backlog", level, text, _backlog_cure(workers, failures, start))


def _backlog_cure(workers: Workers, failures: DueFailures | None, start: str) -> str:
    if failures is not None:
        again = "they are tried again by themselves" if workers.alive else "the next `effects work` tries them again"
        return f"mend that cause (`effects jobs list --code {shlex.quote(failures.error_code)}`); {again}"
    if workers.alive:
        return "add workers or threads, or check for a paused limit or queue (`effects status`)"
    return start


def _start_of_worker(due: Due, unserved: Sequence[HeldUp]) -> str:
    """What serves the due jobs: those of queues that the app does not name need a worker that does."""
    if unserved and sum(held.jobs for held in unserved) >= due.jobs:
        return unserved[0].ends
    return "start `effects work`, or see why `effects work --drain` no longer runs"


def _about_heartbeats(states: Sequence[WorkerState]) -> Iterator[DoctorFinding]:
    """Workers that were not heard of lately; and whether their leases differ. The shell that asks has none."""
    for worker in states:
        if worker.state == "silent" and worker.alive:
            yield DoctorFinding(
                "heartbeats",
                "warning",
                f"worker {worker.id} was last heard of {worker.silent_seconds:,.0f} s ago and sends a heartbeat every "
                f"{worker.heartbeat_seconds:g} s",
                f"see whether its process runs; its jobs are taken back after {worker.lease_seconds:g} s of silence",
            )
    leases: dict[float, list[str]] = {}
    for worker in states:
        if worker.state != "failed":
            leases.setdefault(worker.lease_seconds, []).append(worker.id)
    if len(leases) > 1:
        yield DoctorFinding(
            "leases",
            "warning",
            "; ".join(f"a lease of {seconds:g} s: {_some(ids)}" for seconds, ids in sorted(leases.items())),
            "set the same EFFECTS_LEASE_SECONDS for every worker: each takes back jobs by its own",
        )


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def _without_worker(due: Due, absent_seconds: float | None, start: str) -> DoctorFinding:
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
        start,
    )
