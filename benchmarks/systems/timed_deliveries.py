"""`deliveries`, with a stopwatch at each part: CPU of the calling thread, added up; printed at the end.

A part inside another is taken out of it, so that the parts add up to what is known of the process.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.systems.deliveries import app
from effects.worker import Worker, batch_loader, dispatcher, verdicts
from effects.worker.attempt import RunningAttempt
from effects_webhooks.jobs import deliver
from effects_webhooks.transport.http import WebhookTransports

PARTS: dict[str, list[tuple[Any, str]]] = {
    "claim": [(dispatcher.Claimer, "claim")],
    "load": [(batch_loader.BatchLoader, "attempts")],
    "sign": [(deliver.WebhookDelivery, "_headers"), (deliver.WebhookDelivery, "_key")],
    "transport": [(WebhookTransports, "post")],
    "classify": [(deliver, "classify")],
    "decide": [(RunningAttempt, "settle")],
    "settle": [(verdicts, "settle")],
}
REST = "the rest: threads, queues, log"


class Stopwatch:
    """CPU seconds by part, over all threads."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inner = threading.local()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its CPU noted under `part`."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                return await _Steps(function(*args, **kwargs), functools.partial(self._noting, part))

            return run_async

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._noting(part):
                return function(*args, **kwargs)

        return run

    @contextmanager
    def _noting(self, part: str) -> Iterator[None]:
        before, self._inner.seconds = getattr(self._inner, "seconds", 0.0), 0.0
        begun = time.thread_time()
        try:
            yield
        finally:
            took = time.thread_time() - begun
            self.seconds[part] += took - self._inner.seconds  # a race between threads loses next to nothing
            self._inner.seconds = before + took


class _Steps:
    """A coroutine of which each step is noted, and no wait between two."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], noting: Callable[[], AbstractContextManager[None]]) -> None:
        self._coroutine, self._noting = coroutine, noting

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            while True:
                with self._noting():
                    future = self._coroutine.send(None)
                yield future
        except StopIteration as ended:
            return ended.value


def work(keys: str, database: str) -> None:
    """Prints JSON: part → CPU seconds."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    stopwatch = Stopwatch()
    for part, places in PARTS.items():
        for owner, name in places:
            setattr(owner, name, stopwatch.timed(part, getattr(owner, name)))
    worker = Worker(app(database, keys))
    await_go()
    before = time.process_time()
    worker.drain(max_seconds=WORK_SECONDS)
    whole = time.process_time() - before
    print(json.dumps({**stopwatch.seconds, REST: whole - stopwatch.seconds.total()}), flush=True)
