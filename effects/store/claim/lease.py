"""Leasing: what a claim asks for, the statement that picks waiting jobs in their order, and the update of their rows.

Every LIMIT is a literal of a few sizes, because a bound one may get a generic plan that scans; each size is therefore a
statement of its own. PostgreSQL picks, leases and returns in one statement. SQLite needs three, because each row that
its driver fetches lets every other thread of the process run first, while no other process can write: the ids, the
update, and all rows as one value.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from effects.errors import EffectsError
from effects.model.job import PRIORITY_MAX, PRIORITY_MIN, Job
from effects.store.db.faults import Fault, fault_of
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.limits.capacity import LocalKeys
from effects.store.limits.queue_pauses import is_paused
from effects.store.queue.job_rows import job_columns, job_of, job_values
from effects.store.schema.job_tables import GROUPED, LIMITED, PLAIN

SIZES = (1, 4, 16, 64, 128, 256, 512, 1024)  # of claims: each is its own statement
CLAIM_MAX = SIZES[-1]
MOVED_MAX = 1024


class ClaimRequest(msgspec.Struct):
    """The request of a claim, with the positions of its skip scans."""

    queue: str
    lease_seconds: Mapping[str, float]  # job type → seconds until `locked_until`; also the types that we know
    threads: int = CLAIM_MAX  # of one rate, no more are claimed at once: those that wait for a thread are a burst
    fair: bool = False  # limit keys take turns, instead of the oldest job first
    reserved_threads: int = 0  # threads withheld from failing keys
    keyed: bool = False  # whether the last claim found keys in use: then it looks for them first
    polled: bool = False  # nothing says that a job is due: the next claim looks before it takes
    looked: bool = False  # a look has just seen that one is, or the last claim took all that it could
    floors: dict[int, float] = msgspec.field(default_factory=dict)  # priority → `run_at` of the last job taken
    from_floors: bool = False  # take plain jobs from there on, without a look at what may lie before
    limit_cursor: str = ""
    group_cursor: str = ""
    moved: deque[str] = msgspec.field(default_factory=partial(deque, maxlen=MOVED_MAX))  # groups to look at first
    last_key: str = ""  # round robin: the key served last
    local: LocalKeys = msgspec.field(default_factory=LocalKeys)

    def full_keys(self) -> set[str]:
        """The keys of which this worker may start no more, whatever their limits allow."""
        local, failing_max = self.local, self.threads - self.reserved_threads
        pool_is_full = self.reserved_threads > 0 and local.silent_in_flight >= failing_max
        return {
            key for key in local.in_flight if (pool_is_full and key in local.silent) or local.free_slots(key, 1) < 1
        }


class Floor(msgspec.Struct, frozen=True):
    """The due time of the last job of a priority that was taken, in seconds since 1970."""

    priority: int
    run_at: float


class ReadyKey(msgspec.Struct, frozen=True):
    """A key with waiting jobs of one priority, how many of it may start, and how many of its parent's children."""

    limit_key: str
    priority: int
    free_slots: int
    pool: str
    pool_free: int


class GroupHead(msgspec.Struct, frozen=True):
    """The first live job of a group, and the capacity under its limit."""

    id: int
    free_slots: int
    pool: str | None
    pool_free: int


# What a leased row has behind the columns of a job.
_EXPIRED, _DUE_SECONDS, _RUN_AT = -3, -2, -1
PRIORITY = Job.__struct_fields__.index("priority")
_BY_PRIORITY = itemgetter(PRIORITY, _RUN_AT, Job.__struct_fields__.index("id"))

Rows = Sequence[Sequence[Any]]


def _lease_rows(
    store: Store, connection: Connection, pick: Statement, request: ClaimRequest, worker: str, **keyed: str
) -> Rows:
    """Lease the jobs that `pick` finds; their rows, in the order of their priority and time. In a transaction.

    Args:
        pick: ends with `lease`.
    """
    picked = {"queue": request.queue, "types": as_json(list(request.lease_seconds)), **keyed}
    leased = {"worker": worker, "leases": as_json(request.lease_seconds)}
    if store.is_postgresql:
        return sorted(store.tuples(connection, pick, **picked, **leased), key=_BY_PRIORITY)
    ids = store.value(connection, pick, **picked)
    if ids == "[]":
        return []
    store.write(connection, _lease_these, ids=ids, **leased)
    return sorted(_read(store, connection, ids), key=_BY_PRIORITY)


def jobs_of(rows: Rows) -> list[Job]:
    return [job_of(row, expired=row[_EXPIRED], due_seconds=row[_DUE_SECONDS]) for row in rows]


def _read(store: Store, connection: Connection, ids: str) -> Rows:
    """SQLite: a value that no JSON can hold, such as a text that is no UTF-8, has the rows read one by one."""
    try:
        rows: Rows = msgspec.json.decode(store.value(connection, _leased_as_json, ids=ids))
    except (msgspec.DecodeError, UnicodeDecodeError, DBAPIError) as error:
        if isinstance(error, DBAPIError) and fault_of(error) not in (Fault.DATA, Fault.BUG):
            raise  # after which the transaction may be no more, and the rows unleased
        return store.tuples(connection, _leased, ids=ids)
    return rows


def lease(sql: Sql, age_from: str) -> str:
    """The end of a statement that has `picked`: PostgreSQL leases and returns the rows, SQLite gives their ids."""
    if not sql.postgresql:
        return "SELECT json_group_array(id) FROM picked"
    aged = "" if age_from == "age_from" else f", age_from = {age_from}"
    seconds = "CAST(CAST(:leases AS jsonb) ->> jobs.job_type AS double precision)"
    return f"{_update(sql, seconds, sql.among('picked'), aged)} RETURNING {_columns(sql)}"


def _lease_these(sql: Sql) -> str:
    seconds = "(:leases ->> ('$.\"' || jobs.job_type || '\"'))"
    return _update(sql, seconds, sql.any_of("ids", "int"), f", age_from = {_younger(sql)}")


def _update(sql: Sql, seconds: str, these: str, aged: str) -> str:
    """`status <> 'running'` is checked again on the row that is locked."""
    return f"""
        UPDATE {sql.jobs} AS jobs SET status = 'running', attempts = attempts + 1, lease_token = {sql.next_token},
            locked_by = :worker, locked_until = {sql.after(seconds)}, started_at = {sql.now}, released_at = NULL,
            updated_at = {sql.now}{aged}
        WHERE id {these} AND status <> 'running'"""


def _leased(sql: Sql) -> str:
    return f"SELECT {_columns(sql)} {_of_these(sql)}"


def _leased_as_json(sql: Sql) -> str:
    """As bytes, which the driver leaves as they are."""
    row = f"json_array({', '.join([*job_values(sql), *_further(sql)])})"
    return f"SELECT CAST(json_group_array({row}) AS BLOB) {_of_these(sql)}"


def _of_these(sql: Sql) -> str:
    return f"FROM {sql.jobs} WHERE id {sql.any_of('ids', 'int')}"


def _columns(sql: Sql) -> str:
    return f"{job_columns(sql)}, {', '.join(_further(sql))}"


def _further(sql: Sql) -> tuple[str, ...]:
    return f"expires_at <= {sql.now}", sql.seconds("run_at"), sql.epoch("run_at")


def _younger(sql: Sql) -> str:
    """`age_from`, later by what its key (or the key's parent) was paused since the job's last claim.

    Only the sum of a run of pauses is kept: a job that came in its midst gets at most that sum, and never more
    than it has waited.
    """
    since = sql.greatest(
        "COALESCE(l.paused_from, jobs.age_from)", "jobs.age_from", "COALESCE(jobs.started_at, jobs.age_from)"
    )
    rested = sql.smallest("l.paused_seconds", sql.seconds(since))
    seconds = f"""(
            SELECT COALESCE(max({rested}), 0) FROM {sql.limits} AS l
            WHERE (l.limit_key = jobs.limit_key
                OR l.limit_key = (SELECT parent_key FROM {sql.limits} WHERE limit_key = jobs.limit_key))
            AND l.paused_until > {since})"""
    return f"CASE WHEN jobs.limit_key IS NULL THEN age_from ELSE {sql.after(seconds, 'age_from')} END"


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
        rows = _lease_rows(store, connection, _plain_from_floors(limit), request, worker, floors=floors)
    else:
        rows = _lease_rows(store, connection, _plain_alone(limit), request, worker)
    request.floors.update((row[PRIORITY], row[_RUN_AT]) for row in rows)
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
    jobs = _lease_jobs(
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


def _lease_jobs(
    store: Store, connection: Connection, statement: Statement, request: ClaimRequest, worker: str, **keyed: str
) -> list[Job]:
    return jobs_of(_lease_rows(store, connection, statement, request, worker, **keyed))


def lease_and_undo(store: Store, request: ClaimRequest, worker: str, ids: Sequence[int]) -> Exception | None:
    """Lease these jobs as a claim would, read them, and roll it back: what goes wrong with them.

    Raises:
        StoreUnavailable, StoreConflict, StoreRejected: errors that do not concern a row.
    """
    try:
        with store.begin() as connection:
            transaction = connection.get_transaction()
            _lease_jobs(store, connection, _these, request, worker, ids=as_json(ids))
            assert transaction is not None
            transaction.rollback()
    except EffectsError:
        raise
    except Exception as error:
        return error
    return None


def _these(sql: Sql) -> str:
    rows = f"SELECT id FROM {sql.jobs} WHERE id {sql.any_of('ids', 'int')} AND status <> 'running' {sql.lock()}"
    return f"WITH picked AS ({rows}) {lease(sql, _younger(sql))}"


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
    """PostgreSQL: `_plain_alone` past the index entries of jobs that were done, which a held snapshot keeps.

    Between the priorities that have a floor nothing was taken: there the first that waits is found by one probe each.
    """

    def build(sql: Sql) -> str:
        late = sql.time(f"floor - {LATE_SECONDS}")
        plain = _plain_postgresql(sql, limit, f"AND run_at >= {late}")
        between = f"FROM {sql.jobs} WHERE queue = :queue AND {PLAIN} AND priority > below AND priority < above"
        return f"""
        WITH floors AS (SELECT priority, run_at FROM {sql.rows("floors", Floor)} AS f), gaps AS (
            SELECT lag(priority, 1, {PRIORITY_MIN - 1}) OVER (ORDER BY priority) AS below, priority AS above
            FROM (SELECT priority FROM floors UNION ALL SELECT {PRIORITY_MAX + 1}) AS bounds
        ), priorities(p, floor) AS (
            SELECT * FROM (
                SELECT priority, run_at FROM floors
                UNION ALL SELECT {sql.least("priority", between)}, '-Infinity' FROM gaps
            ) AS f WHERE NOT {keys_in_use(sql)} AND NOT {is_paused(sql)} ORDER BY 1
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
        {lease(sql, _younger(sql))}"""

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
