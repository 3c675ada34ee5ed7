"""Retention: what has ended is kept for a time by its job type, and then deleted in small batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from effects.job_type import Attempt, JobType
from effects.outcome import Done, Outcome, Snooze
from effects.retry import DAY_SECONDS
from effects.schedules import Schedule
from effects.store import prune as store_prune
from effects.store.ledger import CORE_LEDGER, all_ledgers
from effects.store.prune import Ages, Page

if TYPE_CHECKING:
    from effects.app import Effects

SLICE_SECONDS = 20.0  # of one attempt of the job; with more to do it comes back at once
PAUSE_SECONDS_MAX = 0.05

Step = Callable[..., Page]
GoOn = Callable[[], bool]


class Pruned(msgspec.Struct, kw_only=True):
    """How many were deleted, or would be. `finished` is False where `go_on` ended it.

    `packages`: job type → rows that its own `prune` took, such as the bodies of webhook events.
    """

    jobs: int = 0
    effects: int = 0
    groups: int = 0
    limits: int = 0
    slots: int = 0
    packages: dict[str, int] = msgspec.field(default_factory=dict)
    finished: bool = True


def prune(app: Effects, *, dry_run: bool = False, go_on: GoOn = lambda: True) -> Pruned:
    """Delete what is older than its age, 500 rows a transaction, with a rest after each.

    Ended jobs go with their attempts and actions, after EFFECTS_RETENTION_JOBS_DAYS or their type's
    `retention_days`. A dead or an unknown one goes only when somebody has closed it (requeued, ignored or
    resolved it) and EFFECTS_RETENTION_DEAD_DAYS have passed since; an open one is never taken, nor is a job that
    another was requeued from and that is still there. The effect's ledger row goes after its job, at its own
    `expires_at` or age; from then on its key may be used anew. A crash half-way leaves whole batches: running it
    again goes on, and two at once are harmless.

    Args:
        dry_run: only count. What depends on rows that would go first is not counted.
        go_on: asked before each batch.

    Raises:
        StoreUnavailable: the database is away.
    """
    return _Run(app, dry_run, go_on).run()


class Prune(JobType[dict[str, Any]]):
    """`prune`, as a job of the built-in schedule `effects.prune`."""

    name = "effects.prune"
    schedule = Schedule("effects.prune", "effects.prune", cron="*/10 * * * *")
    priority = 9
    time_limit_seconds = 120.0
    retention_days = 1.0

    def __init__(self, app: Effects) -> None:
        self._app = app

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        until = time.monotonic() + SLICE_SECONDS
        done = prune(self._app, go_on=lambda: time.monotonic() < until and not attempt.cancel_requested)
        return Done(detail=msgspec.to_builtins(done)) if done.finished else Snooze(0.0, "there is more to prune")


class _Run:
    """One walk over everything, batch by batch."""

    def __init__(self, app: Effects, dry_run: bool, go_on: GoOn) -> None:
        self._app, self._dry_run, self._go_on = app, dry_run, go_on
        self._finished = True

    def run(self) -> Pruned:
        app, settings = self._app, self._app.settings
        tables = tuple(ledger.table for ledger in all_ledgers(app.ledgers))
        default = settings.retention_effects_days * DAY_SECONDS
        ages = self._ages("retention_days", settings.retention_jobs_days)
        dead_seconds = settings.retention_dead_days * DAY_SECONDS
        pruned = Pruned(
            jobs=self._walk(partial(store_prune.jobs, tables=tables, ages=ages, dead_seconds=dead_seconds)),
            effects=sum(self._walk(partial(store_prune.effects, table=one, ages=self._kept(one))) for one in tables),
            groups=self._walk(store_prune.groups),
            limits=self._walk(partial(store_prune.limits, seconds=ages.default)),
            slots=self._walk(partial(store_prune.slots, seconds=default)),
            packages=self._packages(),
        )
        pruned.finished = self._finished
        return pruned

    def _walk(self, step: Step) -> int:
        taken, cursor = 0, None
        while self._may_go_on():
            began = time.monotonic()
            page = step(self._app.store, cursor=cursor, dry_run=self._dry_run)
            taken += page.taken
            if page.cursor is None:
                break
            cursor = page.cursor
            if page.taken and not self._dry_run:  # as long as the batch took, others have the database
                threading.Event().wait(min(PAUSE_SECONDS_MAX, time.monotonic() - began))
        return taken

    def _packages(self) -> dict[str, int]:
        ages = self._ages("retention_effects_days", self._app.settings.retention_effects_days)
        taken = {
            one.name: one.prune(ages.of(one.name), dry_run=self._dry_run, go_on=self._may_go_on)
            for one in self._app.job_types
        }
        return {name: count for name, count in taken.items() if count}

    def _may_go_on(self) -> bool:
        self._finished = self._finished and self._go_on()
        return self._finished

    def _ages(self, attribute: str, default_days: float) -> Ages:
        own = {one.name: getattr(one, attribute) for one in self._app.job_types}
        seconds = {name: days * DAY_SECONDS for name, days in own.items() if days is not None}
        return Ages(seconds, default_days * DAY_SECONDS)

    def _kept(self, table: str) -> Ages:
        """The ages of a ledger's rows: by job type in the core's, else that of its types which keep longest."""
        ages = self._ages("retention_effects_days", self._app.settings.retention_effects_days)
        if table == CORE_LEDGER.table:
            return ages
        mine = [one.name for one in self._app.job_types if (one.ledger or CORE_LEDGER).table == table]
        return Ages({}, max((ages.of(name) for name in mine), default=ages.default))
