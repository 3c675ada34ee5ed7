"""The first page: one paragraph that says how things stand, and the last hour in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from effects.observation.stats import Stats, read_stats
from effects.store.db.sql import Window
from effects.store.operator.dead_letters import Cause, count_causes
from effects.store.operator.queue_status import Status, read_status
from effects.web.exchange import PageAnswer
from effects.web.pages import StandingLine
from effects.web.visit import LIVE_SECONDS, Visit

STATS_SECONDS = 15.0
CAUSES_SHOWN = 8
RANGES = {"1h": 3_600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0}


def overview(visit: Visit) -> PageAnswer:
    span = visit.query.get("range", "1h")
    span = span if span in RANGES else "1h"
    status = visit.site.readings.get("status", LIVE_SECONDS, lambda: _status(visit))
    causes = visit.site.readings.get("causes", LIVE_SECONDS, lambda: _causes(visit))
    stats = visit.site.readings.get(("stats", span), STATS_SECONDS, lambda: _stats(visit, span))
    return visit.page(
        "overview.html", status=status, causes=causes[:CAUSES_SHOWN], more_causes=len(causes) - CAUSES_SHOWN,
        stats=stats, span=span, ranges=list(RANGES), alive=[worker for worker in status.workers if worker.alive],
        live=_live(status), standing=visit.read("standing", STATS_SECONDS, lambda: _standing(visit)),
    )  # fmt: skip


def _status(visit: Visit) -> Status:
    return read_status(visit.app.store, visit.app.settings.lease_seconds)


def _causes(visit: Visit) -> Sequence[Cause]:
    with visit.app.store.read() as connection:
        return count_causes(visit.app.store, connection)


def _stats(visit: Visit, span: str) -> Stats:
    return read_stats(visit.app.store, Window(newer=RANGES[span]))


def _standing(visit: Visit) -> list[StandingLine]:
    """What packages have to say."""
    return [line for pages in visit.site.packages for line in pages.standing(visit)]


def _live(status: Status) -> dict[str, int]:
    """Live jobs by status, over all types."""
    live = {"queued": 0, "running": 0, "failed": 0}
    for count in status.counts:
        if count.status in live:
            live[count.status] += count.jobs
    return live
