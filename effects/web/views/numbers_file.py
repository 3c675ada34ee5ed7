"""The numbers over time as a file: a line for each point, which spreadsheets and scripts read."""

from __future__ import annotations

import csv
import datetime as dt
import io

from effects.observation.stats import PointStats, Series
from effects.storage.disposition import attachment
from effects.web.exchange import PageAnswer
from effects.web.views.numbers import PARTS, series_of
from effects.web.visit import Visit

_OUTCOMES = tuple(outcome for outcomes, _, _ in PARTS for outcome in outcomes)
_PERCENTILES = ("wait_p50_seconds", "wait_p95_seconds", "run_p50_seconds", "run_p95_seconds")


def numbers_file(visit: Visit) -> PageAnswer:
    """What the page shows, of the same query. A point without a worker has empty fields, which are not zero."""
    series, span, _ = series_of(visit)
    headers = (("content-disposition", attachment(f"numbers-{span}.csv")), ("cache-control", "private, no-store"))
    return PageAnswer(200, _lines(series).encode(), "text/csv; charset=utf-8", headers)


def _lines(series: Series) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(("from", "seconds", *_OUTCOMES, *_PERCENTILES))
    for number, point in enumerate(series.points):
        writer.writerow((_begins(series, number), series.point_seconds, *_fields(point)))
    return file.getvalue()


def _begins(series: Series, number: int) -> str:
    if isinstance(series.since, str):  # a clock out of range
        return series.since
    return f"{series.since + dt.timedelta(seconds=number * series.point_seconds):%Y-%m-%dT%H:%M:%SZ}"


def _fields(point: PointStats | None) -> list[object]:
    if point is None:
        return [""] * (len(_OUTCOMES) + len(_PERCENTILES))
    percentiles = (point.wait.p50, point.wait.p95, point.run.p50, point.run.p95)
    return [*(point.outcomes[outcome] for outcome in _OUTCOMES), *(_number(each) for each in percentiles)]


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.6g}"
