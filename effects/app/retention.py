"""Retention: what has ended is kept for a time by its job type, and then deleted in small batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from effects.app.effects import Effects
from effects.errors import StoreUnavailable
from effects.kit.crashpoints import CrashPoint
from effects.model.job import HOUSEKEEPING_QUEUE, Attempt
from effects.model.job_type import JobType
from effects.model.outcome import Done, Outcome, Snooze
from effects.model.schedules import Schedule
from effects.retry import DAY_SECONDS
from effects.store import prune as pages
from effects.store.audit_log import AuditAction, note
from effects.store.db.clock import turn_back
from effects.store.db.walk import Ages, Page, walk
from effects.store.numbers import rollups
from effects.store.queue.table_ledger import CORE_LEDGER, all_ledgers, delete_old_effects

NUMBERS_DAYS = 30.0  # how long numbers over time are kept
SLICE_SECONDS = 20.0  # of one attempt of the job; with more to do it comes back at once, and goes on from there

_PRUNE = AuditAction("database", "prune")

Step = Callable[..., Page]
GoOn = Callable[[], bool]


class _Part(NamedTuple):
    """A part of a pruning. `name`: of the field of `Pruned` that counts it; `package`: the job type whose own it is."""

    name: str
    run: Callable[[], int]
    package: str | None = None


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
    `expires_at` or age; then its key may be used again. Job types that are not registered here may be another app's,
    which keeps them for longer: their jobs and ledger rows go after the longest of all these ages, usually that of the
    audit log. That one keeps EFFECTS_RETENTION_AUDIT_DAYS, and so do bulk actions. A crash leaves whole batches:
    running it again continues, and concurrent runs are harmless. A part that fails, such as a package whose storage is
    away, does not stop the parts after it.

    Args:
        dry_run: only count. What depends on rows that would go first is not counted.
        go_on: called before each batch; False stops.
        actor, reason: who and why, for the audit log. Written as it begins, so that a run which is cut short is in it
            too. None: no person, as by the schedule.

    Raises:
        StoreUnavailable: the database is unavailable.
        Exception: what the first part that failed has raised, once the others are through.
    """
    if actor is not None and not dry_run:
        with app.store.begin() as connection:
            note(app.store, connection, _PRUNE, "rows", actor=actor, reason=reason)
    return _Run(app, dry_run=dry_run).work(go_on)


class Prune(JobType[dict[str, Any]]):
    """`prune`, as a job of the built-in schedule `effects.prune`."""

    name = "effects.prune"
    internal = True
    queue = HOUSEKEEPING_QUEUE
    schedule = Schedule("effects.prune", "effects.prune", cron="*/10 * * * *")
    priority = 9
    time_limit_seconds = 120.0

    def __init__(self, app: Effects) -> None:
        self._app = app
        self._unfinished: _Run | None = None  # of a slice of this process that ran out of time

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        """Take a slice. From the start each time, what is kept for long would use up every slice."""
        until = time.monotonic() + SLICE_SECONDS
        run, self._unfinished = self._unfinished or _Run(self._app), None
        pruned = run.work(lambda: time.monotonic() < until and not attempt.cancel_requested)
        if pruned.finished:
            return Done(detail=msgspec.to_builtins(pruned))
        self._unfinished = run
        return Snooze(0.0, "there is more to prune")


def job_types(app: Effects) -> Sequence[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [Prune(app)]


class _Run:
    """One walk over everything, part by part and batch by batch; after an interruption it goes on where it was."""

    def __init__(self, app: Effects, *, dry_run: bool = False) -> None:
        self._app, self._dry_run = app, dry_run
        self._pruned = Pruned()
        self._parts = deque(self._all_parts())
        self._cursor: Any = None  # where the walk of the first of these parts continues
        self._failure: Exception | None = None
        self._go_on: GoOn = lambda: True

    def work(self, go_on: GoOn) -> Pruned:
        """Prune what is left, until `go_on` returns False.

        Raises:
            StoreUnavailable: the database is unavailable.
            Exception: what the first part that failed has raised, once the others are through.
        """
        self._go_on, self._pruned.finished = go_on, True
        if not self._dry_run:
            turn_back(self._app.store)
        while self._parts:
            self._work_on(self._parts[0])
            if not self._pruned.finished:
                return self._pruned
            self._parts.popleft()
            self._cursor = None
        if self._failure is not None:
            raise self._failure
        return self._pruned

    def _work_on(self, part: _Part) -> None:
        try:
            count = part.run()
        except (StoreUnavailable, CrashPoint):
            raise
        except Exception as error:
            self._failure = self._failure or error
            return
        packages = self._pruned.packages
        if part.package is None:
            setattr(self._pruned, part.name, getattr(self._pruned, part.name) + count)
        elif count:
            packages[part.package] = packages.get(part.package, 0) + count

    def _all_parts(self) -> Iterator[_Part]:
        app, settings = self._app, self._app.settings
        tables = tuple(ledger.table for ledger in all_ledgers(app.ledgers))
        default = settings.retention_effects_days * DAY_SECONDS
        ages = self._ages("retention_days", settings.retention_jobs_days)
        audit_seconds = settings.retention_audit_days * DAY_SECONDS
        dead_seconds = settings.retention_dead_days * DAY_SECONDS
        yield self._part("jobs", partial(pages.jobs, tables=tables, ages=ages, dead_seconds=dead_seconds))
        for table in tables:
            yield self._part("effects", partial(delete_old_effects, table=table, ages=self._kept(table)))
        yield self._part("groups", pages.groups)
        yield self._part("limits", partial(pages.limits, seconds=settings.retention_jobs_days * DAY_SECONDS))
        yield self._part("slots", partial(pages.slots, seconds=default))
        yield self._part("audit_log", partial(pages.audit_log, seconds=audit_seconds))
        yield self._part("bulks", partial(pages.bulks, seconds=audit_seconds))
        yield self._part("evidence", partial(pages.evidence, seconds=default))
        yield self._part("failovers", partial(pages.failovers, seconds=default))
        for step in _steps_of_numbers():
            yield self._part("numbers", step)
        yield from self._packages()

    def _part(self, name: str, step: Step) -> _Part:
        return _Part(name, partial(self._walk, step))

    def _walk(self, step: Step) -> int:
        def page_of(cursor: Any) -> Page:
            page = step(self._app.store, cursor=self._cursor if cursor is None else cursor, dry_run=self._dry_run)
            self._cursor = page.cursor
            return page

        return walk(page_of, go_on=self._may_go_on, dry_run=self._dry_run)

    def _packages(self) -> Iterator[_Part]:
        ages = self._ages("retention_effects_days", self._app.settings.retention_effects_days)
        for job_type in self._app.job_types:
            keep_seconds = ages.of(job_type.name)
            run = partial(job_type.prune, keep_seconds, dry_run=self._dry_run, go_on=self._may_go_on)
            yield _Part("packages", run, job_type.name)

    def _may_go_on(self) -> bool:
        self._pruned.finished = self._pruned.finished and self._go_on()
        return self._pruned.finished

    def _ages(self, attribute: str, default_days: float) -> Ages:
        """Of each registered job type. Others may be another app's, which declares more than we know: they go last."""
        own = {job_type.name: getattr(job_type, attribute) for job_type in self._app.job_types}
        days = {name: default_days if own_days is None else own_days for name, own_days in own.items()}
        longest = max(default_days, self._app.settings.retention_audit_days, *days.values())
        return Ages({name: each * DAY_SECONDS for name, each in days.items()}, longest * DAY_SECONDS)

    def _kept(self, table: str) -> Ages:
        """The ages of a ledger's rows: by job type in the core's, else that of its types which keep longest."""
        ages = self._ages("retention_effects_days", self._app.settings.retention_effects_days)
        if table == CORE_LEDGER.table:
            return ages
        names = [job_type.name for job_type in self._app.job_types if (job_type.ledger or CORE_LEDGER).table == table]
        return Ages({}, max((ages.of(name) for name in names), default=ages.default))


def _steps_of_numbers() -> Sequence[Step]:
    seconds = NUMBERS_DAYS * DAY_SECONDS
    return [
        partial(rollups.old_rollups, seconds=seconds),
        partial(rollups.old_samples, seconds=seconds),
        rollups.fold_workers,
        rollups.old_minutes,
        rollups.fold_samples,
    ]
