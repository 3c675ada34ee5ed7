"""Jobs of other workers whose outcomes enqueue what a drain would do."""

from __future__ import annotations

import threading
from collections.abc import Collection

from effects.app import Effects
from effects.errors import StoreRejected, StoreUnavailable
from effects.store.db.sql import Sql
from effects.store.db.store import as_json

LOOK_SECONDS = 0.2


class MoreToCome:
    """Whether another worker that is alive runs a job whose type has `enqueues_more`, in one of these queues.

    Args:
        wake: set when there is something to look at.
    """

    def __init__(self, app: Effects, queues: Collection[str], wake: threading.Event) -> None:
        self._app, self._wake = app, wake
        self._types = sorted(
            job_type.name for job_type in app.job_types if job_type.enqueues_more and job_type.queue in queues
        )

    def waited(self) -> bool:
        """Wait a moment for such a job; False without one, or if the database does not say."""
        coming = bool(self._types) and self._is_running()
        if coming:
            self._wake.wait(LOOK_SECONDS)
        return coming

    def _is_running(self) -> bool:
        store, lease_seconds = self._app.store, self._app.settings.lease_seconds
        try:
            with store.read() as connection:
                row = store.row(connection, _running, types=as_json(self._types), lease=lease_seconds)
        except (StoreUnavailable, StoreRejected):
            return False
        return row is not None


def _running(sql: Sql) -> str:
    return f"""
    SELECT 1 FROM {sql.jobs} AS j JOIN {sql.workers} AS w ON w.id = j.locked_by
    WHERE j.status = 'running' AND j.job_type {sql.any_of("types")} AND {sql.is_alive("w.")} LIMIT 1"""
