"""asyncio's event loop as the worker uses it: run by one thread, called from others, ended with all that is left on it.

Part of the seam `runtime`, which makes the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from effects.logs import error_places

CLOSE_SECONDS = 1.0  # for tasks that are cancelled at the end of the loop
HELPERS_MAX = 32  # threads for what handlers call by `asyncio.to_thread`, and for names that are resolved
REST_SECONDS = 10.0

Answer = TypeVar("Answer")
Start: TypeAlias = Callable[[Callable[[], None], str], threading.Thread]
_owner: ContextVar[Any] = ContextVar("effects_attempt", default=None)
_log = logging.getLogger("effects.worker")


def runs_here() -> bool:
    """Whether the calling code runs on an event loop, which waits while it does."""
    return asyncio._get_running_loop() is not None


async def answer(ask: Callable[[Callable[[Answer | Exception], None]], None]) -> Answer:
    """Await what another thread answers; an exception is raised.

    Args:
        ask: called at once, with the function that the other thread is to call with its answer.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def resolve(value: Answer | Exception) -> None:
        if future.done():  # its task was cancelled
            return
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)

    def take(value: Answer | Exception) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(resolve, value)

    ask(take)
    return await future


class EventLoop:
    """One loop. Only `call`, `stop` and `owner` may be used by other threads than the one that runs it.

    Args:
        start: starts a thread, as `Runtime.start`.
    """

    def __init__(self, start: Start) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_DaemonThreads(start))
        self._loop.set_task_factory(self._new_task)
        self._loop.set_exception_handler(_log_unhandled)
        self._owners: WeakKeyDictionary[asyncio.Future[Any], object] = WeakKeyDictionary()
        self._stopped = False
        self._fault: BaseException | None = None

    def call(self, function: Callable[[], object]) -> None:
        """Have the loop's thread call this soon. What it raises ends the loop. Nothing happens once that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._guarded, function)

    def task(
        self, coroutine: Coroutine[Any, Any, Answer], owner: object, ended: Callable[[asyncio.Task[Answer]], object]
    ) -> Callable[[], object]:
        """Run a coroutine as a task; what cancels it.

        Args:
            owner: whose code runs while this task, or one that it started, does.
            ended: called with the task at its end.
        """
        context = copy_context()
        context.run(_owner.set, owner)
        task = self._loop.create_task(coroutine, context=context)
        self._owners[task] = owner
        task.add_done_callback(lambda task: self._guarded(lambda: ended(task)))
        return task.cancel

    def owner(self) -> object | None:
        """Whose task the loop is executing at this moment."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._owners.get(task)

    def run(self) -> None:
        """Run until `stop`, on the calling thread, which then calls `close`.

        Raises:
            BaseException: what a function of `call` raised.
        """
        while not self._stopped:
            with suppress(KeyboardInterrupt, SystemExit):  # of a handler's own task, which has it as its result
                self._loop.run_forever()
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """End `run`."""
        self.call(self._stop)

    def _stop(self) -> None:
        self._stopped = True
        self._loop.stop()

    def _guarded(self, function: Callable[[], object]) -> None:
        """asyncio would log an error of a callback and go on."""
        try:
            function()
        except BaseException as error:
            self._fault = self._fault or error
            self._stop()

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Answer] | Generator[Any, None, Answer],
        **options: Any,
    ) -> asyncio.Task[Answer]:  # fmt: skip
        task = asyncio.Task(coroutine, loop=loop, **options)
        if (owner := _owner.get()) is not None:
            self._owners[task] = owner
        return task

    def close(self) -> None:
        """Cancel what is left, and give it a second."""
        try:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_SECONDS))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except (KeyboardInterrupt, SystemExit, RuntimeError) as error:
            _log.warning("loop.end_failed", extra={"error": type(error).__name__, "at": error_places(error)})
        finally:
            self._loop.close()


def _log_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler would print the error's text, and what the task returned."""
    error = context.get("exception")
    facts = {} if error is None else {"error": type(error).__name__, "at": error_places(error)}
    _log.error("loop.unhandled", extra={"reason": context["message"], **facts})


class _DaemonThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`, at most 32: Python's own would keep the process alive while one hangs."""

    def __init__(self, start: Start) -> None:
        super().__init__(HELPERS_MAX)
        self._start = start
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive = self._unfinished = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            self._unfinished += 1
            missing = self._alive < min(self._unfinished, HELPERS_MAX)
            self._alive += missing
        self._calls.put(call)
        if missing:
            self._start(self._work, "effects-loop-helper")
        return future

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # or what it holds would live until the next one
            with self._lock:
                self._unfinished -= 1

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._calls.get(timeout=REST_SECONDS)
            except Empty:
                with self._lock:  # whoever submits now counts the threads after us
                    if self._unfinished < self._alive:
                        self._alive -= 1
                        return None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(self._alive):
            self._calls.put(None)
