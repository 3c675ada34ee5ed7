"""Taking: one statement that picks waiting jobs in their order and leases them.

Every LIMIT is a literal of a few sizes, because a bound one may get a generic plan that scans; each size is
therefore a statement of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
from sqlalchemy import Connection

from effects.job import Job
from effects.store.job_rows import job_columns, job_of
from effects.store.sql import Sql
from effects.store.store import Statement, Store, as_json

SIZES = (1, 4, 16, 64, 128, 256, 512)
PLAIN = "status <> 'running' AND limit_key IS NULL AND group_key IS NULL"
LIMITED = "status <> 'running' AND limit_key IS NOT NULL AND group_key IS NULL"


class Lane(msgspec.Struct):
    """What a claim asks for, and where its loose scans go on."""

    queue: str
    lease_seconds: Mapping[str, float]  # job type → seconds until `locked_until`; also the types that we know
    threads: int = SIZES[-1]  # of one rate, no more are claimed at once: those that wait for a thread are a burst
    fair: bool = False  # limit keys take turns, instead of the oldest job first
    kept: int = 0  # of the threads, for jobs whose key does not fail
    keyed: bool = False  # whether the last claim found keys in use: then it looks for them first
    limit_cursor: str = ""
    group_cursor: str = ""
    served: str = ""  # fair: the key whose turn was last


class Open(msgspec.Struct, frozen=True):
    """A key with waiting jobs of one priority, how many of it may start, and how many of its parent's children."""

    limit_key: str
    priority: int
    room: int
    family: str
    family_room: int


class Head(msgspec.Struct, frozen=True):
    """The first live job of a group, and the rooms under its limit."""

    id: int
    room: int
    family: str | None
    family_room: int


_OPEN = {"limit_key": "text", "priority": "int", "room": "int", "family": "text", "family_room": "int"}
_HEAD = {"id": "int", "room": "int", "family": "text", "family_room": "int"}


def keys_in_use(sql: Sql) -> str:
    """Whether the lane has jobs with a limit, or the table any with a group; two probes of an index."""
    limited = sql.least("limit_key", f"FROM {sql.jobs} WHERE queue = :queue AND {LIMITED}")
    grouped = sql.least("group_key", f"FROM {sql.jobs} WHERE group_key IS NOT NULL")
    return f"({limited} IS NOT NULL OR {grouped} IS NOT NULL)"


def take_plain(store: Store, connection: Connection, lane: Lane, worker: str, limit: int) -> list[Job]:
    """Lease plain jobs where no job of the lane has a key, which is what most claims find; else none."""
    return _leased(store, connection, _plain_alone(limit), lane, worker)


def take_any(
    store: Store,
    connection: Connection,
    lane: Lane,
    worker: str,
    limit: int,
    opened: Sequence[Open],
    heads: Sequence[Head],
) -> list[Job]:
    """Lease the first of the plain jobs, those of the open keys and these heads of groups."""
    share = max(4, 2 * limit // max(1, len(opened)))
    per_key = min(size for size in SIZES if size >= min(share, limit))
    statement = _all_kinds(limit, per_key, lane.fair)
    turn = {"served": lane.served} if lane.fair else {}
    jobs = _leased(store, connection, statement, lane, worker, opened=as_json(opened), heads=as_json(heads), **turn)
    if lane.fair and jobs:
        jobs = _by_turns(jobs, lane.served)
        lane.served = jobs[-1].limit_key or ""
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
    store: Store, connection: Connection, statement: Statement, lane: Lane, worker: str, **keyed: str
) -> list[Job]:
    found = store.all(
        connection,
        statement,
        queue=lane.queue,
        worker=worker,
        types=as_json(list(lane.lease_seconds)),
        leases=as_json(lane.lease_seconds),
        **keyed,
    )
    found = sorted(found, key=lambda row: (row.priority, row.run_at, row.id))
    return [job_of(row, expired=row.expired) for row in found]


def loose_priorities(sql: Sql, condition: str) -> str:
    """The priorities of waiting plain jobs, one probe each; none unless the condition holds."""
    waiting = f"FROM {sql.jobs} WHERE queue = :queue AND {PLAIN}"
    return f"""priorities(p) AS (
            SELECT CASE WHEN {condition} THEN {sql.least("priority", waiting)} END
            UNION ALL
            SELECT {sql.least("priority", f"{waiting} AND priority > p")} FROM priorities WHERE p IS NOT NULL
        )"""


@cache
def _plain_alone(limit: int) -> Statement:
    """Nothing competes but priority and time; where a key is in use, not even the first priority is found."""

    def build(sql: Sql) -> str:
        plain = _plain_postgresql if sql.postgresql else _plain_sqlite
        return f"""
        WITH RECURSIVE {loose_priorities(sql, f"NOT {keys_in_use(sql)}")}, picked AS (
            SELECT id FROM ({plain(sql, limit)}) AS due ORDER BY priority, run_at, id LIMIT {limit}
        )
        {_lease(sql, "age_from")}"""

    return build


_TURNS = "priority, place, COALESCE(limit_key, '') <= :served, COALESCE(limit_key, ''), run_at, id"


@cache
def _all_kinds(limit: int, per_key: int, fair: bool) -> Statement:
    """Plain jobs, heads of open keys and heads of groups compete; no key or family gets more than its room."""
    order = _TURNS if fair else "priority, run_at, id"

    def build(sql: Sql) -> str:
        candidates = _candidates_postgresql if sql.postgresql else _candidates_sqlite
        return f"""
        WITH RECURSIVE {loose_priorities(sql, "true")}, candidates AS (
            {candidates(sql, limit, per_key)}
        ), ranked AS (
            SELECT id, priority, run_at, limit_key, room, family, family_room,
                   row_number() OVER (PARTITION BY limit_key ORDER BY priority, run_at, id) AS place
            FROM candidates
        ), placed AS (
            SELECT id, priority, run_at, limit_key, place, family_room,
                   row_number() OVER (PARTITION BY family ORDER BY {order}) AS family_place
            FROM ranked WHERE place <= room
        ), picked AS (
            SELECT id FROM placed WHERE family_place <= family_room ORDER BY {order} LIMIT {limit}
        )
        {_lease(sql, _younger(sql))}"""

    return build


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


def _due(sql: Sql) -> str:
    return f"run_at <= {sql.now} AND job_type {sql.any_of('types')}"


_COLUMNS = "id, priority, run_at, limit_key"


def _plain_postgresql(sql: Sql, limit: int) -> str:
    return f"""SELECT j.*, {limit} AS room, CAST(NULL AS text) AS family, {limit} AS family_room
             FROM priorities CROSS JOIN LATERAL (
                SELECT {_COLUMNS} FROM {sql.jobs} WHERE queue = :queue AND {PLAIN} AND priority = p
                AND {_due(sql)} ORDER BY run_at, id LIMIT {limit} {sql.lock()}) AS j
             WHERE p IS NOT NULL LIMIT {limit}"""


def _candidates_postgresql(sql: Sql, limit: int, per_key: int) -> str:
    due = _due(sql)
    return f"""({_plain_postgresql(sql, limit)})
            UNION ALL
            (SELECT j.*, o.room, o.family, o.family_room FROM {sql.rows("opened", _OPEN)} AS o CROSS JOIN LATERAL (
                SELECT {_COLUMNS} FROM {sql.jobs} WHERE queue = :queue AND {LIMITED} AND limit_key = o.limit_key
                AND priority = o.priority AND {due} ORDER BY run_at, id LIMIT {per_key} {sql.lock()}) AS j)
            UNION ALL
            (SELECT j.*, h.room, h.family, h.family_room FROM {sql.rows("heads", _HEAD)} AS h CROSS JOIN LATERAL (
                SELECT {_COLUMNS} FROM {sql.jobs} WHERE id = h.id AND status <> 'running'
                AND {due} {sql.lock()}) AS j)"""


def _plain_sqlite(sql: Sql, limit: int) -> str:
    rooms = f"{limit} AS room, NULL AS family, {limit} AS family_room"
    return f"""SELECT j.id, j.priority, j.run_at, j.limit_key, {rooms}
            FROM priorities JOIN {sql.jobs} AS j
            ON j.id IN (SELECT id FROM {sql.jobs} WHERE queue = :queue AND {PLAIN} AND priority = p
                AND {_due(sql)} ORDER BY run_at, id LIMIT {limit})"""


def _candidates_sqlite(sql: Sql, limit: int, per_key: int) -> str:
    pick, due = "j.id, j.priority, j.run_at, j.limit_key", _due(sql)
    first = f"{due} ORDER BY run_at, id LIMIT"
    return f"""{_plain_sqlite(sql, limit)}
            UNION ALL
            SELECT {pick}, o.room, o.family, o.family_room FROM {sql.rows("opened", _OPEN)} AS o JOIN {sql.jobs} AS j
            ON j.id IN (SELECT id FROM {sql.jobs} WHERE queue = :queue AND {LIMITED}
                AND limit_key = o.limit_key AND priority = o.priority AND {first} {per_key})
            UNION ALL
            SELECT {pick}, h.room, h.family, h.family_room FROM {sql.rows("heads", _HEAD)} AS h JOIN {sql.jobs} AS j
            ON j.id = h.id WHERE status <> 'running' AND {due}"""


def _lease(sql: Sql, age_from: str) -> str:
    """The update of the picked rows. `status <> 'running'` is checked again on the row that is locked."""
    aged = "" if age_from == "age_from" else f", age_from = {age_from}"
    if sql.postgresql:
        seconds = "CAST(CAST(:leases AS jsonb) ->> jobs.job_type AS double precision)"
    else:
        seconds = "(:leases ->> ('$.\"' || jobs.job_type || '\"'))"
    return f"""
        UPDATE {sql.jobs} AS jobs SET status = 'running', attempts = attempts + 1, lease_token = lease_token + 1,
            locked_by = :worker, locked_until = {sql.after(seconds)}, started_at = {sql.now}, released_at = NULL,
            updated_at = {sql.now}{aged}
        WHERE id {sql.among("picked")} AND status <> 'running'
        RETURNING {job_columns(sql)}, {sql.epoch("run_at")} AS run_at, expires_at <= {sql.now} AS expired"""
