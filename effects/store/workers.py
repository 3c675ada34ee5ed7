"""Workers' rows: registered at the start, renewed by heartbeats, and gone or kept for a day at the end.

Each heartbeat compares the server's own facts with those of the row of the last failover, and writes down a new one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import StoreRejected
from effects.kit.crashpoints import point
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.schema.tables import BY_HEARTBEAT, BY_NAME, FIRST

ENDED_KEPT_SECONDS = 86_400  # the rows of workers that ended by a fault
ENDED_KEPT = 50  # of them, however many there were: one that fails at each start leaves thousands a day


class WorkerIdentity(msgspec.Struct, frozen=True):
    """Who a worker is, and its heartbeats. The id is new with every start, and after every lost lease."""

    id: str
    host: str
    pid: int
    version: str
    queues: str
    heartbeat_seconds: float
    lease_seconds: float
    revisions: str = ""  # of the tables, the newest that its code knows


class Activity(msgspec.Struct, frozen=True):
    """How long ago a worker last looked for work, wrote outcomes and looked at the schedules; None if it has not yet.

    `oldest_unsettled_seconds`: the age of its oldest outcome that is not written.
    """

    claimed: float | None = None
    settled: float | None = None
    fired: float | None = None
    oldest_unsettled_seconds: float | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """A worker's row at its heartbeat.

    `alive`: it is still registered; if not, it was declared dead and owns nothing. `cancelled`: which of its running
    jobs someone asked to cancel. `drain_requested_by`: who asked it to end in order. `now`: the database's time, in
    seconds since 1970; None where it is not registered.

    `beat`: how many heartbeats the database knows of; fewer than before, and commits were lost. `failover`: the newest
    that was noticed; None where the database goes by another history.

    `revisions`: of the tables that the database has now.
    """

    alive: bool
    cancelled: set[int]
    drain_requested_by: str | None = None
    now: float | None = None
    beat: int = 0
    failover: Failover | None = None
    revisions: str | None = None


def _register(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.workers} (id, host, pid, version, revisions, queues, heartbeat_seconds, lease_seconds,
        started_at, seen_at)
    VALUES (:id, :host, :pid, :version, :revisions, :queues, :heartbeat_seconds, :lease_seconds, {sql.now}, {sql.now})
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at
    RETURNING CAST(NULL AS text) AS drain_requested_by, {_answer(sql)}"""


def _answer(sql: Sql) -> str:
    return f"{sql.epoch(sql.now)} AS now, beat, {sql.revisions} AS revisions, {_newest_columns(sql)}"


def register(store: Store, worker: WorkerIdentity) -> HeartbeatAnswer:
    """Write the worker's row, on which all its leases depend. Repeating it is harmless."""
    values = msgspec.structs.asdict(worker)
    try:
        return _registered(store, values)
    except StoreRejected:
        if not store.sql.names_histories:
            raise
        store.forget_histories()  # this server has no such names; any other cause is refused again
        return _registered(store, values)


def _registered(store: Store, values: dict[str, object]) -> HeartbeatAnswer:
    with store.single() as connection:
        row = store.row(connection, _register, **values)
    assert row is not None
    return _answered(row, set())


def _answered(row: Row[Any], cancelled: set[int]) -> HeartbeatAnswer:
    failover = None
    if not row.other_history:
        failover = Failover(row.failover, row.history, row.sign, float(row.failover_seconds))
    now, beat = float(row.now), int(row.beat)
    return HeartbeatAnswer(True, cancelled, row.drain_requested_by, now, beat, failover, row.revisions)


def _beat(sql: Sql) -> str:
    ago = {name: sql.after(f"-CAST(:{name} AS double precision)") for name in ("claimed", "settled", "fired")}
    return f"""
    UPDATE {sql.workers} SET seen_at = {sql.now}, beat = beat + 1,
        claimed_at = {ago["claimed"]}, settled_at = {ago["settled"]}, fired_at = {ago["fired"]},
        oldest_unsettled_seconds = :oldest_unsettled_seconds
    WHERE id = :worker RETURNING drain_requested_by, {_answer(sql)}"""


def _cancels(sql: Sql) -> str:
    return f"SELECT id FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker AND cancel_requested"


def heartbeat(store: Store, worker: str, activity: Activity | None = None) -> HeartbeatAnswer:
    """Renew the worker's row with its latest activity, and return what was requested of it."""
    point("heartbeat.before")
    with store.single() as connection:
        row = store.row(connection, _beat, worker=worker, **msgspec.structs.asdict(activity or Activity()))
    point("heartbeat.committed")
    with store.read() as connection:
        cancelled = {job.id for job in store.all(connection, _cancels, worker=worker)}
    if row is None:
        return HeartbeatAnswer(False, cancelled)
    return _answered(row, cancelled)


def _deregister(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.workers} WHERE id = :worker
    AND NOT EXISTS (SELECT 1 FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker)"""


def deregister(store: Store, worker: str) -> None:
    """Remove the row of a worker that ended in order; one that left jobs behind stays, to be found."""
    with store.single() as connection:
        store.write(connection, _deregister, worker=worker)


def _end(sql: Sql) -> str:
    return f"""
    UPDATE {sql.workers} SET ended_at = {sql.now}, exit_code = :exit_code, end_reason = :reason WHERE id = :worker"""


def end(store: Store, worker: str, exit_code: int, reason: str) -> None:
    """Record that a worker ended by a fault. What it left behind may be rescued at once; its row is kept for a day."""
    with store.single() as connection:
        store.write(connection, _end, worker=worker, exit_code=exit_code, reason=reason)


def dead_workers(sql: Sql) -> str:
    """Workers whose rows are needed no more: silent ones that hold no job, and old ones that ended by a fault."""
    return f"""
    FROM {sql.workers} WHERE (ended_at IS NULL AND NOT {sql.is_alive()}
        OR ended_at < {sql.after(str(-ENDED_KEPT_SECONDS))} OR ended_at IS NOT NULL AND id NOT IN (
            SELECT id FROM {sql.workers} WHERE ended_at IS NOT NULL ORDER BY ended_at DESC, id LIMIT {ENDED_KEPT}))
    AND NOT EXISTS (
        SELECT 1 FROM {sql.jobs} AS j WHERE j.status = 'running' AND j.locked_by = {sql.workers}.id)"""


def _delete_dead_workers(sql: Sql) -> str:
    return f"DELETE {dead_workers(sql)}"


def delete_dead_workers(store: Store, connection: Connection, lease_seconds: float) -> None:
    """Delete those rows, with the rescue of the jobs that they held."""
    store.write(connection, _delete_dead_workers, lease=lease_seconds)


NOT_COMPARED = "(compared < workers OR incomplete > 0)"  # a worker has not, or has forgotten a part


class Failover(msgspec.Struct, frozen=True):
    """A row of `effects_failovers`, the newest of which is the present history. `seconds`: since it was noticed."""

    id: int
    history: str | None
    sign: str
    seconds: float = 0.0


def _has_other_name(sql: Sql) -> str:
    """Whether the database goes by another history than its newest row says, or has no row yet."""
    newest = f"(SELECT history FROM {sql.failovers} ORDER BY id DESC LIMIT 1)"
    present = sql.history
    return f"""(NOT EXISTS (SELECT 1 FROM {sql.failovers})
        OR COALESCE({newest} <> {present}, {newest} IS NULL AND {present} IS NOT NULL))"""


def seconds_since_failover(sql: Sql) -> str:
    """Since the last one was noticed; 0 where none has noticed it yet, NULL where there was none."""
    newest = (
        f"(SELECT {sql.seconds('noticed_at')} FROM {sql.failovers} WHERE sign <> '{FIRST}' ORDER BY id DESC LIMIT 1)"
    )
    unnoticed = f"EXISTS (SELECT 1 FROM {sql.failovers}) AND {_has_other_name(sql)}"
    return f"CASE WHEN {unnoticed} THEN 0 ELSE {newest} END"


def needs_person() -> str:
    """Condition: no one has resolved the failover, and it left orphans, or a worker that did not compare all it had."""
    return f"(sign <> '{FIRST}' AND resolved_at IS NULL AND (orphans > 0 OR {NOT_COMPARED}))"


def present_id(sql: Sql) -> str:
    """The id of the newest row; NULL before the first."""
    return f"(SELECT max(id) FROM {sql.failovers})"


def _newest_columns(sql: Sql) -> str:
    """The newest row in the answer of a statement about a worker, and whether the database goes by that history."""
    newest = f"FROM {sql.failovers} ORDER BY id DESC LIMIT 1"
    return f"""
    {_has_other_name(sql)} AS other_history, {present_id(sql)} AS failover, (SELECT history {newest}) AS history,
    (SELECT sign {newest}) AS sign, (SELECT {sql.seconds("noticed_at")} {newest}) AS failover_seconds"""


_COLUMNS = "id, history, sign"


def _newest(sql: Sql) -> str:
    return f"SELECT {_COLUMNS}, {sql.seconds('noticed_at')} AS seconds FROM {sql.failovers} ORDER BY id DESC LIMIT 1"


def _read_failover(store: Store, connection: Connection) -> Failover | None:
    """The present history; None where no worker has run yet."""
    row = store.row(connection, _newest)
    return None if row is None else Failover(**row._mapping)


def _note(sql: Sql) -> str:
    """One row for all who notice it: the second finds its id taken, or the name as it should be."""
    count = f"SELECT count(*) FROM {sql.failovers}"
    alive = f"""SELECT count(*) FROM {sql.workers} AS w
        WHERE w.ended_at IS NULL AND w.seen_at >= {sql.after("-w.lease_seconds")}"""
    return f"""
    INSERT INTO {sql.failovers} (id, history, sign, noticed_by, noticed_at, workers)
    SELECT COALESCE({present_id(sql)}, 0) + 1, {sql.history},
        CASE WHEN ({count}) = 0 THEN '{FIRST}' WHEN {_has_other_name(sql)} THEN '{BY_NAME}' ELSE '{BY_HEARTBEAT}' END,
        :worker, {sql.now}, ({alive})
    WHERE {_has_other_name(sql)} OR {present_id(sql)} = CAST(:rewound AS bigint)
    ON CONFLICT (id) DO NOTHING RETURNING {_COLUMNS}"""


def note_failover(store: Store, worker: str, *, rewound: int | None = None) -> Failover:
    """Write down that the database goes by another history, unless another worker has; the present one.

    Args:
        rewound: the failover that this worker knew as the newest, where its heartbeats say that commits were lost
            since.

    Raises:
        StoreUnavailable: the database is unavailable. Repeating it is harmless.
    """
    with store.single() as connection:
        row = store.row(connection, _note, worker=worker, rewound=rewound)
    if row is not None:
        return Failover(**row._mapping)
    with store.read() as connection:
        failover = _read_failover(store, connection)
    assert failover is not None
    return failover
