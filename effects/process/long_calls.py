"""Calls of async handlers that may block for minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from typing import TypeVar

Answer = TypeVar("Answer")
_executor: ContextVar[Executor | None] = ContextVar("effects_long_calls", default=None)


async def long_call(function: Callable[[], Answer]) -> Answer:
    """Call what may block for minutes in a thread that is not one of the 32 of `asyncio.to_thread`.

    Brief calls of other attempts would wait for those. Threads are started as they are needed, at most 512. As with
    `to_thread`, a call goes on when its task is cancelled, and keeps its attempt's place until it ends. Outside a
    worker it is `asyncio.to_thread`.
    """
    return await asyncio.get_running_loop().run_in_executor(_executor.get(), copy_context().run, function)


def use_for_long_calls(executor: Executor) -> None:
    """Have this executor carry out the long calls of the present context."""
    _executor.set(executor)
