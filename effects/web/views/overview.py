"""The first page: one paragraph that says how things stand, and the last hour in numbers."""

from __future__ import annotations

from effects.app import Effects
from effects.store.operator.queue_status import Status, read_status
from effects.web.exchange import PageAnswer
from effects.web.pages import StandingLine
from effects.web.views.numbers import last_day
from effects.web.views.shared_readings import RANGES, STATS_SECONDS, causes_of_dead, span_of, stats_of
from effects.web.visit import LIVE_SECONDS, Visit

CAUSES_SHOWN = 8


def overview(visit: Visit) -> PageAnswer:
    span, causes = span_of(visit, "1h"), causes_of_dead(visit)
    status = visit.count("status", LIVE_SECONDS, _status)
    return visit.page(
        "overview.html", status=status, causes=causes[:CAUSES_SHOWN], more_causes=len(causes) - CAUSES_SHOWN,
        stats=stats_of(visit, span), span=span, ranges=list(RANGES),
        alive=[worker for worker in status.workers if worker.alive],
        live=_live(status), day=last_day(visit),
        standing=visit.read("standing", STATS_SECONDS, lambda: _standing(visit)),
    )  # fmt: skip


def _status(app: Effects) -> Status:
    return read_status(app.store, app.settings.lease_seconds)


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
