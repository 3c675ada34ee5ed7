"""The event loop of async handlers in tests: one in a process, as a worker has; it runs while a toolkit is entered.

What an app keeps in a module and binds to a loop at its first use so serves in all drains, and in the next test.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import selectors
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from effects.kit.process import after_fork_in_child
from effects.worker.machine.event_loop import CLOSE_SECONDS, EventLoop, Unhandled
from effects.worker.machine.runtime import Runtime


class ToolkitRuntime(Runtime):
    """The machine as the workers of one toolkit have it, which is a context manager for as long as that is entered."""

    def __enter__(self) -> Self:
        self._attempts: set[object] = set()
        with _process.lock:
            _process.entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what this toolkit's handlers left on the loop, and with the last toolkit all else."""
        with _process.lock:
            _process.entered -= 1
            if _process.loop is not None and _process.entered:
                _process.loop.cancel(self._attempts)
            elif _process.loop is not None and not _process.loop.end():
                _process.loop = None

    def event_loop(self) -> EventLoop:
        with _process.lock:
            _process.loop = _process.loop or _ProcessLoop(self)
            _process.loop.wake()
            return _DrainLoop(_process.loop, self._attempts)

    def before_fork(self) -> None:
        """Let no thread of the loop run, until a worker needs it again, here or in the child."""
        if _process.loop is not None and not _process.loop.pause():
            _process.loop = None


class _ProcessLoop(EventLoop):
    """Runs on a thread from `wake` to `pause`."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.start)
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._process_id = os.getpid()
        after_fork_in_child(self, _go_on_in_child)
        atexit.register(self._close_at_exit)

    def wake(self) -> None:
        if self.thread is None:
            self._stopped = False
            self.call(self._note_generators)
            self.thread = self._start(partial(self.run, self._unhandled), "effects-toolkit-loop")

    def _note_generators(self) -> None:
        """As asyncio does, which closes them once in a loop's life only."""
        of_asyncio: Any = sys.get_asyncgen_hooks().firstiter

        def note(generator: AsyncGenerator[Any, Any]) -> None:
            self._generators.add(generator)
            of_asyncio(generator)

        sys.set_asyncgen_hooks(firstiter=note)

    def pause(self) -> bool:
        """False if a handler blocks the thread, which is then left behind."""
        if self.thread is not None:
            if self.thread.is_alive():
                self.stop()
            self.thread.join(CLOSE_SECONDS)
            if self.thread.is_alive():
                return False
            self.thread = None
            for threads in (self._helpers, self._long_calls):
                threads.shutdown()
            self._renew_helpers()
        return True

    def end(self) -> bool:
        """Cancel all, and pause; False if something does not end, so that this loop cannot be used again."""
        self.cancel(None)
        return self.pause() and not asyncio.all_tasks(self._loop)

    def cancel(self, owners: Collection[object] | None) -> None:
        """Cancel the tasks of these, and give them a second; None: all tasks, and then close async generators."""
        if self.thread is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._cancel(owners), self._loop).result(4 * CLOSE_SECONDS)

    async def _cancel(self, owners: Collection[object] | None) -> None:
        tasks = {task for task in _tasks() if owners is None or getattr(task, "owner", None) in owners}
        for task in tasks:
            task.cancel()
        await _wait(tasks)
        if owners is None:
            await _wait({asyncio.ensure_future(generator.aclose()) for generator in list(self._generators)})
            await _wait(_tasks())  # which close what a cancelled task has dropped

    def renew(self) -> bool:
        """Share no selector and no connection with the process that this one was forked from: they appear to be closed.

        False if this loop cannot be used here.
        """
        if self.thread is not None or not isinstance(self._loop, asyncio.SelectorEventLoop):
            return False
        loop: Any = self._loop
        closed, peer = socket.socketpair()
        peer.close()
        keys, renewed = list(loop._selector.get_map().values()), selectors.DefaultSelector()
        for key in keys:
            if key.fileobj != loop._ssock:
                os.dup2(closed.fileno(), key.fd)
            renewed.register(key.fileobj, key.events, key.data)
        loop._selector = renewed
        return True

    def _close_at_exit(self) -> None:
        if self._process_id == os.getpid() and self.pause():
            self.close()


class _DrainLoop(EventLoop):
    """The process's loop as one drain has it, whose end cancels what the drain has in flight, and nothing else."""

    def __init__(self, whole: _ProcessLoop, attempts: set[object]) -> None:
        self._loop, self._helpers, self._long_calls = whole._loop, whole._helpers, whole._long_calls
        self.thread = whole.thread
        self._whole, self._attempts = whole, attempts
        self._in_flight: set[object] = set()
        self._over = threading.Event()

    def task(
        self, coroutine: Coroutine[Any, Any, Any], owner: object, ended: Callable[[asyncio.Task[Any]], object]
    ) -> Callable[[], object]:
        def left(task: asyncio.Task[Any]) -> None:
            self._in_flight.discard(owner)
            ended(task)

        self._attempts.add(owner)
        self._in_flight.add(owner)
        return super().task(coroutine, owner, left)

    def run(self, unhandled: Unhandled) -> None:
        self._whole._unhandled = unhandled
        self._over.wait()
        if self._fault is not None:
            raise self._fault

    def _stop(self) -> None:
        self._over.set()

    def close(self) -> None:
        if self._in_flight:
            self._whole.cancel(set(self._in_flight))


def _tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _wait(tasks: Collection[asyncio.Future[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)


def _go_on_in_child(loop: _ProcessLoop) -> None:
    if not loop.renew() and _process.loop is loop:
        _process.loop = None


class _Process:
    """What all toolkits of a process share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entered = 0  # toolkits
        self.loop: _ProcessLoop | None = None


_process = _Process()
