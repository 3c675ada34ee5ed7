"""What a person may do with queues, limit keys, schedules, workers and bulk actions: the functions of the commands."""

from __future__ import annotations

from collections.abc import Callable

from effects.bulk import cancel_bulk
from effects.errors import EnqueueError
from effects.model.job import QUARANTINE_QUEUE
from effects.scheduling.firing import fire_now
from effects.store.limits import queue_pauses
from effects.store.limits import rows as limit_rows
from effects.store.operator.actions import request_drain
from effects.store.schedules import definitions
from effects.text.digits import whole_number
from effects.web.actions import ActionCall, ActionEnd, ActionField, PageAction
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
    store = call.visit.app.store
    with store.begin() as connection:
        limit_rows.resume(store, connection, call.subject, actor=call.actor, reason=call.reason)
    call.visit.notify(call.visit.app.queues)  # in which its jobs wait is not known here


def _pause_schedule(call: ActionCall) -> None:
    definitions.pause(call.visit.app.store, call.subject, actor=call.actor, reason=call.reason)


def _resume_schedule(call: ActionCall) -> None:
    definitions.resume(call.visit.app.store, call.subject, actor=call.actor, reason=call.reason)


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
