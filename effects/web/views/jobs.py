"""Jobs: their lists with filters, those that need a person, and one effect's story, to look at or to be decided."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from effects.model.job import ENDED, LIVE_SHOWN
from effects.operate.evidence import Evidence, Wait, find_evidence, find_orphans
from effects.operate.sentences import orphan_sentence, sentence, wait_text
from effects.operate.tables.actions import REVEAL_JOB
from effects.operate.tables.bulk_selection import ActionName, BulkAction, freeze, select_ids
from effects.operate.tables.dead_letters import DeadFilters, Unresolved, list_dead
from effects.operate.tables.held_up import HeldUp
from effects.operate.tables.job_list import Filters, count_statuses, list_jobs
from effects.store.db.records import AttemptRecord
from effects.store.db.sql import ANY_TIME, Window
from effects.web import failures
from effects.web.charts import steps, unmeasured_ms
from effects.web.core_actions import DECISIONS, JOB_ACTIONS, route_name
from effects.web.database import StillCountingError
from effects.web.exchange import PageAnswer
from effects.web.pages import notice
from effects.web.views.numbers import causes_of_dead
from effects.web.views.overview import count_status, held_url, needs_person
from effects.web.views.paging import (
    PAGE_ROWS,
    before_of,
    choice_of,
    chosen_of,
    fields_of,
    filters_of,
    id_of,
    page_of,
    word_of,
)
from effects.web.visit import LIVE_SECONDS, Visit

QUESTION_CHARS_MAX = 255
ATTEMPTS_MAX = 100  # of a job that is put off again and again there may be thousands
_MESSAGE_ID = re.compile(r"<[^<>@\s]+@[^<>\s]+>")
_OWN_ID = re.compile(r"[a-z]{2,4}_[0-9A-Za-z]{8,64}")  # of what a package has a page of
_NAMED_MAX = 10
_RESUMES = {"resume-queue": "queue_resume", "resume-limit": "limit_resume"}


@dataclass(frozen=True, slots=True)
class BulkChoice:
    """An action that a list offers on all its jobs.

    Args:
        ticked: the button for rows that are ticked.
        statuses: of the jobs of the list; empty: it has no statuses.
        unknown: whether it is about effects that may have happened, about others, or (None) about either.
    """

    name: ActionName
    button: str
    ticked: str
    consequence: str
    statuses: Sequence[str] = ()
    unknown: bool | None = None
    danger: bool = False
    even_if_unknown: bool = False

    @property
    def action(self) -> BulkAction:
        return BulkAction(self.name, even_if_unknown=self.even_if_unknown)


_AGAIN = "Each becomes a new job, which carries the effect out. What is done, or may have happened, is left as it is."
OF_NEEDS = (
    BulkChoice("requeue", "Requeue all", "Requeue", _AGAIN, unknown=False),
    BulkChoice("ignore", "Ignore all", "Ignore", "Each is resolved without an action: the effects are not made.",
               unknown=False, danger=True),
    BulkChoice("mark_done", "All of them happened", "They happened", "Each effect is recorded as done, on your word.",
               unknown=True, danger=True),
    BulkChoice("give_up", "Leave all unknown", "Leave unknown", "Each effect stays unknown forever, and nothing tries "
               "it again.", unknown=True, danger=True),
    BulkChoice("resolve_requeue", "Try all again", "Try again", "Each becomes a new job. Effects that have happened "
               "already happen twice.", unknown=True, danger=True),
)  # fmt: skip
OF_JOBS = (
    BulkChoice("requeue", "Requeue all", "Requeue", _AGAIN, statuses=("dead", "cancelled")),
    BulkChoice("run_now", "Run all now", "Run now", "Each falls due at once. Pauses, limits and groups still hold.",
               statuses=("queued", "retrying")),
    BulkChoice("cancel", "Cancel all", "Cancel", "Waiting jobs end at once, and their effects are not made. Running "
               "ones are not interrupted, and not tried again.",
               statuses=("queued", "running", "retrying"), danger=True),
)  # fmt: skip


def choices_of_needs(filters: DeadFilters) -> list[BulkChoice]:
    """What may be done with all of them: a decision needs effects of one kind."""
    return [choice for choice in OF_NEEDS if filters.unknown is not None and choice.unknown == filters.unknown]


def ticked_choices_of_needs(filters: DeadFilters) -> list[BulkChoice]:
    """What may be done with rows that are ticked; where effects of both kinds are shown, what they have in common."""
    return [choice for choice in OF_NEEDS if choice.unknown == bool(filters.unknown)]


def choices_of_jobs(status: str | None) -> list[BulkChoice]:
    """What may be done with all jobs of this status."""
    return [choice for choice in OF_JOBS if status in choice.statuses]


STATUSES = (*LIVE_SHOWN, *ENDED)
AGES = {"15m": 900.0, "1h": 3_600.0, "24h": 86_400.0, "7d": 604_800.0}
_NAMES = ("type", "queue", "code", "limit_key", "group", "worker")


def job_filters(fields: Mapping[str, str], before: int | None = None) -> tuple[Filters, Mapping[str, str]]:
    """The filters of a query or a form, and those of them that are set, by name.

    Raises:
        BadRequestError: as `text_of`.
    """
    names = {**filters_of(fields, _NAMES), "word": word_of(fields)}
    status, age = choice_of(fields, "status", STATUSES), choice_of(fields, "newer", AGES)
    window = ANY_TIME if age is None else Window(newer=AGES[age])
    filters = Filters(status=status, window=window, before=before, limit=PAGE_ROWS, **fields_of(names))
    return filters, chosen_of({**names, "newer": age, "status": status})


def jobs(visit: Visit) -> PageAnswer:
    before = before_of(visit)
    filters, chosen = job_filters(visit.query, before)
    page = visit.read_list("jobs", chosen, before, lambda: list_jobs(visit.app.store, visit.app.ledgers, filters))
    status = chosen.get("status")
    return visit.page(
        "jobs.html", page=page, chosen={name: value for name, value in chosen.items() if name != "status"},
        status=status, statuses=STATUSES, ages=list(AGES), first=before is None, notice=notice(visit),
        job_types=visit.app.job_types.names(), counts=_counts(visit), choices=choices_of_jobs(status),
    )  # fmt: skip


def _counts(visit: Visit) -> Mapping[str, int]:
    """Of all jobs, for the tabs: bounded for each status."""

    def read() -> Mapping[str, int]:
        with visit.app.store.read() as connection:
            return count_statuses(visit.app.store, connection)

    return visit.read("statuses", LIVE_SECONDS, read)


_NEED_NAMES = ("type", "code", "queue", "limit_key")
_EFFECTS = {"unknown": True, "not_done": False}


def dead_filters(fields: Mapping[str, str], before: int | None = None) -> tuple[DeadFilters, Mapping[str, str]]:
    """The filters of a query or a form, and those of them that are set, by name.

    Raises:
        BadRequestError: as `text_of`.
    """
    names = {**filters_of(fields, _NEED_NAMES), "word": word_of(fields)}
    effect = choice_of(fields, "effect", _EFFECTS)
    unknown = None if effect is None else _EFFECTS[effect]
    filters = DeadFilters(**fields_of(names), unknown=unknown, before=before, limit=PAGE_ROWS + 1)
    return filters, chosen_of({**names, "effect": effect})


def needs(visit: Visit) -> PageAnswer:
    app = visit.app
    filters, chosen = dead_filters(visit.query, before_of(visit))
    letters, older = page_of(
        visit.read_list("needs", chosen, filters.before, lambda: list_dead(app.store, app.ledgers, filters))
    )
    causes = causes_of_dead(visit)
    visit.shown_unresolved = counts = Unresolved(
        sum(cause.jobs for cause in causes), sum(cause.jobs for cause in causes if cause.unknown)
    )
    return visit.page(
        "needs.html", causes=causes, letters=letters, older=older, counts=counts,
        chosen=chosen, first=filters.before is None, notice=notice(visit), choices=choices_of_needs(filters),
        ticked=ticked_choices_of_needs(filters), held_up=_for_a_person(visit), held_url=partial(held_url, visit),
    )  # fmt: skip


def _for_a_person(visit: Visit) -> list[HeldUp] | None:
    """What no time and no worker ends; None while it is still being counted: the rest of the page needs no count."""
    try:
        status, _ = count_status(visit)
    except StillCountingError:
        visit.is_counting = False
        return None
    return [held for held in status.held_up if needs_person(held)]


def job(visit: Visit) -> PageAnswer:
    """The story as a job tells it, with the jobs that it was requeued from."""
    return _story(visit, visit.evidence(int(visit.values["id"])))


def reveal(visit: Visit) -> PageAnswer:
    """The story with what may be personal: addresses, and kept texts of exceptions; noted in the audit log first."""
    evidence = visit.evidence(int(visit.values["id"]))
    visit.note_look(REVEAL_JOB, int(visit.values["id"]))
    return _story(visit, evidence, revealed=True)


def why(visit: Visit) -> PageAnswer:
    """Look an effect up by what a person knows of it; by POST, so that no key stands in an address."""
    question = visit.form.get("q") if visit.request.is_unsafe else None
    if question is None or len(question) > QUESTION_CHARS_MAX:
        return visit.page("why.html", question=None, stories=[], orphans=[], pages=[])
    if "@" in question and not _MESSAGE_ID.fullmatch(question):
        if not visit.someone.personal:
            assert visit.route is not None
            return failures.forbidden(visit, visit.route, "looking up an address needs the capability personal")
        visit.note_address(question)
    pages = _pages_named(visit, question)
    if len(pages) == 1 and _OWN_ID.fullmatch(question):
        return visit.lead_to(pages[0][1])
    orphans = find_orphans(visit.app, question)
    stories = find_evidence(visit.app, question, may_be_none=True)
    if len(stories) == 1 and stories[0].facts.jobs and not orphans:
        return visit.redirect("job", id=stories[0].facts.jobs[0].id)
    described = [
        (sentence(story), story.state, story.facts.jobs[0].id if story.facts.jobs else None) for story in stories
    ]
    return visit.page(
        "why.html",
        question=question,
        stories=described,
        pages=pages,
        orphans=[orphan_sentence(orphan) for orphan in orphans],
    )


def _pages_named(visit: Visit, question: str) -> list[tuple[str, str]]:
    """What a search names beside effects, each with its page: of packages, job types, pages of the navigation."""
    words = question.lower()
    theirs = [(link.label, link.url) for pages in visit.site.packages for link in pages.find(visit, question)]
    types = [(f"Jobs of the type {name}", visit.url("jobs", type=name))
             for name in visit.app.job_types.names() if words in name]  # fmt: skip
    entries = [(entry.label, visit.url(entry.route)) for group in visit.site.navigation for entry in group.entries]
    return [*theirs, *types[:_NAMED_MAX], *(entry for entry in entries if words in entry[0].lower())]


def _story(visit: Visit, evidence: Evidence, *, revealed: bool = False) -> PageAnswer:
    return visit.page("story.html", **story_values(visit, evidence), revealed=revealed)


def story_values(visit: Visit, evidence: Evidence) -> dict[str, Any]:
    """What a template shows of an effect; of its attempts the newest 100."""
    attempts = evidence.facts.attempts[-ATTEMPTS_MAX:]
    return {
        "evidence": evidence, "job": evidence.facts.jobs[0], "attempts": attempts, "sentence": sentence(evidence),
        "earlier_attempts": len(evidence.facts.attempts) - len(attempts),
        "wait": wait_text(evidence.waits) if evidence.waits is not None else None,
        "actions": _actions(visit, evidence), "timeline": _timeline(evidence, attempts), "steps": steps,
        "whole_ms": max(map(_whole_ms, attempts), default=0.0), "notice": notice(visit),
        "links": [link for pages in visit.site.packages for link in pages.links(visit, evidence)],
    }  # fmt: skip


def _whole_ms(attempt: AttemptRecord) -> float:
    return sum(steps(attempt.phases_ms).values()) + (unmeasured_ms(attempt.phases_ms, attempt.seconds) or 0.0)


def _actions(visit: Visit, evidence: Evidence) -> list[dict[str, Any]]:
    """What may be done now: a button, or the command where only that does it; what the person may not do is named."""
    buttons = []
    own = {action.name: action for action in JOB_ACTIONS}
    for advice in evidence.next:
        name = route_name(advice)
        if name is not None:
            action, job_id = own[name], evidence.facts.jobs[0].id
            buttons.append({
                "button": action.button, "url": visit.url(f"job_{name}", id=job_id), "danger": action.danger,
                "allowed": visit.someone.may(action.role), "role": action.role, "command": advice.command,
            })  # fmt: skip
        elif (address := _address(visit, advice.name, evidence.waits)) is not None:
            buttons.append({
                "button": address[0], "url": address[1], "danger": False,
                "allowed": visit.someone.may("operator"), "role": "operator", "command": advice.command,
            })  # fmt: skip
        else:
            buttons.append({"button": None, "command": advice.command})
    return buttons


def _address(visit: Visit, name: str, wait: Wait | None) -> tuple[str, str] | None:
    """Button and page of an action on what the job waits for, or on the head of its group."""
    if wait is None:
        return None
    if name == "run-head-now":
        return f"Run job {wait.job_id} now", visit.url("job_run-now", id=wait.job_id)
    holder = wait.head or wait
    return (f"Resume {holder.name}", visit.url(_RESUMES[name], name=holder.name)) if name in _RESUMES else None


def _timeline(evidence: Evidence, attempts: Sequence[AttemptRecord]) -> list[tuple[Any, str, Any]]:
    """Everything that happened, in order of time: jobs, attempts, people's actions."""
    facts = evidence.facts
    events: list[tuple[Any, str, Any]] = [(job.created_at, "created", job) for job in facts.jobs]
    events += [(attempt.started_at, "attempt", attempt) for attempt in attempts]
    events += [(action.created_at, "action", action) for action in facts.actions]
    events += [(job.finished_at, "ended", job) for job in facts.jobs if job.finished_at is not None]
    return sorted(events, key=lambda event: event[0])


def desk(visit: Visit) -> PageAnswer:
    """The oldest one behind `after`; a decision leads to the next."""
    store, after = visit.app.store, id_of(visit, "after") or 0
    with store.read() as connection:
        selection = freeze(store, connection, "unresolved", DeadFilters(unknown=True))
        ids = select_ids(store, connection, selection, after, 2).ids
    if not ids:
        return visit.page("desk.html", job=None, after=after, unknown=visit.unresolved().unknown,
                          notice=notice(visit))  # fmt: skip
    evidence = visit.evidence(ids[0])
    return visit.page(
        "desk.html", **story_values(visit, evidence), decisions=DECISIONS, after=after, is_last=len(ids) == 1,
        unknown=visit.unresolved().unknown,
    )  # fmt: skip
