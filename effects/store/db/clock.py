"""Times that a clock which was ahead for a moment has left behind, once it is right again.

Every row says when it was last written. One that was written later than now has its other times from that clock: they
are moved back by as much as it was ahead. What was written by a right clock is as it was, such as a `run_at` that an
app gave; so is a time that such a row holds from before.
"""

from __future__ import annotations

import msgspec

from effects.kit.logs import own_logger
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store
from effects.store.schema.tables import HOUR, MINUTE

AHEAD_SECONDS = 300.0  # by less it waits itself out
BATCH = 500
NEWEST = 1000  # jobs that are looked at, whatever else tells of such a clock
_log = own_logger("effects.worker")


class TurnedBack(msgspec.Struct, frozen=True):
    """How many rows had times of a clock that was ahead."""

    jobs: int = 0
    limits: int = 0
    workers: int = 0

    def __bool__(self) -> bool:
        return bool(self.jobs or self.limits or self.workers)


def count_ahead(store: Store) -> TurnedBack:
    """Count the rows that `turn_back` would mend.

    Reads all live jobs only where a worker's sample or one of the newest jobs was written by such a clock.
    """
    with store.read() as connection:
        row = store.row(connection, _count)
    assert row is not None
    return TurnedBack(int(row.jobs), int(row.limits), int(row.workers))


def turn_back(store: Store) -> TurnedBack:
    """Mend waiting jobs, limit keys and workers' rows; those that another transaction holds, the next time.

    A retry, a snooze or a delay ends as long after now as it was meant to, a pause too. A worker that has died is
    silent a lease later, as if its last heartbeat were now. Rate limits refill from now.
    """
    ahead = count_ahead(store)
    if not ahead:
        return ahead
    mended = TurnedBack(_all(store, _jobs), _all(store, _limits), _all(store, _workers))
    _log.warning("clock.turned_back", extra=msgspec.structs.asdict(mended))
    return mended


def _all(store: Store, statement: Statement) -> int:
    total = 0
    while True:
        with store.single() as connection:
            mended = store.write(connection, statement)
        total += mended
        if mended < BATCH:
            return total


# -- the statements --------------------------------------------------------------------------------------


def _is_ahead(sql: Sql, *columns: str) -> str:
    limit = sql.after(str(AHEAD_SECONDS))
    return "(" + " OR ".join(f"{column} > {limit}" for column in columns) + ")"


def _ahead_jobs(sql: Sql) -> str:
    return f"status <> 'running' AND {_is_ahead(sql, 'updated_at')}"


def _ahead_limits(sql: Sql) -> str:
    return _is_ahead(sql, "updated_at", "refilled_at", "breaker_changed_at", "paused_from")


def _was_ahead(sql: Sql) -> str:
    """Whether anything tells of such a clock: a worker leaves samples, and an app's jobs are the newest."""
    return f"""
        (EXISTS (SELECT 1 FROM {sql.samples} WHERE seconds IN ({MINUTE}, {HOUR}) AND {_is_ahead(sql, "begins_at")})
         OR EXISTS (SELECT 1 FROM (SELECT updated_at FROM {sql.jobs} ORDER BY id DESC LIMIT {NEWEST}) AS newest
                    WHERE {_is_ahead(sql, "updated_at")}))"""


def _count(sql: Sql) -> str:
    jobs = f"SELECT count(*) FROM {sql.jobs} WHERE {_ahead_jobs(sql)}"
    return f"""
    SELECT CASE WHEN {_was_ahead(sql)} THEN ({jobs}) ELSE 0 END AS jobs,
        (SELECT count(*) FROM {sql.limits} WHERE {_ahead_limits(sql)}) AS limits,
        (SELECT count(*) FROM {sql.workers} WHERE {_is_ahead(sql, "seen_at")}) AS workers"""


def _now_at_most(sql: Sql, column: str) -> str:
    return f"{column} = CASE WHEN {column} > {sql.now} THEN {sql.now} ELSE {column} END"


def _moved(sql: Sql, column: str) -> str:
    """Moved as far as the row's last writing is, where it was set then."""
    return f"{column} = CASE WHEN {column} >= updated_at THEN {column} - (updated_at - {sql.now}) ELSE {column} END"


def _jobs(sql: Sql) -> str:
    return f"""
    UPDATE {sql.jobs} SET {_moved(sql, "run_at")}, {_now_at_most(sql, "age_from")}, updated_at = {sql.now}
    WHERE id IN (SELECT id FROM {sql.jobs} WHERE {_ahead_jobs(sql)} ORDER BY id LIMIT {BATCH} {sql.lock()})"""


def _limits(sql: Sql) -> str:
    times = ", ".join(_now_at_most(sql, name) for name in ("refilled_at", "breaker_changed_at", "paused_from"))
    ahead = f"updated_at > {sql.now}"  # else it was written since, and is right
    until = f"CASE WHEN {ahead} AND paused_until >= updated_at THEN paused_until - (updated_at - {sql.now}) "
    return f"""
    UPDATE {sql.limits} SET paused_until = {until} ELSE paused_until END, {times}, {_now_at_most(sql, "updated_at")}
    WHERE limit_key IN (
        SELECT limit_key FROM {sql.limits} WHERE {_ahead_limits(sql)} ORDER BY limit_key LIMIT {BATCH} {sql.lock()})"""


def _workers(sql: Sql) -> str:
    return f"""
    UPDATE {sql.workers} SET seen_at = {sql.now} WHERE id IN (
        SELECT id FROM {sql.workers} WHERE {_is_ahead(sql, "seen_at")} ORDER BY id LIMIT {BATCH} {sql.lock()})"""
