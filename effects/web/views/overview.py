"""The first page: one paragraph that says how things stand, and the last hour in numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError

from effects.app import Effects
from effects.errors import EffectsError
from effects.logs import error_places
from effects.store.operator.queue_status import Status, read_status
from effects.web.exchange import PageAnswer
from effects.web.pages import Pages, StandingLine
from effects.web.views.numbers import last_day
from effects.web.views.shared_readings import RANGES, STATS_SECONDS, causes_of_dead, span_of, stats_of
from effects.web.visit import LIVE_SECONDS, Visit

CAUSES_SHOWN = 8
_log = logging.getLogger("effects.web")


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
    """What packages have to say. A row that one cannot read hides nothing that the others say."""
    return [line for pages in visit.site.packages for line in _standing_of(visit, pages)]


def _standing_of(visit: Visit, pages: Pages) -> Sequence[StandingLine]:
    try:
        return pages.standing(visit)
    except (EffectsError, DBAPIError):  # it concerns the whole page
        raise
    except Exception as error:
        _log.error("standing of %s failed: %s at %s", pages.name, type(error).__name__, error_places(error))
        return (StandingLine("failing", f"{pages.label}: cannot be read; the log says where", visit.url("health")),)


def _live(status: Status) -> dict[str, int]:
    """Live jobs by status, over all types."""
    live = {"queued": 0, "running": 0, "failed": 0}
    for count in status.counts:
        if count.status in live:
            live[count.status] += count.jobs
    return live
