"""What a person may do with queues, limit keys, schedules and workers: the functions of the commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from effects.errors import EnqueueError
from effects.firing import fire_now
from effects.model.job import DEFAULT_QUEUE, QUARANTINE_QUEUE
from effects.store.limits import queue_pauses
from effects.store.limits import rows as limit_rows
from effects.store.operator.actions import request_drain
from effects.store.schedules import definitions
from effects.web.exchange import PageAnswer
from effects.web.people import Role
from effects.web.routes import View
from effects.web.visit import Visit

RunNamed: TypeAlias = Callable[[Visit, str, str | None, float | None], None]
# What a form offers for the length of a pause: words → seconds; the first: until it is resumed.
PAUSES = {"": None, "15 minutes": 900.0, "1 hour": 3_600.0, "6 hours": 21_600.0, "1 day": 86_400.0}


@dataclass(frozen=True, slots=True)
class SubjectAction:
    """One action on what has a name.

    Args:
        name: of its route. page: the list that it belongs to. verb: in its address.
        noun: what is named, such as `queue`.
        seconds: whether the form asks for how long.
    """

    name: str
    page: str
    verb: str
    noun: str
    role: Role
    button: str
    consequence: str
    run: RunNamed
    seconds: bool = False
    needs_reason: bool = False
    danger: bool = False


def subject_action_view(action: SubjectAction) -> View:
    """The page that asks, and by POST does it. The name is a field: it may hold any character."""

    def view(visit: Visit) -> PageAnswer:
        fields = visit.form if visit.request.is_unsafe else visit.query
        name = fields.get("name")
        if name is None:
            raise EnqueueError(f"the name of the {action.noun} is missing")
        if not visit.request.is_unsafe:
            return visit.page(
                "confirm.html", action=action, heading=f"{action.button}: {action.noun} {name}", sentence=None,
                consequence=action.consequence, target=visit.url(action.name), back=visit.url(action.page),
                hidden={"name": name}, seconds=action.seconds,
            )  # fmt: skip
        if fields.get("seconds", "") not in PAUSES:
            raise EnqueueError("there is no such length of a pause")
        with visit.acting():
            action.run(visit, name, fields.get("reason"), PAUSES[fields.get("seconds", "")])
        return visit.redirect(action.page, did=action.name)

    return view


def known_queues(visit: Visit) -> set[str]:
    """Queues that have workers or job types here, whether they hold jobs or not."""
    served = {DEFAULT_QUEUE, QUARANTINE_QUEUE, *visit.app.settings.queue_threads()}
    return served | {job_type.queue for job_type in visit.app.job_types}


def _pause_queue(visit: Visit, name: str, reason: str | None, seconds: float | None) -> None:
    store = visit.app.store
    with store.begin() as connection:
        queue_pauses.pause(
            store, connection, name, actor=visit.someone.actor, seconds=seconds, reason=reason,
            app_queues=known_queues(visit),
        )  # fmt: skip


def _resume_queue(visit: Visit, name: str, reason: str | None, _: float | None) -> None:
    store = visit.app.store
    with store.begin() as connection:
        queue_pauses.resume(
            store, connection, name, actor=visit.someone.actor, reason=reason, app_queues=known_queues(visit)
        )
    visit.site.notifier_app.notifier.send({name, QUARANTINE_QUEUE})  # jobs of this queue may wait in quarantine


def _pause_limit(visit: Visit, name: str, reason: str | None, seconds: float | None) -> None:
    with visit.app.store.begin() as connection:
        limit_rows.pause(visit.app.store, connection, name, actor=visit.someone.actor, seconds=seconds, reason=reason)


def _resume_limit(visit: Visit, name: str, reason: str | None, _: float | None) -> None:
    with visit.app.store.begin() as connection:
        limit_rows.resume(visit.app.store, connection, name, actor=visit.someone.actor, reason=reason)
    visit.site.notifier_app.notifier.send(known_queues(visit))  # in which its jobs wait is not known here


def _pause_schedule(visit: Visit, name: str, reason: str | None, _: float | None) -> None:
    definitions.pause(visit.app.store, name, actor=visit.someone.actor, reason=reason)


def _resume_schedule(visit: Visit, name: str, reason: str | None, _: float | None) -> None:
    definitions.resume(visit.app.store, name, actor=visit.someone.actor, reason=reason)


def _run_schedule(visit: Visit, name: str, reason: str | None, _: float | None) -> None:
    fire_now(visit.app, name, actor=visit.someone.actor, reason=reason)


def _drain(visit: Visit, name: str, reason: str | None, _: float | None) -> None:
    request_drain(visit.app.store, name, actor=visit.someone.actor, reason=reason)


SUBJECT_ACTIONS = (
    SubjectAction("queue_pause", "queues", "pause", "queue", "operator", "Pause", "No job of the queue starts until "
                  "the pause ends. Running jobs finish; a worker finishes what it has claimed, at most a second's "
                  "work.", _pause_queue, seconds=True),
    SubjectAction("queue_resume", "queues", "resume", "queue", "operator", "Resume", "Its jobs start again, as far as "
                  "limits and workers allow.", _resume_queue),
    SubjectAction("limit_pause", "limits", "pause", "limit key", "operator", "Pause", "No job of the key starts until "
                  "the pause ends. Running jobs finish. Paused time does not count towards the age of a job. A pause "
                  "that ends later is kept.", _pause_limit, seconds=True),
    SubjectAction("limit_resume", "limits", "resume", "limit key", "operator", "Resume", "The pause ends, and its "
                  "breaker closes. A pause of its parent key stays.", _resume_limit),
    SubjectAction("schedule_pause", "schedules", "pause", "schedule", "operator", "Pause", "No slot runs until it is "
                  "resumed, across deploys. Slots in the pause are not caught up.", _pause_schedule),
    SubjectAction("schedule_resume", "schedules", "resume", "schedule", "operator", "Resume", "It runs from its next "
                  "slot on.", _resume_schedule),
    SubjectAction("schedule_run", "schedules", "run", "schedule", "operator", "Run now", "A job is enqueued for this "
                  "moment, beside its slots. Where its key was used, nothing new runs.", _run_schedule),
    SubjectAction("worker_drain", "workers", "drain", "worker", "operator", "Drain", "With its next heartbeat it stops "
                  "claiming, finishes or returns its jobs within the grace period, and ends. A service manager that "
                  "always restarts it starts a fresh one.", _drain),
)  # fmt: skip
