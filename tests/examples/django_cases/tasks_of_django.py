"""Django's own tests of its task framework, run on our backend: each task is written, and carried out by a worker.

They are those of Django 6. Before it, the backport stands for `django.tasks`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import iscoroutinefunction
from logging import getLogger
from typing import Any
from unittest import expectedFailure

from asgiref.sync import async_to_sync
from django import VERSION

if VERSION < (6,):
    import django_tasks

    sys.modules["django.tasks"] = django_tasks
    for name in ("base", "exceptions", "signals", "backends", "backends.base", "backends.dummy", "backends.immediate"):
        sys.modules[f"django.tasks.{name}"] = import_module(f"django_tasks.{name}")
    django_tasks.signals.logger = django_tasks.backends.immediate.logger = getLogger("django.tasks")
    django_tasks.exceptions.InvalidTask = django_tasks.exceptions.InvalidTaskError
    django_tasks.exceptions.InvalidTaskBackend = django_tasks.exceptions.InvalidTaskBackendError

from django.db import transaction
from django.test import TransactionTestCase, override_settings
from tasks import test_immediate_backend, test_tasks

from effects.contrib.django import app
from effects.contrib.django.tasks import EffectResult, TaskBackend
from effects.store.queue.job_rows import payloads
from effects.worker import Worker

KEEPS_RESULTS = "it is of a backend that keeps no results; ours does"
# What cannot pass, and why. One that passes all the same is a failure, as Python's `expectedFailure` has it.
CANNOT_PASS = {
    test_tasks.TaskTestCase: {
        "test_using_correct_backend": "it asks for Django's dummy backend by its class",
        "test_get_backend": "it asks for Django's dummy backend by its class",
    },
    test_immediate_backend.ImmediateBackendTestCase: {
        "test_using_correct_backend": "it asks for Django's immediate backend by its class",
        "test_cannot_get_result": KEEPS_RESULTS,
        "test_cannot_refresh_result": KEEPS_RESULTS,
        "test_cannot_pass_run_after": "ours takes run_after",
        "test_throws_keyboard_interrupt": "it is raised in a worker's thread, which is no one's keyboard",
        "test_complex_exception": "our traceback has places and no lines of the source",
        "test_complex_return_value": "the task has run, so it is SUCCESSFUL; `return_value` says why it was not kept",
    },
    test_immediate_backend.ImmediateBackendTransactionTestCase: {
        "test_doesnt_wait_until_transaction_commit_by_default": "a task runs once its transaction is committed",
    },
}
OURS = f"{__name__}."


class Recording(TaskBackend):
    """Has what Django's tests ask of the dummy backend."""

    @property
    def results(self) -> list[EffectResult]:
        return [self.get_result(row.idempotency_key) for row in payloads(app.store) if row.id not in self._cleared]

    def clear(self) -> None:
        self._cleared = {row.id for row in payloads(app.store)}


class Drained(TaskBackend):
    """A worker runs at once, unless the task is not committed."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> EffectResult:
        result = super().enqueue(task, args, kwargs)
        if not transaction.get_connection().in_atomic_block:
            Worker(app).drain()
        result.refresh()
        return result


class Ours(TransactionTestCase):
    available_apps = None


@override_settings(
    TASKS={
        "default": {"BACKEND": f"{OURS}Recording", "QUEUES": ["default", "queue_1"]},
        "immediate": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []},
        "missing": {"BACKEND": "does.not.exist"},
    }
)
class TaskTests(test_tasks.TaskTestCase, Ours):
    pass


@override_settings(TASKS={"default": {"BACKEND": f"{OURS}Drained", "QUEUES": []}})
class WorkerTests(test_immediate_backend.ImmediateBackendTestCase, Ours):
    pass


@override_settings(TASKS={"default": {"BACKEND": f"{OURS}Drained"}})
class TransactionTests(test_immediate_backend.ImmediateBackendTransactionTestCase, Ours):
    available_apps = None


def expected_to_fail(test: Any) -> Any:
    """On our backend, whichever the test itself names. An async one is run here: Django's way loses the mark."""
    test = getattr(test, "__wrapped__", test)

    def run(self: Any) -> None:
        async_to_sync(test)(self) if iscoroutinefunction(test) else test(self)

    return expectedFailure(run)


for tests in (TaskTests, WorkerTests, TransactionTests):
    of_django = tests.__bases__[0]
    for name in CANNOT_PASS[of_django]:
        setattr(tests, name, expected_to_fail(getattr(of_django, name)))
