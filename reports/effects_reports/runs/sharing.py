"""How many chunks of a report one worker takes at a time, so that the others get theirs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sqlalchemy import Connection

from effects import Effects
from effects.extend import Sql, as_json, read_worker_queues
from effects_reports.definitions.registry import ReportRegistry
from effects_reports.routing import QUEUE, limit_key


class Shares:
    """A worker's share of each report: its cap in flight, divided by the workers that are alive and have its queue.

    A worker with free threads would take all that the cap allows, and Python would make them one after the other. Kept
    in memory and brought up to date with every batch that is loaded; a report of which nothing is known has one.
    """

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app, self._registry = app, registry
        self._shares: dict[str, int | None] = {}

    def of(self, key: str) -> int | None:
        """How many attempts of this limit key this worker may have; None: any number."""
        return self._shares.get(key, 1)

    def update(self, connection: Connection, reports: Iterable[str]) -> None:
        """Look again how many workers there are, and what the caps are."""
        caps = {limit_key(name): self._registry.get(name).parallel for name in reports if name in self._registry}
        if not caps:
            return
        store, lease_seconds = self._app.store, self._app.settings.lease_seconds
        rows = store.all(connection, _caps, keys=as_json(sorted(caps)))
        stored: dict[str, int | None] = {row.limit_key: row.max_in_flight for row in rows}
        workers = sum(QUEUE in queues for queues in read_worker_queues(store, connection, lease_seconds))
        for key, parallel in caps.items():
            cap = stored.get(key, parallel)
            self._shares[key] = None if cap is None else max(1, math.ceil(cap / max(1, workers)))


def _caps(sql: Sql) -> str:
    return f"SELECT limit_key, max_in_flight FROM {sql.limits} WHERE limit_key {sql.any_of('keys')}"
