"""The core's own actions: on a job, and on a queue, a limit, a schedule, a worker or a bulk action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from effects.app.firing import fire_now
from effects.errors import EnqueueError, JobStateError
from effects.kit.text.unsafe import whole_number
from effects.model.advice import Action
from effects.model.job import QUARANTINE_QUEUE
from effects.operate.bulk import cancel_bulk
from effects.operate.evidence import Evidence
from effects.operate.sentences import sentence
from effects.operate.tables.actions import request_drain
from effects.store import schedules
from effects.store.effects.requeue import Resolution, ignore, requeue, resolve_unknown
from effects.store.limits import key_limits as limit_rows
from effects.store.limits import queue_pauses
from effects.store.queue import cancellation
from effects.web.actions import ActionCall, ActionEnd, ActionField, PageAction
from effects.web.exchange import PageAnswer
from effects.web.routes import View
from effects.web.security import Role
from effects.web.visit import Visit

# What a form offers for the length of a pause: words → seconds; the first: until it is resumed.
PAUSES = {
    "until it is resumed": None, "15 minutes": 900.0, "1 hour": 3_600.0, "6 hours": 21_600.0, "1 day": 86_400.0,
}  # fmt: skip
_LENGTH = ActionField("seconds", "For how long", "choice", tuple(PAUSES))


def _to(page: str) -> Callable[[Visit, str], str]:
    return lambda visit, name: visit.url(page)


def _pause_queue(call: ActionCall) -> None:
    store = call.visit.app.store
    with store.begin() as connection:
        queue_pauses.pause(
            store, connection, call.subject, actor=call.actor, seconds=PAUSES[call.fields["seconds"]],
            reason=call.reason, app_queues=call.visit.app.queues,
        )  # fmt: skip


def _resume_queue(call: ActionCall) -> None:
    app = call.visit.app
    with app.store.begin() as connection:
        queue_pauses.resume(
            app.store, connection, call.subject, actor=call.actor, reason=call.reason, app_queues=app.queues
        )
    call.visit.notify({call.subject, QUARANTINE_QUEUE})  # jobs of this queue may wait in quarantine


def _pause_limit(call: ActionCall) -> None:
    store, seconds = call.visit.app.store, PAUSES[call.fields["seconds"]]
    with store.begin() as connection:
        limit_rows.pause(store, connection, call.subject, actor=call.actor, seconds=seconds, reason=call.reason)


def _resume_limit(call: ActionCall) -> None:
    call.visit.resume_limit(call.subject, call.reason)


def _pause_schedule(call: ActionCall) -> None:
    schedules.pause(call.visit.app.store, call.subject, actor=call.actor, reason=call.reason)


def _resume_schedule(call: ActionCall) -> None:
    schedules.resume(call.visit.app.store, call.subject, actor=call.actor, reason=call.reason)


def _run_schedule(call: ActionCall) -> ActionEnd:
    fired = fire_now(call.visit.app, call.subject, actor=call.actor, reason=call.reason)
    return ActionEnd(count=int(fired.outcome == "enqueued"))


def _drain(call: ActionCall) -> None:
    request_drain(call.visit.app.store, call.subject, actor=call.actor, reason=call.reason)


def _cancel_bulk(call: ActionCall) -> None:
    bulk_id = whole_number(call.subject)
    if bulk_id is None:
        raise EnqueueError("this is not the id of a bulk action")
    cancel_bulk(bulk_id, actor=call.actor, reason=call.reason, effects=call.visit.app)


def _to_bulk(visit: Visit, name: str) -> str:
    return visit.url("bulk", id=name) if whole_number(name) is not None else visit.url("bulks")


SUBJECT_ACTIONS = (
    PageAction("queue_pause", "/queues/pause", "queue", "operator", "Pause", "No job of the queue starts until "
               "the pause ends. Running jobs finish; a worker finishes what it has claimed, at most a second's "
               "work.", "The queue is paused.", _pause_queue, _to("queues"), fields=(_LENGTH,)),
    PageAction("queue_resume", "/queues/resume", "queue", "operator", "Resume", "Its jobs start again, as far as "
               "limits and workers allow.", "The queue runs again.", _resume_queue, _to("queues")),
    PageAction("limit_pause", "/limits/pause", "limit key", "operator", "Pause", "No job of the key starts until "
               "the pause ends. Running jobs finish. Paused time does not count towards the age of a job. A pause "
               "that ends later is kept.", "The limit key is paused.", _pause_limit, _to("limits"), fields=(_LENGTH,)),
    PageAction("limit_resume", "/limits/resume", "limit key", "operator", "Resume", "The pause ends, and its "
               "breaker closes. A pause of its parent key stays.", "The limit key runs again.", _resume_limit,
               _to("limits")),
    PageAction("schedule_pause", "/schedules/pause", "schedule", "operator", "Pause", "No slot runs until it is "
               "resumed, across deploys. Slots in the pause are not caught up.", "The schedule is paused.",
               _pause_schedule, _to("schedules")),
    PageAction("schedule_resume", "/schedules/resume", "schedule", "operator", "Resume", "It runs from its next "
               "slot on.", "The schedule runs again from its next slot on.", _resume_schedule, _to("schedules")),
    PageAction("schedule_run", "/schedules/run", "schedule", "operator", "Run now", "A job is enqueued for this "
               "moment, beside its slots. Where its key was used, nothing new runs.",
               "It has run for this moment. New jobs: {n}; with 0, its key was used.", _run_schedule, _to("schedules")),
    PageAction("worker_drain", "/workers/drain", "worker", "operator", "Drain", "With its next heartbeat it stops "
               "claiming, finishes or returns its jobs within the grace period, and ends. A service manager that "
               "always restarts it starts a fresh one.", "The worker will drain from its next heartbeat on.", _drain,
               _to("workers")),
    PageAction("bulk_cancel", "/bulk/cancel", "bulk action", "operator", "Cancel", "It ends before its next chunk of "
               "200 jobs. What it has done stays done.", "Cancelled: what it has done stays done.", _cancel_bulk,
               _to_bulk),
)  # fmt: skip


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
    if not action.command.startswith(("effects retry ", "effects cancel ", "effects resolve ")):
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
    return cancellation.cancel(app.store, app.ledgers, job_id, actor=visit.someone.actor, reason=reason)


def _run_now(visit: Visit, job_id: int, reason: str | None) -> str:
    visit.run_now(job_id, reason)
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
        resolve_unknown(
            app.store, app.job_types, app.ledgers, job_id, resolution, actor=visit.someone.actor, reason=reason
        )
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
