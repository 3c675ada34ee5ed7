"""The story of an effect: what became of it, how that is known, why it waits, and what may be done."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from effects.observation.evidence import Evidence, find_evidence, find_orphans
from effects.observation.sentences import orphan_sentence, sentence, wait_text
from effects.store.audit_log.looks import REVEAL_JOB
from effects.store.db.records import AttemptRecord
from effects.web import failures
from effects.web.charts import steps
from effects.web.exchange import PageAnswer
from effects.web.job_actions import JOB_ACTIONS, route_name
from effects.web.views.notices import notice
from effects.web.visit import Visit

QUESTION_CHARS_MAX = 255
ATTEMPTS_MAX = 100  # of a job that is put off again and again there may be thousands
_MESSAGE_ID = re.compile(r"<[^<>@\s]+@[^<>\s]+>")
_RESUMES = {"resume-queue": "queue_resume", "resume-limit": "limit_resume"}


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
        return visit.page("why.html", question=None, stories=[], orphans=[])
    if "@" in question and not _MESSAGE_ID.fullmatch(question):
        if not visit.someone.personal:
            assert visit.route is not None
            return failures.forbidden(visit, visit.route, "looking up an address needs the capability personal")
        visit.note_address(question)
    orphans = find_orphans(visit.app, question)
    stories = find_evidence(visit.app, question, may_be_none=True)
    if len(stories) == 1 and stories[0].facts.jobs and not orphans:
        return visit.redirect("job", id=stories[0].facts.jobs[0].id)
    described = [
        (sentence(story), story.state, story.facts.jobs[0].id if story.facts.jobs else None) for story in stories
    ]
    return visit.page(
        "why.html", question=question, stories=described, orphans=[orphan_sentence(orphan) for orphan in orphans]
    )


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
    return sum(steps(attempt.phases_ms).values())


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
        elif advice.name in _RESUMES and evidence.waits is not None:
            buttons.append({
                "button": f"Resume {evidence.waits.name}",
                "url": visit.url(_RESUMES[advice.name], name=evidence.waits.name), "danger": False,
                "allowed": visit.someone.may("operator"), "role": "operator", "command": advice.command,
            })  # fmt: skip
        else:
            buttons.append({"button": None, "command": advice.command})
    return buttons


def _timeline(evidence: Evidence, attempts: Sequence[AttemptRecord]) -> list[tuple[Any, str, Any]]:
    """Everything that happened, in order of time: jobs, attempts, people's actions."""
    facts = evidence.facts
    events: list[tuple[Any, str, Any]] = [(job.created_at, "created", job) for job in facts.jobs]
    events += [(attempt.started_at, "attempt", attempt) for attempt in attempts]
    events += [(action.created_at, "action", action) for action in facts.actions]
    events += [(job.finished_at, "ended", job) for job in facts.jobs if job.finished_at is not None]
    # A time out of range is a text, and comes first.
    return sorted(events, key=lambda event: ("", event[0]) if isinstance(event[0], str) else (event[0].isoformat(), ""))
