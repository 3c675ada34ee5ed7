"""asyncio's event loop as the worker uses it: run by one thread, called from others, ended with all that is left on it.

With it the threads of `asyncio.to_thread` and of `long_call`, which keep no process alive. Part of the seam `runtime`,
which makes the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, TypeAlias, TypeVar

from effects.kit.logs import error_places, own_logger
from effects.kit.process import use_for_long_calls

HELPERS_MAX = 32  # for what handlers call by `asyncio.to_thread`, and for names that are resolved
LONG_CALLS_MAX = 512
REST_SECONDS = 10.0

Start: TypeAlias = Callable[[Callable[[], None], str], threading.Thread]
_Call: TypeAlias = "tuple[Callable[[], None], object]"


class _HelperThreads(ThreadPoolExecutor):
    """Daemon threads: Python's own would keep the process alive while one hangs.

    Args:
        start: starts a thread, as `Runtime.start`.
        owner: of a context: whose code runs in it.
        most: at most so many threads.
    """

    def __init__(self, start: Start, owner: ContextVar[Any], most: int) -> None:
        super().__init__(most)
        self._start, self._owner, self._most = start, owner, most
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive = self._unfinished = 0
        self._unfinished_of: Counter[object] = Counter()
        self._afterwards: dict[object, Callable[[], object]] = {}

    def after(self, owner: object, then: Callable[[], object]) -> None:
        """Call `then` once no call of this owner's is left: now, or by the thread that ends the last one."""
        with self._lock:
            if owner in self._unfinished_of:
                self._afterwards[owner] = then
                return
        then()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        owner = self._owner.get()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except StopIteration as error:  # no future of asyncio can have it: whoever awaits this would wait forever
                future.set_exception(_in_place_of(error))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            self._unfinished += 1
            self._unfinished_of[owner] += 1
            missing = self._alive < min(self._unfinished, self._most)
            self._alive += missing
        self._calls.put((call, owner))
        if missing:
            self._start(self._work, "effects-loop-helper")
        return future

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            call, owner = entry
            call()
            del entry, call  # or what they hold would live until the next one
            self._finished(owner)
            del owner

    def _finished(self, owner: object) -> None:
        with self._lock:
            self._unfinished -= 1
            self._unfinished_of[owner] -= 1
            if self._unfinished_of[owner]:
                return
            del self._unfinished_of[owner]
            then = self._afterwards.pop(owner, None)
        if then is not None:
            then()

    def _next(self) -> _Call | None:
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


def _in_place_of(error: StopIteration) -> RuntimeError:
    """As Python has it where a coroutine or a generator raises one."""
    substitute = RuntimeError("the function raised StopIteration")
    substitute.__cause__ = error
    return substitute


CLOSE_SECONDS = 1.0  # for tasks that are cancelled at the end of the loop
CALLBACK_FAILED = "Exception in callback"
NOT_FOR_HANDLERS = ("set_default_executor", "shutdown_asyncgens", "shutdown_default_executor")

Answer = TypeVar("Answer")
Unhandled: TypeAlias = Callable[[str, "BaseException | None", object], object]
_owner: ContextVar[Any] = ContextVar("effects_attempt", default=None)
_log = own_logger("effects.worker")


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


class _OwnedTask(asyncio.Task[Answer]):
    """A task that knows its owner. A table of owners beside the tasks would keep each that names its task."""

    owner: object = None


class EventLoop:
    """One loop. Only `call`, `stop`, `owner` and `after_calls` may be used by other threads than the one that runs it.

    Those whose tasks run on it share it: what would end it for all of them is refused.

    Args:
        start: starts a thread, as `Runtime.start`.

    Attributes:
        thread: where it runs, if that is another thread than the one that calls `run`.
    """

    thread: threading.Thread | None = None
    _fault: BaseException | None = None

    def __init__(self, start: Start) -> None:
        self._start = start
        self._loop = asyncio.new_event_loop()
        self._use_helpers = self._loop.set_default_executor
        self._renew_helpers()
        self._loop.set_task_factory(self._new_task)
        self._loop.set_exception_handler(self._tell_unhandled)
        self._unhandled: Unhandled = lambda *_: None
        self._end_generators = self._loop.shutdown_asyncgens
        for name in NOT_FOR_HANDLERS:
            setattr(self._loop, name, partial(_refuse, name))
        self._stopped = False

    def _renew_helpers(self) -> None:
        self._helpers, self._long_calls = (
            _HelperThreads(self._start, _owner, most) for most in (HELPERS_MAX, LONG_CALLS_MAX)
        )
        self._use_helpers(self._helpers)

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
        context = Context()  # as that of a new thread: what the caller of `drain` has in its own is not a handler's
        context.run(_owner.set, owner)
        context.run(use_for_long_calls, self._long_calls)
        task = _OwnedTask(coroutine, loop=self._loop, context=context)  # handlers may change what makes their own
        task.owner = owner
        task.add_done_callback(lambda task: self._guarded(lambda: ended(task)))
        return task.cancel

    def owner(self) -> object | None:
        """Whose task the loop is executing at this moment."""
        return getattr(asyncio.current_task(self._loop), "owner", None)

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
        task = _OwnedTask(coroutine, loop=loop, **options)
        task.owner = _owner.get()
        return task

    def _tell_unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio's own handler would print the error's text, what the task returned, and arguments of callbacks."""
        handle, task = context.get("handle"), context.get("task", context.get("future"))
        owner = getattr(task, "owner", None)
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
