"""How things stand: the first page, and those of queues, workers, schedules, limits, checks and the audit log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy.exc import DBAPIError

from effects.app.effects import Effects
from effects.errors import EffectsError
from effects.kit.logs import error_places, own_logger
from effects.model.job import LIVE_SHOWN
from effects.operate.doctor import examine
from effects.operate.tables.actions import LogFilters, list_entries
from effects.operate.tables.dead_letters import Cause, Unresolved
from effects.operate.tables.held_up import HeldKind, HeldUp
from effects.operate.tables.limit_status import Limit, list_limits
from effects.operate.tables.queue_status import Status, WorkerState, read_status, read_workers
from effects.operate.tables.schedule_states import read_states
from effects.store.db.records import AttemptRecord
from effects.store.limits.queue_pauses import QueueState, list_queues
from effects.web.exchange import PageAnswer
from effects.web.pages import Problem, StandingLine, notice
from effects.web.views.numbers import RANGES, STATS_SECONDS, span_of, stats_of, trend_of
from effects.web.views.paging import PAGE_ROWS, before_of, choice_of, chosen_of, filters_of, page_of
from effects.web.visit import LIVE_SECONDS, Visit

PROBLEMS_SHOWN = 10
CAUSES_NAMED = 3
LIMITS_MAX = 500
_HELD_PAGES: Mapping[HeldKind, str] = {
    "queue_paused": "queues", "limit_paused": "limits", "half_open": "limits", "operator": "jobs", "put_off": "jobs",
    "group_blocked": "jobs", "type_not_registered": "jobs", "queue_unserved": "queues", "schedule_paused": "schedules",
    "package": "health",
}  # fmt: skip
# The chip of each, and what ends it.
_HELD_WORDS: Mapping[HeldKind, tuple[str, str]] = {
    "queue_paused": ("paused", "queue_resume"), "limit_paused": ("paused", "limit_resume"),
    "half_open": ("half_open", "limit_resume"), "operator": ("lacking", ""), "put_off": ("put off", ""),
    "group_blocked": ("blocked", ""), "type_not_registered": ("unregistered", ""), "queue_unserved": ("unserved", ""),
    "schedule_paused": ("paused", "schedule_resume"), "package": ("failing", ""),
}  # fmt: skip
_log = own_logger("effects.web")


def overview(visit: Visit) -> PageAnswer:
    """What is wrong, a row each; how things stand; the types, those first that fail most."""
    span = span_of(visit, "1h")
    status, counted_at = count_status(visit)
    visit.shown_unresolved = Unresolved(status.unresolved, status.unknown)
    theirs = visit.read("packages", STATS_SECONDS, lambda: _package_lines(visit))
    every = [*_problems(visit, status), *theirs.problems, *_held(visit, status)]
    types = sorted(
        stats_of(visit, span).types, key=lambda each: (each.outcomes["done"] - each.attempts, -each.attempts)
    )
    return visit.page(
        "overview.html", status=status, counted_at=counted_at, problems=every[:PROBLEMS_SHOWN],
        more=every[PROBLEMS_SHOWN:], types=types, span=span, ranges=list(RANGES), live=_live(status),
        alive=[worker for worker in status.workers if worker.alive], trend=trend_of(visit), standing=theirs.standing,
        is_empty=not (status.counts or types),
    )  # fmt: skip


def _problems(visit: Visit, status: Status) -> list[Problem]:
    """What only a person ends: no worker, and what ended badly, by type."""
    problems = []
    if not any(worker.alive for worker in status.workers):
        problems.append(Problem(
            word="stopped", text="No worker is alive", url=visit.url("workers"), error="start one with `effects work`",
        ))  # fmt: skip
    by_type: dict[tuple[bool, str], list[Cause]] = {}
    for cause in status.causes:
        by_type.setdefault((cause.unknown, cause.job_type), []).append(cause)
    answers = visit.last_attempts([cause.last_job for causes in by_type.values() for cause in causes[:CAUSES_NAMED]])
    for (unknown, job_type), causes in sorted(by_type.items(), key=lambda pair: not pair[0][0]):
        jobs, effect = sum(cause.jobs for cause in causes), "unknown" if unknown else "not_done"
        words = "may have happened" if unknown else "not done"
        url = visit.url("needs", type=job_type, effect=effect)
        problems.append(Problem(
            word="unknown" if unknown else "dead", text=f"{job_type}: {jobs:,} {words}", url=url,
            affected=f"{jobs:,} {'job' if jobs == 1 else 'jobs'}", since=min(cause.first_at for cause in causes),
            error=_said(causes, answers), button=f"{'Decide' if unknown else 'Show'} {jobs:,}",
            button_url=visit.url("desk") if unknown else url,
        ))  # fmt: skip
    return problems


def _said(causes: Sequence[Cause], answers: Mapping[int, AttemptRecord]) -> str:
    """What was said last, of each cause: the most frequent first."""
    said = []
    for cause in causes[:CAUSES_NAMED]:
        answer = answers[cause.last_job].answer if cause.last_job in answers else ""
        code = cause.error_code or "without a code"
        words = answer if code in answer else f"{code}: {answer}" if answer else code
        said.append(f"{words} ({cause.jobs:,})")
    more = len(causes) - len(said)
    return " · ".join([*said, *([f"{more} more"] if more else [])])


def _held(visit: Visit, status: Status) -> list[Problem]:
    """What holds jobs up, unless a package has a row that says it; last what an app or an operator asked for."""
    shown = [held for held in status.held_up if not any(pages.covers(held) for pages in visit.site.packages)]
    return [_held_problem(visit, held) for held in sorted(shown, key=lambda held: not held.needs_attention)]


def _held_problem(visit: Visit, held: HeldUp) -> Problem:
    word, resume = _HELD_WORDS[held.kind]
    return Problem(
        word=word, text=held.text, url=held_url(visit, held), error="" if resume else held.ends,
        affected=f"{held.jobs:,} {'job' if held.jobs == 1 else 'jobs'}" if held.jobs else "",
        button="Resume" if resume else "", button_url=visit.url(resume, name=held.name) if resume else "",
    )  # fmt: skip


def count_status(visit: Visit) -> tuple[Status, dt.datetime]:
    """What is counted over all live jobs, and when.

    Raises:
        StillCountingError: as `Visit.count`.
    """
    return visit.count("status", LIVE_SECONDS, _count)


def held_url(visit: Visit, held: HeldUp) -> str:
    """The page about what jobs wait for, or that lists it."""
    address: str = visit.url(_HELD_PAGES[held.kind])
    for pages in visit.site.packages:
        if held.about is not None and held.name in pages.subjects:
            address = pages.subjects[held.name](visit, held.about)
    return address


def needs_person(held: HeldUp) -> bool:
    """Whether no time and no worker ends it."""
    return held.needs_attention and held.kind in ("queue_unserved", "operator", "package")


def _count(app: Effects) -> tuple[Status, dt.datetime]:
    """What the overview counts, and when."""
    status = read_status(app.store, app.settings.lease_seconds, app.job_types, app.queues)
    return status, dt.datetime.now(dt.UTC)


class PackageLines(NamedTuple):
    """What packages have to say."""

    problems: list[Problem]
    standing: list[StandingLine]


def _package_lines(visit: Visit) -> PackageLines:
    """A row that one package cannot read hides nothing that the others say."""
    lines = PackageLines([], [])
    for pages in visit.site.packages:
        try:
            lines.problems.extend(pages.problems(visit))
            lines.standing.extend(pages.standing(visit))
        except (EffectsError, DBAPIError):  # it concerns the whole page
            raise
        except Exception as error:
            _log.error("standing of %s failed: %s at %s", pages.name, type(error).__name__, error_places(error))
            text = f"{pages.label}: cannot be read; the log says where"
            lines.problems.append(Problem(word="failing", text=text, url=visit.url("health")))
    return lines


def _live(status: Status) -> dict[str, int]:
    """Live jobs by status, over all types."""
    live = dict.fromkeys(LIVE_SHOWN, 0)
    for count in status.counts:
        if count.status in live:
            live[count.status] += count.jobs
    return live


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


_ENTRY_NAMES = ("actor", "action", "subject_kind", "subject")


def audit(visit: Visit) -> PageAnswer:
    chosen = filters_of(visit.query, _ENTRY_NAMES)
    filters = LogFilters(**chosen, before=before_of(visit), limit=PAGE_ROWS + 1)
    entries, older = page_of(list_entries(visit.app.store, filters))
    return visit.page(
        "audit.html", entries=[(entry, _detail(entry.detail)) for entry in entries], older=older,
        first=filters.before is None, chosen=chosen_of(chosen),
    )  # fmt: skip


def _detail(detail: object) -> str:
    return msgspec.json.encode(detail, enc_hook=str).decode() if detail else ""


KEPT_SECONDS = 60.0
_LEVELS = {"error": 0, "warning": 1, "ok": 2}
_OF_A_CONNECTION = ("busy timeout", "durability")  # to an SQLite file: here those of the dashboard's own


def health(visit: Visit) -> PageAnswer:
    """All but how the app itself connects to an SQLite file, which only a command in the app can tell."""
    findings = visit.count("doctor", KEPT_SECONDS, examine)
    if not visit.app.store.is_postgresql:
        findings = [finding for finding in findings if finding.check not in _OF_A_CONNECTION]
    ordered = sorted(findings, key=lambda finding: _LEVELS[finding.level])
    return visit.page("health.html", findings=ordered)


def settings(visit: Visit) -> PageAnswer:
    if not visit.request.is_unsafe:
        return visit.page("settings.html", notice=notice(visit))
    answer = visit.redirect("settings", did="settings")
    return PageAnswer(answer.status, headers=(*answer.headers, visit.theme_cookie(visit.form.get("theme", ""))))
