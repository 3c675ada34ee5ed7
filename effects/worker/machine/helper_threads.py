"""The threads of `asyncio.to_thread` and of `long_call`, which keep no process alive, and whose calls they carry out.

Part of the seam `runtime`, as the event loop is.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

HELPERS_MAX = 32  # for what handlers call by `asyncio.to_thread`, and for names that are resolved
LONG_CALLS_MAX = 512
REST_SECONDS = 10.0

Start: TypeAlias = Callable[[Callable[[], None], str], threading.Thread]
_Call: TypeAlias = "tuple[Callable[[], None], object]"


class HelperThreads(ThreadPoolExecutor):
    """Daemon threads: Python's own would keep the process alive while one hangs.

    Args:
        start: starts a thread, as `Runtime.start`.
        owner: whose code calls `submit`.
        most: at most so many threads.
    """

    def __init__(self, start: Start, owner: Callable[[], object], most: int) -> None:
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
        owner = self._owner()

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
