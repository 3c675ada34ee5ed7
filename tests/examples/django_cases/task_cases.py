"""Tasks of Django on our backend, in the shop: written in its transaction, carried out by a worker, read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django import VERSION
from django.core.management import call_command
from django.db import transaction
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

if VERSION < (6,):
    from django_tasks import TaskResultStatus, default_task_backend, task, task_backends
    from django_tasks.exceptions import TaskResultDoesNotExist
else:
    from django.tasks import TaskResultStatus, default_task_backend, task, task_backends
    from django.tasks.exceptions import TaskResultDoesNotExist

from effects import Cancelled, EffectUnknown, Refused, Retry, cancel
from effects.app.retention import prune
from effects.contrib.django import app
from effects.contrib.django.project import TASK_BACKEND
from effects.contrib.django.testing import EffectsTests
from effects.errors import PayloadInvalid
from effects.operate.tables.audit import audit
from effects.store.effects.requeue import resolve_unknown
from effects.store.queue.job_rows import payloads
from effects.worker import Worker

RAN: list[Any] = []


@task()
def pack(order: int, *, note: str = "") -> dict[str, Any]:
    RAN.append(order)
    return {"order": order, "note": note, "grams": 1e23}


@task(priority=10)
async def ask(order: int) -> str:
    RAN.append(order)
    return f"asked {order}"


@task()
def fail(kind: str) -> None:
    raise {"value": ValueError("no such order"), "refused": Refused("no"), "retry": Retry("busy")}[kind]


@task()
def large() -> str:
    return "x" * 70_000


@task(takes_context=True)
def number(context: Any) -> list[Any]:
    return [context.attempt, context.task_result.id, str(context.task_result.status)]


@contextmanager
def rolled_back() -> Iterator[None]:
    with suppress(ZeroDivisionError), transaction.atomic():
        yield
        raise ZeroDivisionError


def backend(**entry: Any) -> dict[str, Any]:
    return {"BACKEND": TASK_BACKEND, "QUEUES": ["default", "slow"], **entry}


@override_settings(TASKS={"default": backend(), "other": backend(OPTIONS={"on_unknown": "repeat", "max_attempts": 1})})
class TaskCase(EffectsTests, TransactionTestCase):
    def setUp(self) -> None:
        super().setUp()
        RAN.clear()

    def run_worker(self, seconds: float = 0.0) -> None:
        app.store.shift_clock(seconds)
        Worker(app).drain()

    def tearDown(self) -> None:
        assert audit(app.store, app.ledgers) == []
        super().tearDown()


class TransactionTests(TaskCase):
    def test_what_is_rolled_back_was_never_enqueued(self) -> None:
        with rolled_back():
            lost = pack.enqueue(1)
            assert default_task_backend.get_result(lost.id).status == TaskResultStatus.READY
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(lost.id)
        self.run_worker()
        assert RAN == []

    def test_a_commit_enqueues_it(self) -> None:
        with transaction.atomic():
            kept = pack.enqueue(1, note="soon")
            assert payloads(app.store) == []
        self.run_worker()
        kept.refresh()
        assert (kept.status, kept.return_value) == (
            TaskResultStatus.SUCCESSFUL,
            {"order": 1, "note": "soon", "grams": 1e23},
        )

    def test_in_async_code(self) -> None:
        async def enqueue_and_read() -> tuple[Any, Any]:
            task_result = await ask.aenqueue(2)
            return task_result, await ask.aget_result(task_result.id)

        task_result, read = async_to_sync(enqueue_and_read)()
        assert task_result == read
        self.run_worker()
        assert (ask.get_result(task_result.id).return_value, RAN) == ("asked 2", [2])


class StateTests(TaskCase):
    def test_priorities_are_ours_the_other_way_round(self) -> None:
        for priority in (-100, 0, 100):
            assert pack.get_result(pack.using(priority=priority).enqueue(priority).id).task.priority == priority
        with app.store.read() as connection:
            jobs = app.store.tables["jobs"]
            rows = connection.execute(jobs.select().order_by(jobs.c.priority)).mappings()
            assert [row["priority"] for row in rows] == [-95, 5, 105]

    def test_run_after_is_waited_for(self) -> None:
        later = pack.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        self.run_worker()
        assert (pack.get_result(later.id).status, RAN) == (TaskResultStatus.READY, [])
        self.run_worker(3700)
        assert (pack.get_result(later.id).status, RAN) == (TaskResultStatus.SUCCESSFUL, [1])

    def test_queues_are_those_that_workers_serve(self) -> None:
        slow = pack.using(queue_name="slow").enqueue(1)
        assert [row.queue for row in payloads(app.store)] == ["slow"]
        assert "slow" in app.queues
        self.run_worker()
        assert pack.get_result(slow.id).task.queue_name == "slow"

    def test_a_context_tells_the_attempt(self) -> None:
        task_result = number.enqueue()
        self.run_worker()
        assert number.get_result(task_result.id).return_value == [1, task_result.id, "RUNNING"]

    def test_another_of_our_backends_reads_it_too(self) -> None:
        task_result = pack.using(backend="other").enqueue(1)
        assert default_task_backend.get_result(task_result.id).backend == "other"
        assert task_backends["other"].get_result(task_result.id) == task_result

    def test_an_exception_leaves_it_unknown_and_has_its_class(self) -> None:
        task_result = fail.enqueue("value")
        self.run_worker()
        result = fail.get_result(task_result.id)
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
        assert [error.exception_class for error in result.errors] == [ValueError, EffectUnknown]
        assert result.errors[0].traceback.endswith("ValueError: no such order\n")
        assert "may have happened, in full or in part" in result.errors[1].traceback
        assert f"effects resolve {result.id} --as retry" in result.errors[1].traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value

    def test_what_a_person_marks_as_done_is_successful(self) -> None:
        task_result = fail.enqueue("value")
        self.run_worker()
        job_id = payloads(app.store)[0].id
        resolve_unknown(app.store, app.job_types, app.ledgers, job_id, "mark-done", actor="cli:ann")
        result = fail.get_result(task_result.id)
        assert (result.status, result.errors) == (TaskResultStatus.SUCCESSFUL, [])
        with pytest.raises(ValueError, match="no attempt of it returned a value"):
            _ = result.return_value

    def test_an_outcome_says_what_happened(self) -> None:
        task_result = fail.enqueue("refused")
        self.run_worker()
        result = fail.get_result(task_result.id)
        assert (result.status, [error.exception_class for error in result.errors]) == (
            TaskResultStatus.FAILED,
            [Refused],
        )

    def test_what_waits_for_its_retry_is_ready(self) -> None:
        task_result = fail.enqueue("retry")
        self.run_worker()
        result = fail.get_result(task_result.id)
        assert (result.status, result.attempts, result.finished_at) == (TaskResultStatus.READY, 1, None)
        assert [error.exception_class for error in result.errors] == [Retry]

    def test_a_cancelled_one_has_failed(self) -> None:
        task_result = pack.enqueue(1)
        cancel(key=task_result.id, actor="app:shop", reason="no longer wanted", effects=app)
        result = pack.get_result(task_result.id)
        assert (result.status, [error.exception_class for error in result.errors]) == (
            TaskResultStatus.FAILED,
            [Cancelled],
        )

    def test_a_return_value_that_could_not_be_kept_says_why(self) -> None:
        task_result = large.enqueue()
        self.run_worker()
        result = large.get_result(task_result.id)
        assert result.status == TaskResultStatus.SUCCESSFUL
        with pytest.raises(ValueError, match="70,002 bytes as JSON and the limit is 65,536"):
            _ = result.return_value

    def test_what_retention_removed_does_not_exist(self) -> None:
        task_result = pack.enqueue(1)
        self.run_worker()
        app.store.shift_clock(app.settings.retention_jobs_days * 86_400 + 60)
        assert prune(app).jobs == 1
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(task_result.id)

    def test_too_much_to_be_written_is_an_error_at_the_call(self) -> None:
        with pytest.raises(PayloadInvalid, match="the limit is 65,536"):
            pack.enqueue(1, note="x" * 70_000)


class CheckTests(TaskCase):
    def test_a_project_without_mistakes_passes(self) -> None:
        call_command("check")

    def test_options_and_queues_are_checked(self) -> None:
        wrong = {"on_unknown": "maybe", "max_attempts": 0, "colour": "red"}
        with override_settings(TASKS={"default": backend(OPTIONS=wrong, QUEUES=["a,b"])}):
            problems = list(task_backends["default"].check())
            assert [problem.id for problem in problems] == ["effects.E002"] * 3 + ["effects.E003"]
            assert "give one of repeat, repeat_once, hold" in problems[0].msg
