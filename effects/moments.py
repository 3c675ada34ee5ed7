"""Times as people and rows have them: seconds since 1970 as aware datetimes in UTC, and phases in milliseconds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping


def moment(seconds: float) -> dt.datetime:
    """Give the time so many seconds after 1970.

    Raises:
        OverflowError, ValueError, OSError: no datetime can hold it.
    """
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def moment_or_none(seconds: float | None) -> dt.datetime | None:
    """As `moment`; None stays None."""
    return None if seconds is None else moment(seconds)


def phases_ms(seconds: Mapping[str, float]) -> dict[str, float]:
    """Give an attempt's phases in milliseconds, to one decimal, and their `total`: the field `ms` of its detail."""
    return {name: round(each * 1000, 1) for name, each in (*seconds.items(), ("total", sum(seconds.values())))}
