"""Queues, workers, schedules and limit keys: each a list with its actions."""

from __future__ import annotations

from effects.observation.stats import Stats, read_stats
from effects.store.limits.queue_pauses import QueueState, list_queues
from effects.store.operator.queue_status import WorkerState, read_workers
from effects.store.schedules.states import read_states
from effects.web.exchange import PageAnswer
from effects.web.subject_actions import known_queues
from effects.web.views.notices import notice
from effects.web.visit import LIMITS_MAX, LIVE_SECONDS, Visit

STATS_SECONDS = 15.0


def queues(visit: Visit) -> PageAnswer:
    states = visit.site.readings.get("queues", LIVE_SECONDS, lambda: _queues(visit))
    stats = visit.site.readings.get(("stats", "1h"), STATS_SECONDS, lambda: _stats(visit))
    workers = visit.site.readings.get("workers", LIVE_SECONDS, lambda: _workers(visit))
    served: dict[str, int] = {}
    for worker in workers:
        for queue in worker.queues.split(",") if worker.alive else []:
            name = queue.partition("=")[0].strip()
            served[name] = served.get(name, 0) + 1
    return visit.page(
        "queues.html", queues=states, served=served, notice=notice(visit),
        measured={queue.queue: queue for queue in stats.queues},
    )  # fmt: skip


def workers(visit: Visit) -> PageAnswer:
    states = visit.site.readings.get("workers", LIVE_SECONDS, lambda: _workers(visit))
    return visit.page("workers.html", workers=states, notice=notice(visit))


def schedules(visit: Visit) -> PageAnswer:
    return visit.page("schedules.html", schedules=read_states(visit.app.store), notice=notice(visit))


def limits(visit: Visit) -> PageAnswer:
    paused = visit.query.get("paused") == "yes"
    rows = visit.site.limits(paused=paused)
    return visit.page("limits.html", limits=rows, paused=paused, most=LIMITS_MAX, notice=notice(visit))


def _queues(visit: Visit) -> list[QueueState]:
    with visit.app.store.read() as connection:
        return list_queues(visit.app.store, connection, known_queues(visit))


def _stats(visit: Visit) -> Stats:
    return read_stats(visit.app.store)


def _workers(visit: Visit) -> list[WorkerState]:
    with visit.app.store.read() as connection:
        return read_workers(visit.app.store, connection, visit.app.settings.lease_seconds)
