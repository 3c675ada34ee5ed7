"""The list of jobs: filtered, newest first, a page at a time.

A filter that no index serves is looked for in a window of ids, so that a page costs the same however long the history
is; the page says how far it has searched. Each shape of filter has its own statement.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache

import msgspec
from sqlalchemy import Connection

from effects.kit.moments import moment
from effects.kit.text.wording import stored_status
from effects.model.job import ENDED, LIVE_SHOWN
from effects.model.ledger import Ledger
from effects.operate.tables.lookup import chain_ids, ended_columns, live_columns
from effects.store.db.records import JobRecord, job_record
from effects.store.db.sql import ANY_TIME, Sql, Window, and_each, set_filters
from effects.store.db.store import Statement, Store, as_json
from effects.store.queue.table_ledger import all_ledgers

SPAN = 100_000  # ids that one page searches
OVERLAP = 10_000  # ids by which a job may be older than those before it
WORKER_SPAN = 20_000  # the same where each ended job's attempts are looked at
STATUS_MAX = 10_000  # jobs of one status that `count_statuses` counts
NEWEST_MAX = 2 * STATUS_MAX  # finished jobs among which it counts successes
ID_MAX = 2**63 - 2
UNSUCCESSFUL = ("dead", "cancelled")  # which have an index: however many newer jobs succeeded, they are found


class Filters(msgspec.Struct, frozen=True, kw_only=True, tag="jobs", tag_field="list"):
    """What `list_jobs` shows; None is no filter.

    Args:
        status: as people say it: `retrying`, for the column's `failed`.
        text: part of the last error's text, ignoring case.
        word: a whole word of it, ignoring case: letters, digits and underscores.
        limit_keys: any of these limit keys.
        worker: the worker of the attempt under way, or of any attempt of an ended job.
        window: when they were created.
        before: only jobs with a smaller id: the next page of an earlier one.
        as_of: only live jobs that had been created at this time (aware), and ended ones that had ended: the time of a
            preview.
    """

    status: str | None = None
    job_type: str | None = None
    queue: str | None = None
    key: str | None = None
    error_code: str | None = None
    text: str | None = None
    word: str | None = None
    limit_key: str | None = None
    limit_keys: tuple[str, ...] | None = None
    group_key: str | None = None
    worker: str | None = None
    window: Window = ANY_TIME
    before: int | None = None
    as_of: dt.datetime | None = None
    limit: int = 50

    def parameters(self) -> dict[str, object]:
        """The parameters of those filters that are set."""
        names = ("job_type", "queue", "key", "error_code", "text", "word", "limit_key", "group_key", "worker")
        values: dict[str, object] = {name: getattr(self, name) for name in names} | self.window.parameters()
        values["unsuccessful" if self.status in UNSUCCESSFUL else "status"] = stored_status(self.status)
        if self.limit_keys is not None:
            values["limit_keys"] = as_json(self.limit_keys)
        if self.as_of is not None:
            values["as_of"] = self.as_of.timestamp()
        return set_filters(values)


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the jobs that match.

    Args:
        more: further ones match; the next page begins before the last id of this one.
        searched_to: the smallest id that was looked at, where older jobs remain to be searched; else None.
        searched_since: when the job with that id was created.
    """

    jobs: list[JobRecord]
    more: bool = False
    searched_to: int | None = None
    searched_since: dt.datetime | None = None

    @property
    def next_before(self) -> int | None:
        """The `before` of the next page; None at the end."""
        return self.jobs[-1].id if self.more else self.searched_to


def list_jobs(store: Store, ledgers: Mapping[str, Ledger], filters: Filters) -> JobPage:
    """Live and ended jobs that match, newest first, at most `filters.limit`.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    parameters = filters.parameters()
    with store.read() as connection:
        if filters.key is not None:
            parameters["ids"] = as_json(_ids_of_key(store, connection, ledgers, filters.key))
        end = newest_id(store, connection) + 1
        first, last = ids_of_window(store, connection, filters.window, end)
        upper = min(last, filters.before or end)
        is_windowed = parameters and _is_windowed(filters)
        lower = max(first, search_floor(store, connection, filters, upper)) if is_windowed else 0
        build = _list(frozenset(parameters), _tables(filters.status))
        rows = store.all(connection, build, upper=upper, lower=lower, limit=filters.limit + 1, **parameters)
        jobs = [job_record(row) for row in rows[: filters.limit]]
        if len(rows) > filters.limit:
            return JobPage(jobs=jobs, more=True)
        oldest = store.row(connection, _oldest, lower=lower) if lower > first else None
        if oldest is None or oldest.remaining is None:
            return JobPage(jobs=jobs)
        since = None if oldest.since is None else moment(oldest.since)
        return JobPage(jobs=jobs, searched_to=lower, searched_since=since)


def newest_id(store: Store, connection: Connection) -> int:
    """The id of the newest job; 0 without jobs. No greater one than both databases can count on from."""
    return min(int(store.value(connection, _newest) or 0), ID_MAX)


def ids_of_window(store: Store, connection: Connection, window: Window, end: int) -> tuple[int, int]:
    """The ids, first and past the last, that jobs created within the window may have: ids rise with time, but for
    transactions that overlap.
    """
    if window == ANY_TIME:
        return 0, end
    since, until = window.times(store.now(connection))
    first = 0 if since is None else _first_id(store, connection, since, end) - OVERLAP
    last = end if until is None else _first_id(store, connection, until, end) + OVERLAP
    return max(first, 0), min(last, end)


def _first_id(store: Store, connection: Connection, time: float, end: int) -> int:
    """The first id from which on jobs were created at that time or later, found by halving."""
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        rows = store.all(connection, _created_from, id=middle)
        if not rows or rows[0].created_at >= time:
            high = middle
        else:
            low = rows[0].id + 1
    return low


def search_floor(store: Store, connection: Connection, filters: Filters, upper: int) -> int:
    """The least id that a page searches which ends before `upper`: so many ids, or jobs that did not succeed."""
    if filters.status not in UNSUCCESSFUL:
        return max(0, upper - span_of(filters))
    return int(store.value(connection, _nth, status=filters.status, upper=upper, others=span_of(filters) - 1) or 0)


def span_of(filters: Filters) -> int:
    """How many ids one page searches."""
    return SPAN if filters.worker is None else WORKER_SPAN


def count_statuses(store: Store, connection: Connection) -> dict[str, int]:
    """Jobs by status, each at most 10,001. `succeeded` is left out if the newest 20,000 finished jobs do not tell."""
    return {row.status: row.jobs for row in store.all(connection, _statuses) if row.jobs is not None}


def _is_windowed(filters: Filters) -> bool:
    """Live jobs are few, and the ledger knows keys. (Without any filter the first rows are the page.)"""
    return filters.status not in LIVE_SHOWN and filters.key is None


def _tables(status: str | None) -> tuple[str, ...]:
    """Where jobs of this status are."""
    if status in LIVE_SHOWN:
        return ("jobs",)
    return ("job_history",) if status in ENDED else ("jobs", "job_history")


def _ids_of_key(store: Store, connection: Connection, ledgers: Mapping[str, Ledger], key: str) -> list[int]:
    """The jobs of the effects that a ledger has under this key."""
    newest = [row.job_id for ledger in all_ledgers(ledgers) for row in ledger.find(store, connection, key)]
    return [job_id for newest_id in newest for job_id in chain_ids(store, connection, newest_id)]


# -- the statements --------------------------------------------------------------------------------------


@cache
def _list(names: frozenset[str], tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        {" UNION ALL ".join(_newest_of(sql, table, names) for table in tables)}
        ORDER BY id DESC LIMIT :limit"""

    return build


def _newest_of(sql: Sql, table: str, names: frozenset[str]) -> str:
    """The newest of one table, read down its primary key."""
    columns = live_columns(sql) if table == "jobs" else ended_columns(sql)
    conditions = table_conditions(sql, table, names)
    return f"""
    SELECT * FROM (
        SELECT {columns} FROM {getattr(sql, table)} AS listed WHERE id >= :lower AND id < :upper{conditions}
        ORDER BY id DESC LIMIT :limit) AS {table}_page"""


def table_conditions(sql: Sql, table: str, names: frozenset[str]) -> str:
    """` AND …` for each of these filters, on a row of `jobs` or `job_history` that is called `listed`."""
    ended_or_created = "created_at" if table == "jobs" else "finished_at"
    by_filter = {
        "status": "status = :status",
        "unsuccessful": "status <> 'succeeded' AND status = :unsuccessful",  # as the index has it
        "job_type": "job_type = :job_type",
        "queue": "queue = :queue",
        "error_code": "error_code = :error_code",
        "limit_key": "limit_key = :limit_key",
        "group_key": "group_key = :group_key",
        "limit_keys": f"limit_key {sql.any_of('limit_keys')}",
        "text": sql.contains("last_error", "text"),
        "word": sql.contains_word("last_error", "word"),
        "key": "idempotency_key = :key",
        # A plain INSERT's job is in no ledger until it is routed.
        "ids": "true" if table == "jobs" else f"id {sql.any_of('ids', 'int')}",
        "worker": "locked_by = :worker" if table == "jobs" else _tried_by(sql),
        "as_of": f"{ended_or_created} <= {sql.time(sql.number('as_of'))}",
        **sql.bounds("created_at"),
    }
    return and_each(by_filter, names)


def _tried_by(sql: Sql) -> str:
    logged = sql.exists(f"FROM {sql.attempt_log} AS a WHERE a.job_id = listed.id AND a.worker = :worker")
    return f"(worker = :worker OR {logged})"


def _newest(sql: Sql) -> str:
    return f"""
    SELECT max(id) FROM (
        SELECT max(id) AS id FROM {sql.jobs} UNION ALL SELECT max(id) AS id FROM {sql.job_history}) AS newest"""


def _created_from(sql: Sql) -> str:
    """The first job from this id on."""
    first = f"SELECT id, {sql.epoch('created_at')} AS created_at FROM {{}} WHERE id >= :id ORDER BY id LIMIT 1"
    return f"""
    SELECT id, created_at FROM (
        SELECT * FROM ({first.format(sql.jobs)}) AS live
        UNION ALL SELECT * FROM ({first.format(sql.job_history)}) AS ended) AS first_of_each
    ORDER BY id LIMIT 1"""


def _oldest(sql: Sql) -> str:
    """Whether a job is older than the window, and when the first in it was created."""
    return f"""
    SELECT COALESCE((SELECT id FROM {sql.job_history} WHERE id < :lower ORDER BY id LIMIT 1),
            (SELECT id FROM {sql.jobs} WHERE id < :lower ORDER BY id LIMIT 1)) AS remaining,
        COALESCE((SELECT {sql.epoch("created_at")} FROM {sql.job_history} WHERE id >= :lower ORDER BY id LIMIT 1),
            (SELECT {sql.epoch("created_at")} FROM {sql.jobs} WHERE id >= :lower ORDER BY id LIMIT 1)) AS since"""


def _nth(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.job_history} WHERE status <> 'succeeded' AND status = :status AND id < :upper
    ORDER BY id DESC LIMIT 1 OFFSET :others"""


def _statuses(sql: Sql) -> str:
    """Each by an index. Of successes, those among the newest finished jobs; NULL where more may be behind them."""

    def counted(shown: str) -> str:
        table = sql.jobs if shown in LIVE_SHOWN else sql.job_history
        by_index = "status <> 'succeeded' AND " if shown in UNSUCCESSFUL else ""
        rows = f"SELECT 1 FROM {table} WHERE {by_index}status = '{stored_status(shown)}' LIMIT {STATUS_MAX + 1}"
        return f"SELECT '{shown}' AS status, count(*) AS jobs FROM ({rows}) AS {shown}_jobs"

    newest = f"SELECT status FROM {sql.job_history} ORDER BY id DESC LIMIT {NEWEST_MAX}"
    jobs = "COALESCE(sum(CASE WHEN status = 'succeeded' THEN 1 ELSE 0 END), 0)"
    is_exact = f"count(*) < {NEWEST_MAX} OR {jobs} > {STATUS_MAX}"
    succeeded = f"SELECT 'succeeded' AS status, CASE WHEN {is_exact} THEN {jobs} END AS jobs FROM ({newest}) AS newest"
    statuses = [status for status in (*LIVE_SHOWN, *ENDED) if status != "succeeded"]
    return " UNION ALL ".join([*map(counted, statuses), succeeded])
