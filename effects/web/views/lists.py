"""Queues, workers, schedules and limit keys: each a list with its actions."""

from __future__ import annotations

from collections.abc import Sequence

from effects.app import Effects
from effects.store.limits.queue_pauses import QueueState, list_queues
from effects.store.limits.status import Limit, list_limits
from effects.store.operator.queue_status import WorkerState, read_workers
from effects.store.schedules.states import read_states
from effects.web.exchange import PageAnswer
from effects.web.views.notices import notice
from effects.web.views.paging import choice_of
from effects.web.views.shared_readings import stats_of
from effects.web.visit import LIVE_SECONDS, Visit

LIMITS_MAX = 500


def queues(visit: Visit) -> PageAnswer:
    served: dict[str, int] = {}
    for worker in _workers(visit):
        for queue in worker.queues.split(",") if worker.alive else []:
            name = queue.partition("=")[0].strip()
            served[name] = served.get(name, 0) + 1
    return visit.page(
        "queues.html", queues=_queues(visit), served=served, notice=notice(visit),
        measured={queue.queue: queue for queue in stats_of(visit, "1h").queues},
    )  # fmt: skip


def workers(visit: Visit) -> PageAnswer:
    return visit.page("workers.html", workers=_workers(visit), notice=notice(visit))


def schedules(visit: Visit) -> PageAnswer:
    return visit.page("schedules.html", schedules=read_states(visit.app.store), notice=notice(visit))


def limits(visit: Visit) -> PageAnswer:
    paused = choice_of(visit.query, "paused", ("yes",)) is not None
    rows = _limits(visit, paused=paused)
    return visit.page("limits.html", limits=rows, paused=paused, most=LIMITS_MAX, notice=notice(visit))


def _limits(visit: Visit, *, paused: bool) -> Sequence[Limit]:
    """The first limit keys, or the first of those that are paused; one more than are shown."""

    def read(app: Effects) -> Sequence[Limit]:
        with app.store.read() as connection:
            return list_limits(app.store, connection, paused=paused, limit=LIMITS_MAX + 1)

    return visit.count(("limits", paused), LIVE_SECONDS, read)


def _queues(visit: Visit) -> list[QueueState]:
    def read(app: Effects) -> list[QueueState]:
        with app.store.read() as connection:
            return list_queues(app.store, connection, app.queues)

    return visit.count("queues", LIVE_SECONDS, read)


def _workers(visit: Visit) -> list[WorkerState]:
    def read() -> list[WorkerState]:
        with visit.app.store.read() as connection:
            return read_workers(visit.app.store, connection, visit.app.settings.lease_seconds)

    return visit.read("workers", LIVE_SECONDS, read)
