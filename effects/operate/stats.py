"""Numbers over time, for `effects stats`: what attempts came to and how long they waited and ran; what queues held."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from effects.kit import histogram
from effects.kit.moments import moment
from effects.store.db.sql import ANY_TIME, Window
from effects.store.db.store import Store
from effects.store.numbers.rollups import MINUTES_SECONDS, AttemptCount, Rollup, read_attempts, read_steps, read_totals
from effects.store.numbers.samples import QueueSample, read_newest_samples, read_samples
from effects.store.schema.tables import HOUR, MINUTE, ROLLUP_COUNTS

DEFAULT_SECONDS = 3600.0
POINTS_MAX = 60
_MINUTES, _HOURS = (1, 2, 3, 5, 10, 20, 30), (1, 2, 3, 6, 12)
_DAY = 24 * HOUR
_STEPS = (*(minutes * MINUTE for minutes in _MINUTES), *(hours * HOUR for hours in _HOURS))


class Durations(msgspec.Struct, frozen=True):
    """Seconds; percentiles are right within 25 % between 5 ms and 81 minutes. None: no attempt ran."""

    p50: float | None
    p95: float | None
    mean: float | None


class TypeStats(msgspec.Struct, frozen=True):
    """The attempts of one job type in one queue: by outcome, and a point for each stretch of time.

    `dead`: jobs that ended dead. `per_minute`: attempts, while a worker was there. `wait`: from when a job was due
    to the start of its attempt, pauses included. `points`: attempts; None where no worker was.
    """

    job_type: str
    queue: str
    attempts: int
    outcomes: dict[str, int]
    dead: int
    per_minute: float | None
    wait: Durations
    run: Durations
    points: list[int | None]


class QueueStats(msgspec.Struct, frozen=True):
    """The due jobs of one queue, pauses and limits apart, and its unresolved ones.

    `due`, `held` (of the due, those behind a limit key that is paused, full or without a token), `unresolved`,
    `oldest_due_seconds`: at the newest sample. `points`: seconds that the oldest had been due, at most; None where no
    worker was.
    """

    queue: str
    due: int
    held: int
    unresolved: int
    oldest_due_seconds: float
    longest_due_seconds: float
    points: list[float | None]


class PointStats(msgspec.Struct, frozen=True):
    """What attempts came to that ended in one stretch of time; `dead`: jobs that ended dead."""

    outcomes: dict[str, int]
    dead: int
    wait: Durations
    run: Durations


class Series(msgspec.Struct, frozen=True):
    """A point for each `point_seconds`, the first of which begins at `since`; None where no worker was."""

    since: dt.datetime
    until: dt.datetime
    point_seconds: int
    points: list[PointStats | None]


class Stats(msgspec.Struct, frozen=True):
    """`point_seconds`: the stretch of time that each point stands for; the first begins at `since`."""

    since: dt.datetime
    until: dt.datetime
    point_seconds: int
    types: list[TypeStats]
    queues: list[QueueStats]


def read_stats(
    store: Store, window: Window = ANY_TIME, *, job_type: str | None = None, queue: str | None = None
) -> Stats:
    """Numbers of a window of time, by job type and queue; default the last hour. They go back 30 days.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with store.read() as connection:
        now = store.now(connection)
        points = _points(window, now)
        if not points:
            return Stats(moment(now), moment(now), MINUTE, [], [])
        totals = read_totals(store, connection, points, queue=queue)
        attempts = read_attempts(store, connection, points, queue=queue)
        samples = read_samples(store, connection, points, queue=queue)
        newest = read_newest_samples(store, connection, points, queue=queue)
    begins = [count.begins_at for count in attempts] + [sample.begins_at for sample in samples]
    covered = {_point(begins_at, points) for begins_at in begins}
    shown = [total for total in totals if job_type in (None, total.job_type)]
    return Stats(
        moment(points.start), moment(points.stop), points.step, _types(shown, attempts, points, covered),
        _queues(samples, newest, points, covered, queue),
    )  # fmt: skip


def read_series(
    store: Store, window: Window = ANY_TIME, *, job_type: str | None = None, queue: str | None = None
) -> Series:
    """Outcomes and durations over time, of all job types and queues or of one; default the last hour.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with store.read() as connection:
        now = store.now(connection)
        points = _points(window, now)
        if not points:
            return Series(moment(now), moment(now), MINUTE, [])
        rollups = read_steps(store, connection, points, job_type=job_type, queue=queue)
        samples = read_samples(store, connection, points)
    covered = {_point(row.begins_at, points) for rows in (rollups, samples) for row in rows}
    by_point = {_point(rollup.begins_at, points): rollup for rollup in rollups}
    nothing = Rollup(0.0, points.step, "", "")
    shown = [_point_stats(by_point.get(point, nothing)) if point in covered else None for point in range(len(points))]
    return Series(moment(points.start), moment(points.stop), points.step, shown)


def _point_stats(rollup: Rollup) -> PointStats:
    outcomes = {name: getattr(rollup, name) for name in ROLLUP_COUNTS if name != "dead"}
    wait, run = (
        _durations(counts, seconds)
        for counts, seconds in (
            (rollup.wait_counts, rollup.wait_seconds), (rollup.run_counts, rollup.run_seconds),
        )
    )  # fmt: skip
    return PointStats(outcomes, rollup.dead, wait, run)


def _points(window: Window, now: float) -> range:
    """Where each point begins, seconds since 1970; whole hours where only hours are kept. Empty if nothing is meant."""
    first, end = window.times(now)
    until = now if end is None else min(now, end)
    since = until - DEFAULT_SECONDS if first is None else first
    if since >= until:
        return range(0)
    step = _step(until - since, HOUR if since < now - MINUTES_SECONDS + HOUR else MINUTE)
    begin = int(since // step * step)
    return range(begin, begin + max(1, math.ceil((until - begin) / step)) * step, step)


def _step(seconds: float, least: int) -> int:
    """A length of time that a point may stand for, so that there are at most `POINTS_MAX`, or one more."""
    fitting = (step for step in _STEPS if step >= least and step * POINTS_MAX >= seconds)
    return next(fitting, math.ceil(seconds / POINTS_MAX / _DAY) * _DAY)


def _point(begins_at: float, points: range) -> int:
    return min(len(points) - 1, int(begins_at - points.start) // points.step)


def _types(
    totals: Sequence[Rollup], attempts: Iterable[AttemptCount], points: range, covered: set[int]
) -> list[TypeStats]:
    by_point: dict[tuple[str, str], dict[int, int]] = {}
    for count in attempts:
        by_point.setdefault((count.job_type, count.queue), {})[_point(count.begins_at, points)] = count.attempts
    minutes = len(covered) * points.step / MINUTE
    return [
        TypeStats(
            total.job_type,
            total.queue,
            attempts=_attempts(total),
            outcomes={name: getattr(total, name) for name in ROLLUP_COUNTS if name != "dead"},
            dead=total.dead,
            per_minute=_attempts(total) / minutes if minutes else None,
            wait=_durations(total.wait_counts, total.wait_seconds),
            run=_durations(total.run_counts, total.run_seconds),
            points=_counts(by_point[total.job_type, total.queue], points, covered),
        )
        for total in totals
    ]


def _counts(by_point: Mapping[int, int], points: range, covered: set[int]) -> list[int | None]:
    return [by_point.get(point, 0) if point in covered else None for point in range(len(points))]


def _attempts(rollup: Rollup) -> int:
    return sum(getattr(rollup, name) for name in ROLLUP_COUNTS if name != "dead")


def _durations(counts: Sequence[int], seconds: float) -> Durations:
    total = sum(counts)
    mean = seconds / total if total else None
    return Durations(histogram.percentile(counts, 0.5), histogram.percentile(counts, 0.95), mean)


def _queues(
    samples: Iterable[QueueSample], newest: Sequence[QueueSample], points: range, covered: set[int], queue: str | None
) -> list[QueueStats]:
    """A queue that the newest samples do not name had no live and no unresolved job then."""
    last = {sample.queue: sample for sample in newest}
    named: dict[str, list[QueueSample]] = {}
    for sample in samples:
        if sample.queue and queue in (None, sample.queue):
            named.setdefault(sample.queue, []).append(sample)
    return [
        _queue(name, of_queue, last.get(name), _longest(of_queue, points, covered))
        for name, of_queue in sorted(named.items())
    ]


def _queue(
    name: str, samples: Sequence[QueueSample], last: QueueSample | None, points: list[float | None]
) -> QueueStats:
    last = last or QueueSample(begins_at=0.0, seconds=MINUTE, queue=name)
    return QueueStats(
        name,
        due=last.due,
        held=last.held,
        unresolved=last.unresolved,
        oldest_due_seconds=last.oldest_due_seconds,
        longest_due_seconds=max(sample.oldest_due_seconds for sample in samples),
        points=points,
    )


def _longest(samples: Sequence[QueueSample], points: range, covered: set[int]) -> list[float | None]:
    longest: list[float | None] = [0.0 if point in covered else None for point in range(len(points))]
    for sample in samples:
        point = _point(sample.begins_at, points)
        longest[point] = max(longest[point] or 0.0, sample.oldest_due_seconds)
    return longest
