"""Rollups: what workers did in each stretch of time, by job type and queue; and the folding of what is older.

A worker writes its own minutes. They are folded once, into the rows of every length at the same time: so what was done
is in the rows of any one length, and in the minutes that are not folded yet. A fold deletes workers' rows and adds
their sums in one transaction; samples of an hour become one. Folds follow one another: each holds a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Connection

from effects.kit import histogram
from effects.kit.crashpoints import point
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.db.walk import OldRows, Page, delete_page, old_rows
from effects.store.schema.tables import (
    FOLDED_NUMBERS,
    HOUR,
    LENGTHS,
    MINUTE,
    ROLLUP_COUNTS,
    SAMPLE_COUNTS,
    TEN_MINUTES,
)


class Rollup(msgspec.Struct):
    """What attempts of one job type and queue came to that ended in one stretch of time.

    `begins_at`: seconds since 1970. `done` to `snoozed` count attempts by outcome (a pause is a snooze); of their jobs,
    `dead` ended dead. The histograms (`effects.kit.histogram`) and sums are about attempts that ran: how long
    they had been due when they started, and how long they took.
    """

    begins_at: float
    seconds: int
    job_type: str
    queue: str
    done: int = 0
    failed: int = 0
    refused: int = 0
    unknown: int = 0
    timed_out: int = 0
    lost: int = 0
    cancelled: int = 0
    snoozed: int = 0
    dead: int = 0
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    wait_counts: list[int] = msgspec.field(default_factory=histogram.empty)
    run_counts: list[int] = msgspec.field(default_factory=histogram.empty)

    def add(self, rollup: Rollup) -> None:
        for name in (*ROLLUP_COUNTS, "wait_seconds", "run_seconds"):
            setattr(self, name, getattr(self, name) + getattr(rollup, name))
        histogram.add(self.wait_counts, rollup.wait_counts)
        histogram.add(self.run_counts, rollup.run_counts)


class AttemptCount(msgspec.Struct, frozen=True):
    """The attempts of one job type and queue that ended in one stretch of time."""

    begins_at: float
    job_type: str
    queue: str
    attempts: int


class WorkerRollup(Rollup, kw_only=True):
    """As it is written: by one worker, or folded (an empty text)."""

    worker: str


ROLLUP_KEY = "seconds, worker, begins_at, job_type, queue"
_SUMS = (*ROLLUP_COUNTS, "wait_seconds", "run_seconds", "wait_counts", "run_counts")
_SEPARATOR = "\x1e"  # of texts that are joined (ASCII's record separator): no JSON has it
_histograms = msgspec.json.Decoder(list[list[int]])


# -- writing ---------------------------------------------------------------------------------------------


def write_rollups(store: Store, rollups: Sequence[WorkerRollup], connection: Connection | None = None) -> None:
    """Write these rows as they are: repeating it changes nothing. No other worker writes the same ones."""
    rows = as_json([_without_last_zeros(rollup) for rollup in rollups])
    if connection is not None:
        store.write(connection, _write_rollups, rows=rows)
        return
    with store.single() as own:
        store.write(own, _write_rollups, rows=rows)


def _without_last_zeros(rollup: WorkerRollup) -> WorkerRollup:
    """Most of a histogram's buckets are for attempts that take longer than any did."""
    wait_counts, run_counts = histogram.trimmed(rollup.wait_counts), histogram.trimmed(rollup.run_counts)
    return msgspec.structs.replace(rollup, wait_counts=wait_counts, run_counts=run_counts)


def _write_rollups(sql: Sql) -> str:
    totals = ", ".join(_SUMS)
    return f"""
    INSERT INTO {sql.rollups} ({ROLLUP_KEY}, {totals})
    SELECT seconds, worker, {sql.time("begins_at")}, job_type, queue, {totals}
    FROM {sql.rows("rows", WorkerRollup)} AS r WHERE true
    ON CONFLICT ({ROLLUP_KEY}) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _SUMS)}"""


# -- reading ---------------------------------------------------------------------------------------------


def read_totals(store: Store, connection: Connection, steps: range, *, queue: str | None = None) -> list[Rollup]:
    """What was done within the steps (seconds since 1970, see `longest`), added up by job type and queue.

    The database adds: a row of a day would take longer to be read here than all of them there.
    """
    rows = store.all(connection, _totals, **_bounds(steps), queue=queue)
    return [rollup_of(row) for row in rows]


def read_attempts(
    store: Store, connection: Connection, steps: range, *, queue: str | None = None
) -> list[AttemptCount]:
    """The attempts that ended in each step, by job type and queue, oldest first."""
    rows = store.all(connection, _attempts, **_bounds(steps), step=steps.step, queue=queue)
    return [AttemptCount(float(row.begins), row.job_type, row.queue, int(row.attempts)) for row in rows]


def read_steps(
    store: Store, connection: Connection, steps: range, *, job_type: str | None = None, queue: str | None = None
) -> list[Rollup]:
    """What was done in each step, added up over the job types and queues that are meant; oldest first, none empty."""
    parameters = {**_bounds(steps), "step": steps.step, "job_type": job_type, "queue": queue}
    return [rollup_of(row) for row in store.all(connection, _steps, **parameters)]


def _bounds(steps: range) -> dict[str, float]:
    """Of the fewest rows that tell each step exactly: those of the greatest length that divides it."""
    length = max(length for length in LENGTHS if steps.step % length == 0)
    return {"since": steps.start, "until": steps.stop, "length": length}


def rollup_of(row: Any) -> Rollup:
    """A rollup of a row with all columns. An unreadable histogram counts as an empty one."""
    rollup = Rollup(float(row.begins), int(row.seconds), row.job_type, row.queue)
    for name in ROLLUP_COUNTS:
        setattr(rollup, name, int(getattr(row, name)))
    rollup.wait_seconds, rollup.run_seconds = _finite_seconds(row.wait_seconds), _finite_seconds(row.run_seconds)
    histogram.add(rollup.wait_counts, _counts(row.wait_text))
    histogram.add(rollup.run_counts, _counts(row.run_text))
    return rollup


def _finite_seconds(value: object) -> float:
    """A stored number of seconds; 0 for what cannot be added up."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _counts(texts: str) -> list[int]:
    """The sum of one histogram, or of several that the database has joined: decoded at once if all can be read."""
    try:
        histograms = _histograms.decode(f"[{texts.replace(_SEPARATOR, ',')}]")
    except (msgspec.MsgspecError, UnicodeError):
        histograms = [_readable(text) for text in texts.split(_SEPARATOR)]
    return histogram.total(counts for counts in histograms if len(counts) <= histogram.BUCKETS)


def _readable(text: str) -> list[int]:
    try:
        return msgspec.json.decode(text, type=list[int])
    except (msgspec.MsgspecError, UnicodeError):
        return []


def rollup_columns(sql: Sql) -> str:
    """What `rollup_of` reads."""
    histograms = f"{sql.json_text('wait_counts')} AS wait_text, {sql.json_text('run_counts')} AS run_text"
    totals = ", ".join((*ROLLUP_COUNTS, "wait_seconds", "run_seconds"))
    return f"{sql.epoch('begins_at')} AS begins, seconds, job_type, queue, {totals}, {histograms}"


def within_times(sql: Sql) -> str:
    """Condition: a row begins from `since` on and before `until`."""
    since, until = (sql.time(sql.number(name)) for name in ("since", "until"))
    return f"begins_at >= {since} AND begins_at < {until}"


def step_of(sql: Sql) -> str:
    """The beginning of the stretch of `step` seconds that a row begins in, in seconds since 1970."""
    step = sql.number("step")
    steps = f"{sql.epoch('begins_at')} / {step}"
    return f"{sql.floor(steps)} * {step}"


def _totals(sql: Sql) -> str:
    """By few groups: of many, PostgreSQL would sort all histograms on its disk."""
    seconds_read = f"{sql.number('until')} - {sql.number('since')}"
    return f"""
    SELECT {sql.number("since")} AS begins, {seconds_read} AS seconds, job_type, queue,
        {_added_up(sql)}
    FROM {sql.rollups} WHERE {_done_within(sql)} AND {sql.matches("queue", "queue")}
    GROUP BY job_type, queue ORDER BY job_type, queue"""


def _added_up(sql: Sql) -> str:
    """What `rollup_of` reads of rows that are added up; the histograms are joined."""
    counts = [f"sum({name}) AS {name}" for name in ROLLUP_COUNTS]
    seconds = [f"sum({sql.finite(name)}) AS {name}" for name in ("wait_seconds", "run_seconds")]
    histograms = [f"{sql.joined(f'{name}_counts', ord(_SEPARATOR))} AS {name}_text" for name in ("wait", "run")]
    return ", ".join([*counts, *seconds, *histograms])


def _steps(sql: Sql) -> str:
    return f"""
    SELECT {step_of(sql)} AS begins, {sql.number("step")} AS seconds, '' AS job_type, '' AS queue, {_added_up(sql)}
    FROM {sql.rollups}
    WHERE {_done_within(sql)} AND {sql.matches("queue", "queue")} AND {sql.matches("job_type", "job_type")}
    GROUP BY begins ORDER BY begins"""


def _done_within(sql: Sql) -> str:
    """Condition: all that was done from `since` on and before `until`, each attempt once."""
    within = within_times(sql)
    return f"(seconds = :length AND worker = '' AND {within} OR seconds = {MINUTE} AND worker > '' AND {within})"


def _attempts(sql: Sql) -> str:
    attempts = " + ".join(name for name in ROLLUP_COUNTS if name != "dead")
    return f"""
    SELECT {step_of(sql)} AS begins, job_type, queue, sum({attempts}) AS attempts
    FROM {sql.rollups} WHERE {_done_within(sql)} AND {sql.matches("queue", "queue")}
    GROUP BY begins, job_type, queue ORDER BY begins, job_type, queue"""


WORKERS_SECONDS = 900.0  # then the rows of a minute's workers become one of each length
MINUTES_SECONDS = 90_000.0  # a day and an hour; then the rows of an hour and more are kept alone
SPAN_SECONDS = TEN_MINUTES  # of minutes whose workers are folded at once

_Key: TypeAlias = tuple[float, str, str]


def fold_workers(store: Store, *, cursor: float | None, dry_run: bool) -> Page:
    """Fold ten minutes of workers' rows into one of each length for each type and queue."""
    with store.read() as connection:
        first = store.value(connection, _first, age=WORKERS_SECONDS, cursor=cursor or 0.0)
    if first is None or dry_run:
        return Page(0)
    since = float(first) // SPAN_SECONDS * SPAN_SECONDS
    return Page(_fold(store, since), since + SPAN_SECONDS)


def _fold(store: Store, since: float) -> int:
    """How many rows were folded."""
    until = since + SPAN_SECONDS
    with store.begin() as connection:
        _hold(store, connection)
        rows = store.all(connection, _take, age=WORKERS_SECONDS, since=since, until=until)
        written: list[WorkerRollup] = []
        sums: Sequence[Rollup] = [rollup_of(row) for row in rows]
        for length in LENGTHS:
            sums = _summed(sums, length)
            bounds = {"since": since // length * length, "until": until, "length": length}
            written += _with_kept(sums, [rollup_of(row) for row in store.all(connection, _kept, **bounds)])
        if written:
            write_rollups(store, written, connection)
        point("prune.before_commit")
    return len(rows)


def _summed(rollups: Iterable[Rollup], length: int) -> list[WorkerRollup]:
    """One for each stretch of that many seconds, type and queue."""
    sums: dict[_Key, WorkerRollup] = {}
    for rollup in rollups:
        begins_at = rollup.begins_at // length * length
        key = (begins_at, rollup.job_type, rollup.queue)
        if key not in sums:
            sums[key] = WorkerRollup(begins_at, length, rollup.job_type, rollup.queue, worker="")
        sums[key].add(rollup)
    return list(sums.values())


def _with_kept(sums: Iterable[WorkerRollup], kept: Iterable[Rollup]) -> list[WorkerRollup]:
    """The rows that these sums become, which are left as they are."""
    kept_by_key = {(rollup.begins_at, rollup.job_type, rollup.queue): rollup for rollup in kept}
    rows: list[WorkerRollup] = []
    for rollup in sums:
        key = (rollup.begins_at, rollup.job_type, rollup.queue)
        rows += _summed([rollup, kept_by_key[key]] if key in kept_by_key else [rollup], rollup.seconds)
    return rows


def _hold(store: Store, connection: Connection) -> None:
    """Two folds at once would each miss what the other writes."""
    store.write(connection, _hold_row, name=FOLDED_NUMBERS)


def _hold_row(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.pruned} (name, job_id, updated_at) VALUES (:name, 0, {sql.now})
    ON CONFLICT (name) DO UPDATE SET updated_at = excluded.updated_at"""


def _old(sql: Sql) -> str:
    ago = sql.after(f"-{sql.number('age')}")
    return f"begins_at < {ago}"


def _unfolded(sql: Sql) -> str:
    return f"seconds = {MINUTE} AND worker > '' AND {_old(sql)}"


def _first(sql: Sql) -> str:
    return f"""
    SELECT {sql.epoch("min(begins_at)")} FROM {sql.rollups}
    WHERE {_unfolded(sql)} AND begins_at >= {sql.time(sql.number("cursor"))}"""


def _take(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.rollups} WHERE {_unfolded(sql)} AND {within_times(sql)} RETURNING {rollup_columns(sql)}"""


def _kept(sql: Sql) -> str:
    return f"""
    SELECT {rollup_columns(sql)} FROM {sql.rollups}
    WHERE seconds = :length AND worker = '' AND {within_times(sql)}"""


# -- samples ---------------------------------------------------------------------------------------------


def fold_samples(store: Store, *, cursor: object, dry_run: bool) -> Page:
    """Fold an hour of samples into one for each queue: of what waited, the most."""
    with store.read() as connection:
        first: Any = store.value(connection, _first_sample, age=MINUTES_SECONDS)
    if first is None or dry_run:
        return Page(0)
    begins = float(first) // HOUR * HOUR
    parameters = {"age": MINUTES_SECONDS, "since": begins, "until": begins + HOUR}
    with store.begin() as connection:
        _hold(store, connection)
        written = store.write(connection, _fold_hour, **parameters)
        taken = store.write(connection, _take_samples, **parameters)
        point("prune.before_commit")
    return Page(max(0, taken - written), begins)


def _first_sample(sql: Sql) -> str:
    return f"""
    SELECT {sql.epoch("min(begins_at)")} FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)}"""


def _fold_hour(sql: Sql) -> str:
    most = ("oldest_due_seconds", *SAMPLE_COUNTS)
    kept = ", ".join(f"{name} = {sql.greatest(f'excluded.{name}', f'{sql.samples}.{name}')}" for name in most)
    return f"""
    INSERT INTO {sql.samples} (seconds, begins_at, queue, {", ".join(most)}, minutes)
    SELECT {HOUR}, {sql.time(sql.number("since"))}, queue, {", ".join(f"max({name})" for name in most)}, sum(minutes)
    FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)} AND {within_times(sql)} GROUP BY queue
    ON CONFLICT (seconds, begins_at, queue) DO UPDATE SET {kept}, minutes = {sql.samples}.minutes + excluded.minutes"""


def _take_samples(sql: Sql) -> str:
    return f"DELETE FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)} AND {within_times(sql)}"


# -- retention -------------------------------------------------------------------------------------------


def old_minutes(store: Store, *, cursor: object, dry_run: bool) -> Page:
    """Delete a page of folded rows that the rows of hours have as well, and that are too short for their age."""
    return delete_page(store, OLD_MINUTES, MINUTES_SECONDS, cursor, dry_run=dry_run)


def old_rollups(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """Delete a page of rollups older than that."""
    return delete_page(store, OLD_ROLLUPS, seconds, cursor, dry_run=dry_run)


def old_samples(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """Delete a page of samples older than that."""
    return delete_page(store, OLD_SAMPLES, seconds, cursor, dry_run=dry_run)


def _select_old_minutes(sql: Sql) -> str:
    return f"""
    SELECT {ROLLUP_KEY} FROM {sql.rollups} WHERE seconds IN ({MINUTE}, {TEN_MINUTES}) AND worker = '' AND {_old(sql)}"""


def _old_numbers(table: str, key: str) -> OldRows:
    def old(sql: Sql) -> str:
        return f"SELECT {key} FROM {getattr(sql, table)} WHERE {sql.seconds('begins_at')} >= {sql.number('age')}"

    return old_rows(table, key, old)


OLD_MINUTES = old_rows("rollups", ROLLUP_KEY, _select_old_minutes)
OLD_ROLLUPS = _old_numbers("rollups", ROLLUP_KEY)
OLD_SAMPLES = _old_numbers("samples", "seconds, begins_at, queue")
