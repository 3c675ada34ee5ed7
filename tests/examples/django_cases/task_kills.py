"""Workers that are killed at any statement, callback of their event loop, or step of a task: no task is lost, none is
carried out again without a record, and each result is what its function returned.

KILLS is the number of workers, KILLS_SEED draws where each is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django import VERSION
from django.conf import settings
from django.db import connections, transaction
from django.test import TransactionTestCase, override_settings
from sqlalchemy import Engine, event

if VERSION < (6,):
    from django_tasks import TaskResultStatus, task
else:
    from django.tasks import TaskResultStatus, task

from effects import EffectUnknown
from effects.contrib.django import app
from effects.contrib.django.project import TASK_BACKEND
from effects.contrib.django.testing import EffectsTests
from effects.operate.tables.audit import audit
from effects.store.queue.job_rows import payloads
from effects.worker import Worker

TASKS = 6
LATER_SECONDS = 400.0  # past the lease of a worker that was killed, and past each retry
ROUNDS_MAX = 8  # until nothing waits: a job that has lost its worker waits in quarantine
WORLD = Path(settings.DATA_DIR) / "world.txt"  # what happened outside of the database: a line a time


class Steps:
    """Counts the steps of a worker, and kills it at one of them."""

    def __init__(self, fatal: int | None) -> None:
        self.count, self._fatal, self._lock = 0, fatal, threading.Lock()

    def step(self, *_: Any, **__: Any) -> None:
        with self._lock:
            self.count += 1
            if self.count == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(Engine, name, self.step)
        run: Callable[[asyncio.Handle], None] = asyncio.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            self.step()
            run(handle)

        asyncio.Handle._run = counted  # type: ignore[method-assign]


steps = Steps(None)


def happen(number: int) -> str:
    """The effect: one write, in full or not at all."""
    steps.step()
    descriptor = os.open(WORLD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{number}\n".encode())
    os.close(descriptor)
    steps.step()
    return f"done {number}"


@task()
def blocking(number: int) -> dict[str, Any]:
    return {"said": happen(number), "number": number}


@task()
async def awaiting(number: int) -> list[Any]:
    await asyncio.sleep(0)
    said = happen(number)
    await asyncio.sleep(0)
    return [said, number]


def returned(number: int, *, is_async: bool) -> Any:
    return [f"done {number}", number] if is_async else {"said": f"done {number}", "number": number}


def worker_dies(fatal: int | None) -> int | None:
    """A forked worker does what is due. How many steps it took; None if it was killed."""
    connections.close_all()
    for engine in app.store.engines:
        engine.dispose()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            steps.__init__(fatal)  # type: ignore[misc]
            steps.watch()
            Worker(app).drain(20)
            os.write(writing, str(steps.count).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        steps_taken = pipe.read()
    os.waitpid(child, 0)
    return int(steps_taken) if steps_taken else None


BACKENDS = {
    "default": {"BACKEND": TASK_BACKEND, "QUEUES": ["default"]},
    "repeat": {"BACKEND": TASK_BACKEND, "QUEUES": ["default"], "OPTIONS": {"on_unknown": "repeat"}},
}


@override_settings(TASKS=BACKENDS)
class KillTests(EffectsTests, TransactionTestCase):
    def enqueue(self) -> dict[int, Any]:
        WORLD.unlink(missing_ok=True)
        with transaction.atomic():
            results = {}
            for number in range(TASKS):
                kind = (blocking, awaiting)[number % 2].using(backend=("default", "repeat")[number // 2 % 2])
                results[number] = kind.enqueue(number)
            return results

    def end(self) -> None:
        for _ in range(ROUNDS_MAX):
            app.store.shift_clock(LATER_SECONDS)
            Worker(app).drain()
            if all(row.status not in ("queued", "failed", "running") for row in payloads(app.store)):
                return
        raise AssertionError("a task still waits")

    def check(self, results: dict[int, Any]) -> None:
        happened = Counter(map(int, WORLD.read_text().split())) if WORLD.exists() else Counter[int]()
        for number, result in results.items():
            result.refresh()
            if result.status == TaskResultStatus.SUCCESSFUL:
                assert result.return_value == returned(number, is_async=number % 2 == 1)
                assert happened[number] >= 1
            else:  # it may have happened: held
                assert result.backend == "default"
                assert result.errors[-1].exception_class is EffectUnknown
                assert happened[number] <= 1
            assert happened[number] <= result.attempts
        assert audit(app.store, app.ledgers) == []

    def test_no_task_is_lost(self) -> None:
        results = self.enqueue()
        whole = worker_dies(None)
        assert whole is not None
        assert whole > 50
        self.end()
        self.check(results)
        assert all(result.status == TaskResultStatus.SUCCESSFUL for result in results.values())
        seed = os.environ.get("KILLS_SEED", "1")
        draw, killed, held = random.Random(seed), 0, 0
        for kill in range(int(os.environ.get("KILLS", "4"))):
            with self.subTest(seed=seed, kill=kill, step=(fatal := draw.randint(1, whole))):
                results = self.enqueue()
                killed += worker_dies(fatal) is None
                self.end()
                self.check(results)
                held += sum(result.status == TaskResultStatus.FAILED for result in results.values())
        print(f"seed {seed}: {killed} workers killed in {whole} steps, {held} tasks held as unknown")
        assert killed > 0
