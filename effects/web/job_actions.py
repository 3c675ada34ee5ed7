"""What a person may do with one job: the functions of the commands, each behind a page that says what will happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from effects.errors import JobStateError
from effects.model.advice import Action
from effects.observation.evidence import Evidence
from effects.observation.sentences import sentence
from effects.store.operator import actions
from effects.store.operator.requeue import requeue
from effects.store.operator.resolve import Resolution, ignore, resolve
from effects.web.exchange import PageAnswer
from effects.web.people import Role
from effects.web.routes import View
from effects.web.visit import Visit

Run: TypeAlias = Callable[[Visit, int, str | None], str]


@dataclass(frozen=True, slots=True)
class JobAction:
    """One action on a job.

    Args:
        name: of its route, and in addresses.
        button: what the person presses; an imperative.
        consequence: what will happen, in a sentence or two.
        run: does it, and says under which notice it is reported.
        danger: whether an effect may be made twice.
    """

    name: str
    role: Role
    button: str
    consequence: str
    run: Run
    needs_reason: bool = False
    danger: bool = False


def route_name(action: Action) -> str | None:
    """The action of ours that does what this advice says; None where only its command does."""
    if not action.command.startswith(("effects jobs ", "effects dead ")):
        return None
    if action.name == "requeue":
        return {None: "requeue", "even_if_unknown": "requeue-unknown", "even_if_done": "requeue-done"}[
            action.confirmation
        ]
    return action.name if any(action.name == own.name for own in JOB_ACTIONS) else None


def job_action_view(action: JobAction) -> View:
    """The page that asks, and by POST does it."""

    def view(visit: Visit) -> PageAnswer:
        job_id = int(visit.values["id"])
        if not visit.request.is_unsafe:
            return _ask(visit, action, visit.evidence(job_id), job_id)
        reason = visit.reason(needed=action.needs_reason)
        with visit.acting():
            notice = action.run(visit, job_id, reason)
        if visit.form.get("next") == "desk":
            return visit.redirect("desk", after=job_id, did=notice)
        return visit.redirect("job", id=int(visit.values["id"]), did=notice)

    return view


def _ask(visit: Visit, action: JobAction, evidence: Evidence, job_id: int) -> PageAnswer:
    if action.name not in {route_name(advice) for advice in evidence.next}:
        raise JobStateError(f"{action.button} is not possible: {sentence(evidence)}")
    return visit.page(
        "confirm.html", action=action, heading=f"{action.button}: job {job_id}", sentence=sentence(evidence),
        consequence=action.consequence, target=visit.url(f"job_{action.name}", id=job_id),
        back=visit.url("job", id=job_id), hidden={}, fields=(),
    )  # fmt: skip


def _cancel(visit: Visit, job_id: int, reason: str | None) -> str:
    app = visit.app
    return actions.cancel(app.store, app.ledgers, job_id, actor=visit.someone.actor, reason=reason)


def _run_now(visit: Visit, job_id: int, reason: str | None) -> str:
    queue = actions.run_now(visit.app.store, job_id, actor=visit.someone.actor, reason=reason)
    visit.notify([queue])
    return "due"


def _requeue(*, unknown: bool = False, done: bool = False) -> Run:
    def run(visit: Visit, job_id: int, reason: str | None) -> str:
        requeued = requeue(
            visit.app.store, visit.app.job_types, job_id, confirm_unknown=unknown, confirm_done=done,
            actor=visit.someone.actor, reason=reason,
        )  # fmt: skip
        visit.notify([requeued.queue])
        visit.values["id"] = str(requeued.job_id)
        return "requeued"

    return run


def _resolve(resolution: Resolution) -> Run:
    def run(visit: Visit, job_id: int, reason: str | None) -> str:
        app = visit.app
        resolve(app.store, app.job_types, app.ledgers, job_id, resolution, actor=visit.someone.actor, reason=reason)
        return resolution

    return run


def _ignore(visit: Visit, job_id: int, reason: str | None) -> str:
    app = visit.app
    ignore(app.store, app.ledgers, job_id, actor=visit.someone.actor, reason=reason or "")
    return "ignored"


_AGAIN = "A new job carries the effect out; this one stays in the history as it is."
JOB_ACTIONS = (
    JobAction("run-now", "operator", "Run it now", "It falls due at once. Pauses, limits and the order of its group "
              "still hold.", _run_now),
    JobAction("cancel", "operator", "Cancel it", "A waiting job ends at once, and its effect is not made. A running "
              "attempt is not interrupted: if its effect still happens, it is recorded as done; otherwise it is not "
              "tried again.", _cancel),
    JobAction("requeue", "operator", "Requeue it", _AGAIN, _requeue()),
    JobAction("requeue-unknown", "operator", "Try it again", f"{_AGAIN} The effect may have happened already: then it "
              "happens twice.", _requeue(unknown=True), danger=True),
    JobAction("requeue-done", "admin", "Do it once more", f"{_AGAIN} The effect has happened: it happens a second "
              "time.", _requeue(done=True), danger=True),
    JobAction("mark-done", "operator", "It happened", "The effect is recorded as done, on your word. Its key is done "
              "from now on, and nothing tries it again.", _resolve("mark-done")),
    JobAction("give-up", "operator", "Leave it unknown", "The effect stays unknown forever, and nothing tries it "
              "again.", _resolve("give-up")),
    JobAction("ignore", "operator", "Ignore it", "It is resolved without an action: the effect is not made, and "
              "retention may delete the job.", _ignore, needs_reason=True),
)  # fmt: skip

# What decides about an effect that may have happened; what may make it twice comes last.
DECISIONS = tuple(
    action for name in ("mark-done", "give-up", "requeue-unknown") for action in JOB_ACTIONS if action.name == name
)
