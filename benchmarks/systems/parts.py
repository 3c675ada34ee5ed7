"""CPU of the calling thread by part, from stopwatches around functions.

A part inside another is taken out of it, so that the parts add up to what is known of the process.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

Places: TypeAlias = Mapping[str, Sequence[tuple[Any, str]]]  # part → owner and name of its functions


class Stopwatch:
    """CPU seconds by part, over all threads."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inner = threading.local()

    def attach(self, places: Places) -> None:
        """Put a stopwatch around each of these functions, for the rest of the process."""
        for part, functions in places.items():
            for owner, name in functions:
                setattr(owner, name, self.timed(part, getattr(owner, name)))

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
