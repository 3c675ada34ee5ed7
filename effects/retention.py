"""Retention: what has ended is kept for a time by its job type, and then deleted in small batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from effects.app import Effects
from effects.model.attempt import Attempt
from effects.model.job_type import JobType
from effects.model.outcome import Done, Outcome, Snooze
from effects.retry import DAY_SECONDS
from effects.schedules import Schedule
from effects.store import prune as pages
from effects.store.audit_log.notes import AuditAction, note
from effects.store.db.old_rows import Ages
from effects.store.numbers import fold
from effects.store.queue.table_ledger import CORE_LEDGER, all_ledgers, delete_old_effects
from effects.store.schedules.clock import turn_back
from effects.walk import Page, walk

NUMBERS_DAYS = 30.0  # how long numbers over time are kept
SLICE_SECONDS = 20.0  # of one attempt of the job; with more to do it comes back at once

_PRUNE = AuditAction("database", "prune")

Step = Callable[..., Page]
GoOn = Callable[[], bool]


class Pruned(msgspec.Struct, kw_only=True):
    """How many were deleted, or would be. `finished` is False where `go_on` ended it.

    `numbers`: rows of rollups and samples whose sums are kept in longer rows, or that are older than 30 days.
    `evidence`: attempts that a failover lost. `failovers`: those that need no person.
    `packages`: job type → rows that its own `prune` took, such as the bodies of webhook events.
    """

    jobs: int = 0
    effects: int = 0
    groups: int = 0
    limits: int = 0
    slots: int = 0
    audit_log: int = 0
    bulks: int = 0
    evidence: int = 0
    failovers: int = 0
    numbers: int = 0
    packages: dict[str, int] = msgspec.field(default_factory=dict)
    finished: bool = True


def prune(
    app: Effects,
    *,
    dry_run: bool = False,
    go_on: GoOn = lambda: True,
    actor: str | None = None,
    reason: str | None = None,
) -> Pruned:
    """Delete rows past their retention, 500 a transaction, with a rest after each.

    Ended jobs go with their attempts and actions, after EFFECTS_RETENTION_JOBS_DAYS or their type's
    `retention_days`. A dead or unknown job is deleted only after an operator resolved it (requeued, ignored or
    resolved it) and EFFECTS_RETENTION_DEAD_DAYS have passed since; an open one is never taken, nor is a job that
    another was requeued from and that is still there. The effect's ledger row goes after its job, at its own
    `expires_at` or age; then its key may be used again. The audit log keeps EFFECTS_RETENTION_AUDIT_DAYS,
    and so do bulk actions. A crash
    leaves whole batches: running it again continues, and concurrent runs are harmless.

    Args:
        dry_run: only count. What depends on rows that would go first is not counted.
        go_on: called before each batch; False stops.
        actor, reason: who and why, for the audit log. Written as it begins, so that a run which is cut short is in it
            too. None: no person, as by the schedule.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    if actor is not None and not dry_run:
        with app.store.begin() as connection:
            note(app.store, connection, _PRUNE, "rows", actor=actor, reason=reason)
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


def job_types(app: Effects) -> Sequence[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [Prune(app)]


class _Run:
    """One walk over everything, batch by batch."""

    def __init__(self, app: Effects, dry_run: bool, go_on: GoOn) -> None:
        self._app, self._dry_run, self._go_on = app, dry_run, go_on
        self._finished = True

    def run(self) -> Pruned:
        app, settings = self._app, self._app.settings
        if not self._dry_run:
            turn_back(app.store)
        tables = tuple(ledger.table for ledger in all_ledgers(app.ledgers))
        default = settings.retention_effects_days * DAY_SECONDS
        ages = self._ages("retention_days", settings.retention_jobs_days)
        audit_seconds = settings.retention_audit_days * DAY_SECONDS
        dead_seconds = settings.retention_dead_days * DAY_SECONDS
        pruned = Pruned(
            jobs=self._walk(partial(pages.jobs, tables=tables, ages=ages, dead_seconds=dead_seconds)),
            effects=sum(
                self._walk(partial(delete_old_effects, table=table, ages=self._kept(table))) for table in tables
            ),
            groups=self._walk(pages.groups),
            limits=self._walk(partial(pages.limits, seconds=ages.default)),
            slots=self._walk(partial(pages.slots, seconds=default)),
            audit_log=self._walk(partial(pages.audit_log, seconds=audit_seconds)),
            bulks=self._walk(partial(pages.bulks, seconds=audit_seconds)),
            evidence=self._walk(partial(pages.evidence, seconds=default)),
            failovers=self._walk(partial(pages.failovers, seconds=default)),
            numbers=self._numbers(),
            packages=self._packages(),
        )
        pruned.finished = self._finished
        return pruned

    def _walk(self, step: Step) -> int:
        store, dry_run = self._app.store, self._dry_run
        return walk(lambda cursor: step(store, cursor=cursor, dry_run=dry_run), go_on=self._may_go_on, dry_run=dry_run)

    def _numbers(self) -> int:
        seconds = NUMBERS_DAYS * DAY_SECONDS
        steps: Sequence[Step] = [
            partial(fold.old_rollups, seconds=seconds),
            partial(fold.old_samples, seconds=seconds),
            fold.fold_workers,
            fold.old_minutes,
            fold.fold_samples,
        ]
        return sum(self._walk(step) for step in steps)

    def _packages(self) -> dict[str, int]:
        ages = self._ages("retention_effects_days", self._app.settings.retention_effects_days)
        taken = {
            job_type.name: job_type.prune(ages.of(job_type.name), dry_run=self._dry_run, go_on=self._may_go_on)
            for job_type in self._app.job_types
        }
        return {name: count for name, count in taken.items() if count}

    def _may_go_on(self) -> bool:
        self._finished = self._finished and self._go_on()
        return self._finished

    def _ages(self, attribute: str, default_days: float) -> Ages:
        own = {job_type.name: getattr(job_type, attribute) for job_type in self._app.job_types}
        seconds = {name: days * DAY_SECONDS for name, days in own.items() if days is not None}
        return Ages(seconds, default_days * DAY_SECONDS)

    def _kept(self, table: str) -> Ages:
        """The ages of a ledger's rows: by job type in the core's, else that of its types which keep longest."""
        ages = self._ages("retention_effects_days", self._app.settings.retention_effects_days)
        if table == CORE_LEDGER.table:
            return ages
        names = [job_type.name for job_type in self._app.job_types if (job_type.ledger or CORE_LEDGER).table == table]
        return Ages({}, max((ages.of(name) for name in names), default=ages.default))
