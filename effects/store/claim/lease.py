"""Taking: one statement that picks waiting jobs in their order; `lease_rows` leases them.

Every LIMIT is a literal of a few sizes, because a bound one may get a generic plan that scans; each size is
therefore a statement of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

from sqlalchemy import Connection

from effects.errors import EffectsError
from effects.model.job import Job
from effects.store.claim.claim_request import SIZES, ClaimRequest, Floor, GroupHead, ReadyKey
from effects.store.claim.lease_rows import PRIORITY, RUN_AT, jobs_of, lease, lease_rows, younger
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.limits.queue_pauses import is_paused
from effects.store.schema.job_tables import GROUPED, LIMITED, PLAIN

LATE_SECONDS = 2.0  # what became visible so late after its `run_at` is still seen from a floor


def keys_in_use(sql: Sql, queue: str = ":queue") -> str:
    """Whether jobs of the queue (an SQL expression) with a limit or a group wait; two probes of an index."""
    limited = sql.least("limit_key", f"FROM {sql.jobs} WHERE queue = {queue} AND {LIMITED}")
    grouped = sql.least("run_at", f"FROM {sql.jobs} WHERE queue = {queue} AND {GROUPED}")
    return f"({limited} IS NOT NULL OR {grouped} IS NOT NULL)"


def is_running(sql: Sql, group: str) -> str:
    """Whether a job of this group (an SQL expression) runs."""
    return sql.exists(f"FROM {sql.jobs} AS busy WHERE busy.group_key = {group} AND busy.status = 'running'")


def lease_plain(store: Store, connection: Connection, request: ClaimRequest, worker: str, limit: int) -> list[Job]:
    """Lease plain jobs if no job of the queue has a key, the common case; else lease none."""
    if request.from_floors:
        floors = as_json([Floor(*floor) for floor in sorted(request.floors.items())])
        rows = lease_rows(store, connection, _plain_from_floors(limit), request, worker, floors=floors)
    else:
        rows = lease_rows(store, connection, _plain_alone(limit), request, worker)
    request.floors.update((row[PRIORITY], row[RUN_AT]) for row in rows)
    return jobs_of(rows)


def lease_any(
    store: Store,
    connection: Connection,
    request: ClaimRequest,
    worker: str,
    limit: int,
    ready_keys: Sequence[ReadyKey],
    heads: Sequence[GroupHead],
) -> list[Job]:
    """Lease the first of the plain jobs, those of the ready keys and these heads of groups.

    Of no key more jobs are locked than one of them may start, or than its share of the claim: other workers skip those.
    """
    room = max((min(key.free_slots, key.pool_free) for key in ready_keys), default=1)
    share = max(4, 2 * limit // max(1, len(ready_keys)))
    per_key = min(size for size in SIZES if size >= min(room, share, limit))
    statement = _all_kinds(limit, per_key, request.fair)
    turn = {"last_key": request.last_key} if request.fair else {}
    jobs = _leased(
        store, connection, statement, request, worker, ready_keys=as_json(ready_keys), heads=as_json(heads), **turn
    )
    if request.fair and jobs:
        jobs = _by_turns(jobs, request.last_key)
        request.last_key = jobs[-1].limit_key or ""
    return jobs


def _by_turns(jobs: Sequence[Job], before: str) -> list[Job]:
    """The order of `_TURNS`, for the threads: the first of each key, keys behind `before` leading, then the second."""
    seen: Counter[str] = Counter()
    turns = []
    for number, job in enumerate(jobs):
        key = job.limit_key or ""
        turns.append((job.priority, seen[key], key <= before, key, number))
        seen[key] += 1
    return [jobs[number] for *_, number in sorted(turns)]


def _leased(
    store: Store, connection: Connection, statement: Statement, request: ClaimRequest, worker: str, **keyed: str
) -> list[Job]:
    return jobs_of(lease_rows(store, connection, statement, request, worker, **keyed))


def lease_and_undo(store: Store, request: ClaimRequest, worker: str, ids: Sequence[int]) -> Exception | None:
    """Lease these jobs as a claim would, read them, and roll it back: what goes wrong with them.

    Raises:
        StoreUnavailable, StoreConflict, StoreRejected: errors that do not concern a row.
    """
    try:
        with store.begin() as connection:
            transaction = connection.get_transaction()
            _leased(store, connection, _these, request, worker, ids=as_json(ids))
            assert transaction is not None
            transaction.rollback()
    except EffectsError:
        raise
    except Exception as error:
        return error
    return None


def _these(sql: Sql) -> str:
    rows = f"SELECT id FROM {sql.jobs} WHERE id {sql.any_of('ids', 'int')} AND status <> 'running' {sql.lock()}"
    return f"WITH picked AS ({rows}) {lease(sql, younger(sql))}"


def loose_priorities(sql: Sql, condition: str) -> str:
    """The priorities of waiting plain jobs, one probe each; none unless the condition holds and the queue is open."""
    waiting = f"FROM {sql.jobs} WHERE queue = :queue AND {PLAIN}"
    return f"""priorities(p) AS (
            SELECT CASE WHEN {condition} AND NOT {is_paused(sql)} THEN {sql.least("priority", waiting)} END
            UNION ALL
            SELECT {sql.least("priority", f"{waiting} AND priority > p")} FROM priorities WHERE p IS NOT NULL
        )"""


@cache
def _plain_alone(limit: int) -> Statement:
    """Nothing competes but priority and time; where a key is in use, not even the first priority is found."""

    def build(sql: Sql) -> str:
        plain = _plain_postgresql if sql.postgresql else _plain_sqlite
        return f"""
        WITH RECURSIVE {loose_priorities(sql, f"NOT {keys_in_use(sql)}")}, {_picked(plain(sql, limit), limit)}
        {lease(sql, "age_from")}"""

    return build


@cache
def _plain_from_floors(limit: int) -> Statement:
    """PostgreSQL: `_plain_alone` past the index entries of jobs that were done, which a held snapshot keeps."""

    def build(sql: Sql) -> str:
        floors, late = sql.rows("floors", Floor), sql.time(f"floor - {LATE_SECONDS}")
        plain = _plain_postgresql(sql, limit, f"AND run_at >= {late}")
        return f"""
        WITH priorities(p, floor) AS (
            SELECT priority, run_at FROM {floors} AS f WHERE NOT {keys_in_use(sql)} AND NOT {is_paused(sql)}
        ), {_picked(plain, limit)}
        {lease(sql, "age_from")}"""

    return build


def _picked(plain: str, limit: int) -> str:
    return f"picked AS (SELECT id FROM ({plain}) AS due ORDER BY priority, run_at, id LIMIT {limit})"


_TURNS = "priority, place, COALESCE(limit_key, '') <= :last_key, COALESCE(limit_key, ''), run_at, id"


@cache
def _all_kinds(limit: int, per_key: int, fair: bool) -> Statement:
    """Plain jobs, heads of ready keys and heads of groups compete; no key or pool gets more than it has free."""
    order = _TURNS if fair else "priority, run_at, id"

    def build(sql: Sql) -> str:
        candidates = _candidates_postgresql if sql.postgresql else _candidates_sqlite
        return f"""
        WITH RECURSIVE {loose_priorities(sql, "true")}, candidates AS (
            {candidates(sql, limit, per_key)}
        ), ranked AS (
            SELECT id, priority, run_at, limit_key, free_slots, pool, pool_free,
                   row_number() OVER (PARTITION BY limit_key ORDER BY priority, run_at, id) AS place
            FROM candidates
        ), placed AS (
            SELECT id, priority, run_at, limit_key, place, pool_free,
                   row_number() OVER (PARTITION BY pool ORDER BY {order}) AS pool_place
            FROM ranked WHERE place <= free_slots
        ), picked AS (
            SELECT id FROM placed WHERE pool_place <= pool_free AND NOT {is_paused(sql)}
            ORDER BY {order} LIMIT {limit}
        )
        {lease(sql, younger(sql))}"""

    return build


def _due(sql: Sql) -> str:
    """A job in quarantine rests while the queue that it came from is paused."""
    rests = f"quarantined_from IS NOT NULL AND {is_paused(sql, 'quarantined_from')}"
    return f"run_at <= {sql.now} AND job_type {sql.any_of('types')} AND NOT ({rests})"


_COLUMNS = "id, priority, run_at, limit_key"


def _slots(row: str) -> str:
    return f"{row}.free_slots, {row}.pool, {row}.pool_free"


def _plain_postgresql(sql: Sql, limit: int, floor: str = "") -> str:
    return f"""SELECT j.*, {limit} AS free_slots, CAST(NULL AS text) AS pool, {limit} AS pool_free
             FROM priorities CROSS JOIN LATERAL (
                SELECT {_COLUMNS} FROM {sql.jobs} WHERE queue = :queue AND {PLAIN} AND priority = p
                {floor} AND {_due(sql)} ORDER BY run_at, id LIMIT {limit} {sql.lock()}) AS j
             WHERE p IS NOT NULL LIMIT {limit}"""


def _candidates_postgresql(sql: Sql, limit: int, per_key: int) -> str:
    due = _due(sql)
    return f"""({_plain_postgresql(sql, limit)})
            UNION ALL
            (SELECT j.*, {_slots("o")} FROM {sql.rows("ready_keys", ReadyKey)} AS o CROSS JOIN LATERAL (
                SELECT {_COLUMNS} FROM {sql.jobs} WHERE queue = :queue AND {LIMITED} AND limit_key = o.limit_key
                AND priority = o.priority AND {due} ORDER BY run_at, id LIMIT {per_key} {sql.lock()}) AS j)
            UNION ALL
            (SELECT j.*, {_slots("h")} FROM {sql.rows("heads", GroupHead)} AS h CROSS JOIN LATERAL (
                SELECT {_COLUMNS} FROM {sql.jobs} AS head WHERE id = h.id AND {_still_head(sql, "head")}
                AND {due} {sql.lock()}) AS j)"""


def _plain_sqlite(sql: Sql, limit: int) -> str:
    slots = f"{limit} AS free_slots, NULL AS pool, {limit} AS pool_free"
    return f"""SELECT j.id, j.priority, j.run_at, j.limit_key, {slots}
            FROM priorities JOIN {sql.jobs} AS j
            ON j.id IN (SELECT id FROM {sql.jobs} WHERE queue = :queue AND {PLAIN} AND priority = p
                AND {_due(sql)} ORDER BY run_at, id LIMIT {limit})"""


def _candidates_sqlite(sql: Sql, limit: int, per_key: int) -> str:
    pick, due = "j.id, j.priority, j.run_at, j.limit_key", _due(sql)
    first = f"{due} ORDER BY run_at, id LIMIT"
    return f"""{_plain_sqlite(sql, limit)}
            UNION ALL
            SELECT {pick}, {_slots("o")} FROM {sql.rows("ready_keys", ReadyKey)} AS o JOIN {sql.jobs} AS j
            ON j.id IN (SELECT id FROM {sql.jobs} WHERE queue = :queue AND {LIMITED}
                AND limit_key = o.limit_key AND priority = o.priority AND {first} {per_key})
            UNION ALL
            SELECT {pick}, {_slots("h")} FROM {sql.rows("heads", GroupHead)} AS h JOIN {sql.jobs} AS j
            ON j.id = h.id WHERE {_still_head(sql, "j")} AND {due}"""


def _still_head(sql: Sql, row: str) -> str:
    """Check the group head again under its lock: no enqueuer can come before it now."""
    return f"{row}.status <> 'running' AND {row}.queue = :queue AND NOT {is_running(sql, f'{row}.group_key')}"
