"""The core's own job types whose code a worker imports at their first job: bulk actions and the check of alerts.

Each is carried out by the entry point of its name in the group `effects.handlers`, a function of the Effects, the
payload and the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import msgspec

from effects.app.effects import Effects
from effects.kit.importing import entry_points
from effects.model.alerts import CHECK_TYPE
from effects.model.job import HOUSEKEEPING_QUEUE, Attempt
from effects.model.job_type import JobType
from effects.model.outcome import Outcome

P = TypeVar("P")
Handler: TypeAlias = Callable[[Effects, P, Attempt], Outcome]


class _LateJob(JobType[P]):
    internal = True
    queue = HOUSEKEEPING_QUEUE

    def __init__(self, app: Effects) -> None:
        self._app = app

    def perform(self, payload: P, attempt: Attempt) -> Outcome:
        return self._handler(self._app, payload, attempt)

    @cached_property
    def _handler(self) -> Handler[P]:
        (entry,) = (entry for entry in entry_points("effects.handlers") if entry.name == self.name)
        handler: Handler[P] = entry.load()
        return handler


class BulkPayload(msgspec.Struct, frozen=True):
    bulk_id: int


class BulkJob(_LateJob[BulkPayload]):
    """Works through a bulk action, chunk by chunk."""

    name = "effects.bulk"
    payload = BulkPayload
    priority = 0  # before the jobs that it cancels
    time_limit_seconds = 120.0


class CheckAlerts(_LateJob[dict[str, Any]]):
    """Checks the app's alerts: the schedule `effects.alerts` runs it every minute where an app has some."""

    name = CHECK_TYPE
    priority = 1
    time_limit_seconds = 60.0


def job_types(app: Effects) -> Sequence[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [BulkJob(app), CheckAlerts(app)]
