"""asyncio's event loop as the worker uses it: run by one thread, called from others, ended with all that is left on it.

Part of the seam `runtime`, which makes the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from effects.logs import error_places
from effects.process.long_calls import use_for_long_calls
from effects.worker.machine.helper_threads import HELPERS_MAX, LONG_CALLS_MAX, HelperThreads, Start

CLOSE_SECONDS = 1.0  # for tasks that are cancelled at the end of the loop
CALLBACK_FAILED = "Exception in callback"
NOT_FOR_HANDLERS = ("set_default_executor", "shutdown_asyncgens", "shutdown_default_executor")

Answer = TypeVar("Answer")
Unhandled: TypeAlias = Callable[[str, "BaseException | None", object], object]
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
    """One loop. Only `call`, `stop`, `owner` and `after_calls` may be used by other threads than the one that runs it.

    Those whose tasks run on it share it: what would end it for all of them is refused.

    Args:
        start: starts a thread, as `Runtime.start`.
    """

    def __init__(self, start: Start) -> None:
        self._loop = asyncio.new_event_loop()
        self._helpers = HelperThreads(start, _owner.get, HELPERS_MAX)
        self._long_calls = HelperThreads(start, _owner.get, LONG_CALLS_MAX)
        self._loop.set_default_executor(self._helpers)
        self._loop.set_task_factory(self._new_task)
        self._loop.set_exception_handler(self._tell_unhandled)
        self._unhandled: Unhandled = lambda *_: None
        self._end_generators = self._loop.shutdown_asyncgens
        for name in NOT_FOR_HANDLERS:
            setattr(self._loop, name, partial(_refuse, name))
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
        context.run(use_for_long_calls, self._long_calls)
        task = asyncio.Task(coroutine, loop=self._loop, context=context)  # handlers may change what makes their own
        self._owners[task] = owner
        task.add_done_callback(lambda task: self._guarded(lambda: ended(task)))
        return task.cancel

    def owner(self) -> object | None:
        """Whose task the loop is executing at this moment."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._owners.get(task)

    def after_calls(self, owner: object, then: Callable[[], object]) -> None:
        """Call `then`, on any thread, once no thread is left in a call of this owner's, as by `asyncio.to_thread`."""
        self._helpers.after(owner, lambda: self._long_calls.after(owner, then))

    def run(self, unhandled: Unhandled) -> None:
        """Run until `stop`, on the calling thread, which then calls `close`.

        Args:
            unhandled: is told of errors that no code awaits: what happened, without values; the error if there is one;
                whose code it was, or None.

        Raises:
            BaseException: what a function of `call` raised.
        """
        self._unhandled = unhandled
        while not self._stopped:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:  # of a handler's task, which has it too, or of a callback
                unhandled("An exception that ends a program", error, None)
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

    def _tell_unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio's own handler would print the error's text, what the task returned, and arguments of callbacks."""
        handle, task = context.get("handle"), context.get("task", context.get("future"))
        owner = self._owners.get(task) if task is not None else None
        if handle is not None and (its_context := getattr(handle, "_context", None)) is not None:
            owner = its_context.get(_owner)
        reason = CALLBACK_FAILED if handle is not None else str(context["message"])
        self._unhandled(reason, context.get("exception"), owner)

    def close(self) -> None:
        """Cancel what is left, and give it a second."""
        self._loop.set_task_factory(None)
        try:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_SECONDS))
            self._loop.run_until_complete(self._end_generators())
        except (KeyboardInterrupt, SystemExit, RuntimeError) as error:
            _log.warning("loop.end_failed", extra={"error": type(error).__name__, "at": error_places(error)})
        finally:
            self._loop.close()


def _refuse(name: str, *_: object, **__: object) -> NoReturn:
    raise RuntimeError(f"{name}: the worker's event loop is shared by all handlers; leave its end to the worker")
