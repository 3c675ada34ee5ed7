"""A backend for `django.tasks`, of Django 6 or the backport `django-tasks`: `TASKS = {"default": {"BACKEND":
"effects.contrib.django.tasks.TaskBackend"}}`.

A task is a job, written in the transaction that is open on the database of the effects. What became of it:

| the job | `TaskResult.status` |
|---|---|
| waits, for its first attempt or the next | READY |
| runs | RUNNING |
| its effect is done | SUCCESSFUL |
| it is dead or was cancelled | FAILED; `errors` have the exception of each attempt |
| its effect may have happened | FAILED; the last of `errors` is an `effects.EffectUnknown` |
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from os import getpid
from socket import gethostname
from traceback import format_exception
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.core import checks
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from effects.calls.enqueue import enqueue
from effects.contrib.django.project import ProjectEffects, project_app
from effects.errors import ConfigurationError, JobNotFound
from effects.keys.sealing import attempt_row, read_result, shown_text
from effects.kit import arguments
from effects.model.job import DEFAULT_PRIORITY, Attempt
from effects.model.job_type import JobType
from effects.model.outcome import OUTCOMES, Done, Outcome, Refused, Retry, Unknown
from effects.model.settlement import UNCOUNTED
from effects.operate.tables.lookup import find_effects
from effects.retry import ON_UNKNOWN
from effects.store.db.records import AttemptRecord, EffectStory
from effects.store.queue.job_rows import payload_of

_FRAMEWORK = "django.tasks" if find_spec("django.tasks") is not None else "django_tasks"
_base, _exceptions, _signals, _backends = (
    import_module(f"{_FRAMEWORK}.{name}") for name in ("base", "exceptions", "signals", "backends.base")
)
_Status = _base.TaskResultStatus
_TaskResult: Any = _base.TaskResult
_BaseTaskBackend: Any = _backends.BaseTaskBackend
_STATUSES = {
    "queued": _Status.READY, "retrying": _Status.READY, "running": _Status.RUNNING, "succeeded": _Status.SUCCESSFUL,
    "dead": _Status.FAILED, "cancelled": _Status.FAILED,
}  # fmt: skip
TASK, TASK_ASYNC = "django.task", "django.task_async"
TIME_LIMIT_SECONDS = 3600.0
_EXCEPTION = "exception"  # in the detail of an attempt: the path of what was raised
_UNKNOWN = "effects.EffectUnknown"
_WHAT_UNKNOWN_MEANS = (
    "EffectUnknown: the task may have happened, in full or in part, and is not run again by itself. Find out: "
    "`effects why {key}` tells what is known. Then run `effects resolve {key} --as done`, or "
    "`effects resolve {key} --as retry` to run it again"
)
# An attempt's outcome → what stands for it in `errors`, where its task raised no exception of its own.
_OUTCOMES = {"refused": "effects.Refused", "cancelled": "effects.Cancelled"}
_OPTIONS: dict[str, Callable[[object], str | None]] = {
    "on_unknown": arguments.one_of(ON_UNKNOWN), "max_attempts": arguments.whole(1, 1000),
}  # fmt: skip


class TaskCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a task, as its row holds it. `task` is the path of its function."""

    task: str
    backend: str
    enqueued_at: datetime
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str = _base.DEFAULT_TASK_QUEUE_NAME
    priority: int = 0
    run_after: datetime | None = None


class _NotKept:
    """In place of a return value that is not there: why."""

    def __init__(self, why: str) -> None:
        self.why = why


class EffectResult(_TaskResult):
    """A `TaskResult` whose return value may be one that could not be kept."""

    @property
    def return_value(self) -> Any:
        """
        Raises:
            ValueError: the task has not finished, it failed, or what it returned could not be kept; says which.
        """
        value = _TaskResult.return_value.fget(self)
        if isinstance(value, _NotKept):
            raise ValueError(value.why)
        return value


class TaskBackend(_BaseTaskBackend):
    """Writes tasks as jobs.

    OPTIONS: `on_unknown`, what becomes of a task that may have happened (`hold`, the default, or `repeat`,
    `repeat_once`); `max_attempts`, where it raises `effects.Retry` or is repeated.
    """

    supports_defer = supports_async_task = supports_get_result = supports_priority = True

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> EffectResult:
        """Write the task in the transaction that is open on the database of the effects, else in one of its own.

        Raises:
            InvalidTask: as of any backend.
            EnqueueError: as `effects.enqueue`.
        """
        self.validate_task(task)
        app = project_app()
        register(app)
        call = TaskCall(
            task=task.module_path, backend=self.alias, enqueued_at=timezone.now(), args=_base.normalize_json(args),
            kwargs=_base.normalize_json(kwargs), queue=task.queue_name, priority=task.priority,
            run_after=task.run_after,
        )  # fmt: skip
        result = _result(task, call, get_random_string(32))
        is_async = _base.iscoroutinefunction(task.func)
        queue = None if task.queue_name == _base.DEFAULT_TASK_QUEUE_NAME else task.queue_name
        enqueue(
            TASK_ASYNC if is_async else TASK, call, key=result.id, queue=queue, run_at=_aware(task.run_after),
            priority=DEFAULT_PRIORITY - int(task.priority), effects=app, **self.options,
        )  # fmt: skip
        tell = partial(_signals.task_enqueued.send, type(self), task_result=result)
        transaction.on_commit(tell, using=app.alias)
        return result

    def get_result(self, result_id: str) -> EffectResult:
        """What became of a task, whichever of our backends wrote it.

        Raises:
            TaskResultDoesNotExist: no task has this id, or retention has deleted its job.
        """
        app = project_app()
        try:
            with app.reading(app.current_session()) as connection:
                story = _story(find_effects(app.store, connection, app.ledgers, str(result_id)))
                payload = None if story is None else payload_of(app.store, connection, story.jobs[0].id)
        except JobNotFound:
            payload = story = None
        if story is None or payload is None:
            raise _exceptions.TaskResultDoesNotExist(result_id)
        return _read(app, story, msgspec.json.decode(payload, type=TaskCall))

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        """What is wrong with the backend's entry in TASKS, for `manage.py check`."""
        return [
            checks.Error(f"TASKS[{self.alias!r}]: {problem}", hint=hint, id=f"effects.E{number:03}")
            for number, problem, hint in self._problems()
        ]

    def _problems(self) -> Iterator[tuple[int, str, str]]:
        try:
            project_app()
        except ConfigurationError:
            yield 1, "the project has no Effects", "Add 'effects.contrib.django' to INSTALLED_APPS."
        for name, value in self.options.items():
            rule = _OPTIONS.get(name)
            if rule is None:
                yield 2, f"OPTIONS has {name!r}", f"The options are {', '.join(_OPTIONS)}."
            elif (why := rule(value)) is not None:
                yield 2, f"OPTIONS: {name} {why}", "See docs/from-django-tasks.md."
        for queue in sorted(self.queues, key=str):
            if (why := arguments.queue_name(queue)) is not None:
                yield 3, f"QUEUES: {queue!r} {why}", "Name it by letters, digits, '-', '_' and '.'."


def _aware(moment: datetime | None) -> datetime | None:
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment


def _path_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


# -- running -----------------------------------------------------------------------------------------------


class RunTask(JobType[TaskCall]):
    """Calls the function of a task that is no coroutine."""

    name = TASK
    payload = TaskCall
    result = True
    on_unknown = "hold"
    time_limit_seconds = TIME_LIMIT_SECONDS

    def perform(self, payload: TaskCall, attempt: Attempt) -> Any:
        """
        Raises:
            Exception: the task's own.
        """
        run = _Run(payload, attempt)
        attempt.release()
        run.begins()
        try:
            return run.returned(run.task.call(*run.args, **payload.kwargs))
        except BaseException as error:
            run.raised(error)
            raise

    def classify(self, error: Exception, *, released: bool) -> Outcome:
        """As of any job, with the path of the exception's class."""
        outcome = super().classify(error, released=released)
        if isinstance(outcome, Unknown | Retry | Refused):
            outcome.detail = {_EXCEPTION: _path_of(error)}
        return outcome


class RunAsyncTask(RunTask):
    """Awaits the function of a task that is a coroutine, on the worker's event loop."""

    name = TASK_ASYNC

    async def perform(self, payload: TaskCall, attempt: Attempt) -> Any:
        """
        Raises:
            Exception: the task's own.
        """
        run = await sync_to_async(_Run)(payload, attempt)  # its module may use the ORM as it is imported
        await attempt.release_async()
        run.begins()
        try:
            return run.returned(await run.task.acall(*run.args, **payload.kwargs))
        except BaseException as error:
            run.raised(error)
            raise


class _Run:
    """One attempt of a task: what its function is given, and what Django's signals tell of it."""

    def __init__(self, call: TaskCall, attempt: Attempt) -> None:
        """
        Raises:
            ImportError: this code has no such task; a newer release may.
        """
        self.task = _task(call)
        worker = f"{gethostname()}:{getpid()}"
        self._result = _result(self.task, call, str(attempt.job.key), worker_ids=[worker] * attempt.number)
        context = [_base.TaskContext(task_result=self._result)] if self.task.takes_context else []
        self.args = [*context, *call.args]

    def begins(self) -> None:
        self._set(status=_Status.RUNNING, started_at=timezone.now(), last_attempted_at=timezone.now())
        self._tell(_signals.task_started)

    def returned(self, value: Any) -> Any:
        """The attempt's answer. As Django has it in JSON, if it can be; what we make of another is told with it."""
        if issubclass(type(value), OUTCOMES):
            return value
        try:
            value = _base.normalize_json(value)
        except (TypeError, ValueError):
            return Done(result=value)
        self._set(status=_Status.SUCCESSFUL, _return_value=value)
        self._ends()
        return Done(result=value)

    def raised(self, error: BaseException) -> None:
        if not isinstance(error, OUTCOMES):
            text = "".join(format_exception(error))
            self._result.errors.append(_base.TaskError(exception_class_path=_path_of(error), traceback=text))
            self._set(status=_Status.FAILED)
            self._ends()

    def _ends(self) -> None:
        self._set(finished_at=timezone.now())
        self._tell(_signals.task_finished)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self._result, name, value)

    def _tell(self, signal: Any) -> None:
        """Whoever fails to listen changes nothing of the task."""
        signal.send_robust(TaskBackend, task_result=self._result)


def register(app: ProjectEffects) -> None:
    """Let the project's Effects carry out tasks."""
    if TASK not in app.job_types:
        app.add(RunTask(), RunAsyncTask())


# -- results -----------------------------------------------------------------------------------------------


def _task(call: TaskCall) -> Any:
    """
    Raises:
        ImportError: there is no such task.
    """
    return import_string(call.task).using(
        priority=call.priority, queue_name=call.queue, run_after=call.run_after, backend=call.backend
    )


def _result(task: Any, call: TaskCall, result_id: str, **facts: Any) -> EffectResult:
    nothing = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
    fields = {"status": _Status.READY, "errors": [], "worker_ids": [], **nothing, **facts}
    return EffectResult(
        task=task, id=result_id, enqueued_at=call.enqueued_at, args=call.args, kwargs=call.kwargs,
        backend=call.backend, **fields,
    )  # fmt: skip


def _story(stories: Sequence[EffectStory]) -> EffectStory | None:
    return next((each for each in stories if each.job_type in (TASK, TASK_ASYNC) and each.jobs), None)


def _read(app: ProjectEffects, story: EffectStory, call: TaskCall) -> EffectResult:
    newest = story.jobs[0]
    counted = [attempt for attempt in story.attempts if attempt.outcome not in UNCOUNTED]
    started = [attempt.started_at for attempt in counted]
    workers = [attempt.worker or "" for attempt in counted]
    if newest.status == "running":
        started.append(newest.started_at or newest.run_at)
        workers.append(newest.worker or "")
    status = _Status.SUCCESSFUL if story.state == "done" else _STATUSES[newest.status]
    result = _result(
        _task(call), call, str(story.key), status=status, worker_ids=workers,
        started_at=started[0] if started else None, last_attempted_at=started[-1] if started else None,
        finished_at=newest.finished_at, errors=[] if status == _Status.SUCCESSFUL else _errors(app, story),
    )  # fmt: skip
    if status == _Status.SUCCESSFUL:
        object.__setattr__(result, "_return_value", _returned(app, story.attempts))
    return result


def _returned(app: ProjectEffects, attempts: Sequence[AttemptRecord]) -> Any:
    attempt = next((each for each in reversed(attempts) if each.result is not None), None)
    if attempt is None:
        return _NotKept("the task is done, and no attempt of it returned a value that was kept")
    kept = read_result(app.keys, attempt.result, attempt_row(attempt.job_id, attempt.lease_token))
    return kept.value if kept.missing is None else _NotKept(kept.missing)


def _errors(app: ProjectEffects, story: EffectStory) -> list[Any]:
    """Of each attempt that failed, and last, if it has ended so, that the task may have happened."""
    errors = [_error(app, attempt) for attempt in story.attempts if attempt.outcome not in (*UNCOUNTED, "succeeded")]
    newest = story.jobs[0]
    if newest.status == "cancelled" and not errors:
        errors.append(("effects.Cancelled", newest.last_error or "it was cancelled before it began"))
    if story.state == "unknown" and newest.finished_at is not None:
        errors.append((_UNKNOWN, _WHAT_UNKNOWN_MEANS.format(key=story.key)))
    return [_base.TaskError(exception_class_path=path, traceback=f"{text}\n") for path, text in errors]


def _error(app: ProjectEffects, attempt: AttemptRecord) -> tuple[str, str]:
    """The path of an exception's class, and the text of a traceback: places, class and what is kept of its text."""
    detail = attempt.detail if isinstance(attempt.detail, dict) else {}
    path, name = detail.get(_EXCEPTION), attempt.error_type
    if path is None and name is not None and isinstance(getattr(builtins, name, None), type):
        path = f"builtins.{name}"  # such as SystemExit, which no job type classifies
    text = shown_text(app.keys, attempt.error_text, attempt_row(attempt.job_id, attempt.lease_token))
    if path is None:
        uncertain = _UNKNOWN if attempt.verdict == "unknown" else "effects.Retry"
        return _OUTCOMES.get(attempt.outcome, uncertain), f"{attempt.outcome}: {attempt.message or attempt.error_code}"
    places = [f"  {'' if frame.startswith('caused by') else 'at '}{frame}" for frame in attempt.frames]
    head = "Where it was raised, the most recent call first:"
    said = f"{name}: {text}" if text is not None else f"{name} (its text is not kept: EFFECTS_ERROR_TEXTS)"
    return path, "\n".join([head, *places, said])
