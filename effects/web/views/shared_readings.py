"""What several pages read of the database, once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from effects.observation.stats import Stats, read_stats
from effects.store.db.sql import Window
from effects.store.operator.dead_letters import Cause, count_causes
from effects.web.views.paging import choice_of
from effects.web.visit import LIVE_SECONDS, Visit

STATS_SECONDS = 15.0
RANGES = {"1h": 3_600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0}


def span_of(visit: Visit, default: str) -> str:
    """The range of time that the query asks for."""
    return choice_of(visit.query, "range", RANGES) or default


def stats_of(visit: Visit, span: str) -> Stats:
    """Numbers of a range of time, by job type and queue."""
    return visit.read(("stats", span), STATS_SECONDS, lambda: read_stats(visit.app.store, Window(newer=RANGES[span])))


def causes_of_dead(visit: Visit) -> Sequence[Cause]:
    """What needs a person, by job type and error code."""

    def read() -> Sequence[Cause]:
        with visit.app.store.read() as connection:
            return count_causes(visit.app.store, connection)

    return visit.read("causes", LIVE_SECONDS, read)
