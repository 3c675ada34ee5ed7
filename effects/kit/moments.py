"""Times as people and rows have them: seconds since 1970 as aware datetimes in UTC, and phases in milliseconds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

FIRST, LAST = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)

FOREVER_SECONDS = 100 * 365 * 86400.0  # a pause that only a person ends


def moment(seconds: float) -> dt.datetime:
    """Give the time so many seconds after 1970; `FIRST` or `LAST` for one that no datetime can hold, never an error.

    No row can break a list: anyone who may INSERT could write infinity, or the year 12000.
    """
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return FIRST if seconds < 0 else LAST


def exact_moment(seconds: float) -> dt.datetime:
    """As `moment`, for a time that something is decided by.

    Raises:
        ValueError: no datetime can hold it.
    """
    value = moment(seconds)
    if value in (FIRST, LAST):
        raise ValueError("a time that no datetime can hold")
    return value


def moment_or_none(seconds: float | None) -> dt.datetime | None:
    """As `moment`; None stays None."""
    return None if seconds is None else moment(seconds)


def phases_ms(seconds: Mapping[str, float]) -> dict[str, float]:
    """Give an attempt's phases in milliseconds, to one decimal, and their `total`: the field `ms` of its detail."""
    return {name: round(each * 1000, 1) for name, each in (*seconds.items(), ("total", sum(seconds.values())))}
