"""Numbers over time: outcomes, how long jobs waited, how long attempts ran; of all job types, or of one."""

from __future__ import annotations

from typing import Any, TypeAlias

from effects.observation.stats import PointStats, Series, read_series
from effects.store.db.sql import Window
from effects.web.exchange import PageAnswer
from effects.web.views.paging import filters_of
from effects.web.views.shared_readings import RANGES, STATS_SECONDS, span_of, stats_of
from effects.web.visit import Visit

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


def last_day(visit: Visit) -> dict[str, Any]:
    """The last 24 hours of all types, as the overview draws them: attempts of each point by part."""
    series = _read(visit, "24h", None)
    stacked = [None if point is None else _parts(point) for point in series.points]
    totals = [sum(sizes) for sizes in zip(*filter(None, stacked), strict=True)] or [0] * len(PARTS)
    return {"series": series, "stacked": stacked, "totals": totals, "parts": PARTS, "times": _times(series)}


def series_of(visit: Visit) -> tuple[Series, str, Pair | None]:
    """The points of the query's span and type, the span, and the job type and queue, if one is chosen."""
    span, chosen = span_of(visit, "24h"), filters_of(visit.query, ("job_type", "queue"))
    pair = (chosen["job_type"], chosen["queue"]) if any(chosen.values()) else None
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
