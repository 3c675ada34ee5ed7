"""Where in the app a call was made, and by which thread or task."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

Owner: TypeAlias = tuple[int, int | None]
_INSIDE = ("effects", "contextlib", "asyncio")  # frames between the app and us


class CallSite(NamedTuple):
    """A line of the app, with what `warnings` needs to show it once."""

    owner: Owner
    file: str
    line: int
    module: str
    registry: dict[Any, Any]


_announced: ContextVar[CallSite | None] = ContextVar("effects_call_site", default=None)


def current_owner() -> Owner:
    """The thread or task on whose behalf this is called: it, and the task where the thread runs one."""
    announced = _announced.get()
    if announced is not None:
        return announced.owner
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), None if task is None else id(task)


def call_site() -> CallSite:
    """The innermost frame that is the app's."""
    announced = _announced.get()
    if announced is not None:
        return announced
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _name(frame).startswith(_INSIDE):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return CallSite(current_owner(), frame.f_code.co_filename, frame.f_lineno, _name(frame), registry)


@contextmanager
def calling_from_here() -> Iterator[None]:
    """Let a call that is made in another thread count as one of this thread or task, and of this line."""
    token = _announced.set(call_site())
    try:
        yield
    finally:
        _announced.reset(token)


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
