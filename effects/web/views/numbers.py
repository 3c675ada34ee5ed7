"""The page of numbers over time, as a file too; and the readings that it shares with other pages."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from effects.kit.files.names import attachment
from effects.operate.stats import PointStats, Series, Stats, read_series, read_stats
from effects.operate.tables.dead_letters import Cause, count_causes
from effects.store.db.sql import Window
from effects.web.exchange import PageAnswer
from effects.web.views.paging import choice_of, filters_of
from effects.web.visit import LIVE_SECONDS, Visit

STATS_SECONDS = 15.0
RANGES = {"1h": 3_600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0}


def span_of(visit: Visit, default: str) -> str:
    """The range of time that the query asks for."""
    return choice_of(visit.query, "newer", RANGES) or default


def stats_of(visit: Visit, span: str) -> Stats:
    """Numbers of a range of time, by job type and queue."""
    return visit.read(("stats", span), STATS_SECONDS, lambda: read_stats(visit.app.store, Window(newer=RANGES[span])))


def causes_of_dead(visit: Visit) -> Sequence[Cause]:
    """What needs a person, by job type and error code."""

    def read() -> Sequence[Cause]:
        with visit.app.store.read() as connection:
            return count_causes(visit.app.store, connection)

    return visit.read("causes", LIVE_SECONDS, read)


Pair: TypeAlias = tuple[str | None, str | None]  # a job type and a queue; None is any

# What an outcome is drawn as, from the bottom up: outcomes → the class and the word of their part.
PARTS = (
    (("done",), "good", "done"),
    (("snoozed", "cancelled"), "calm", "put off or cancelled"),
    (("failed", "timed_out"), "warn", "failed, tried again"),
    (("refused",), "bad", "refused"),
    (("unknown", "lost"), "odd", "unknown or lost"),
)


def numbers(visit: Visit) -> PageAnswer:
    series, span, pair = series_of(visit)
    return visit.page(
        "numbers.html", series=series, stats=stats_of(visit, span), span=span, ranges=list(RANGES), pair=pair,
        parts=PARTS, stacked=[None if point is None else _parts(point) for point in series.points],
        times=_times(series), drawn=_lines(series), most=_most(series),
    )  # fmt: skip


class Trend(NamedTuple):
    """The last hour of all types: what was done a minute, and which share of the attempts was not; by point, and over
    all of it. None where no worker was.
    """

    done: Sequence[float | None]
    failed: Sequence[float | None]
    per_minute: float | None
    share: float | None


def trend_of(visit: Visit) -> Trend:
    series = _read(visit, "1h", None)
    points = series.points
    measured = [(point.outcomes["done"], sum(point.outcomes.values())) for point in points if point is not None]
    done, attempts = (sum(each) for each in zip(*measured, strict=True)) if measured else (0, 0)
    minutes = len(measured) * series.point_seconds / 60
    return Trend(
        [None if point is None else point.outcomes["done"] for point in points],
        [None if point is None else sum(point.outcomes.values()) - point.outcomes["done"] for point in points],
        done / minutes if measured else None, (attempts - done) / attempts if attempts else None,
    )  # fmt: skip


def series_of(visit: Visit) -> tuple[Series, str, Pair | None]:
    """The points of the query's span and type, the span, and the job type and queue, if one is chosen."""
    span, chosen = span_of(visit, "24h"), filters_of(visit.query, ("type", "queue"))
    pair = (chosen["type"], chosen["queue"]) if any(chosen.values()) else None
    return _read(visit, span, pair), span, pair


def _read(visit: Visit, span: str, pair: Pair | None) -> Series:
    """Shared, unless there are no numbers about the pair: then a person may have typed it."""
    store, (job_type, queue) = visit.app.store, pair or (None, None)

    def read() -> Series:
        return read_series(store, Window(newer=RANGES[span]), job_type=job_type, queue=queue)

    if pair is not None and pair not in {(each.job_type, each.queue) for each in stats_of(visit, span).types}:
        return read()
    return visit.read(("series", span, pair), STATS_SECONDS, read)


def _parts(point: PointStats) -> list[int]:
    return [sum(point.outcomes[outcome] for outcome in outcomes) for outcomes, _, _ in PARTS]


def _lines(series: Series) -> dict[str, dict[str, list[float | None]]]:
    """Of each chart the lines."""
    return {
        "wait": {
            "p95": [None if point is None else point.wait.p95 for point in series.points],
            "p50": [None if point is None else point.wait.p50 for point in series.points],
        },
        "run": {
            "p95": [None if point is None else point.run.p95 for point in series.points],
            "p50": [None if point is None else point.run.p50 for point in series.points],
        },
    }


def _most(series: Series) -> dict[str, float | None]:
    """What the top of each chart stands for."""
    points = [point for point in series.points if point is not None]
    return {
        "attempts": max((sum(point.outcomes.values()) for point in points), default=None),
        "wait": max((point.wait.p95 for point in points if point.wait.p95 is not None), default=None),
        "run": max((point.run.p95 for point in points if point.run.p95 is not None), default=None),
    }


def _times(series: Series) -> list[float]:
    """Seconds from the beginning to that of each point."""
    return [float(number * series.point_seconds) for number in range(len(series.points))]


_OUTCOMES = tuple(outcome for outcomes, _, _ in PARTS for outcome in outcomes)
_PERCENTILES = ("wait_p50_seconds", "wait_p95_seconds", "run_p50_seconds", "run_p95_seconds")


def numbers_file(visit: Visit) -> PageAnswer:
    """What the page shows, of the same query. A point without a worker has empty fields, which are not zero."""
    series, span, _ = series_of(visit)
    headers = (("content-disposition", attachment(f"numbers-{span}.csv")), ("cache-control", "private, no-store"))
    return PageAnswer(200, _csv_lines(series).encode(), "text/csv; charset=utf-8", headers)


def _csv_lines(series: Series) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(("from", "seconds", *_OUTCOMES, *_PERCENTILES))
    for number, point in enumerate(series.points):
        writer.writerow((_begins(series, number), series.point_seconds, *_fields(point)))
    return file.getvalue()


def _begins(series: Series, number: int) -> str:
    return f"{series.since + dt.timedelta(seconds=number * series.point_seconds):%Y-%m-%dT%H:%M:%SZ}"


def _fields(point: PointStats | None) -> list[object]:
    if point is None:
        return [""] * (len(_OUTCOMES) + len(_PERCENTILES))
    percentiles = (point.wait.p50, point.wait.p95, point.run.p50, point.run.p95)
    return [*(point.outcomes[outcome] for outcome in _OUTCOMES), *(_number(each) for each in percentiles)]


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.6g}"
