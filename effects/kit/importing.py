"""What is imported by name: what installed packages offer, and an app by a command.

The import of an app: what it may not do meanwhile, and where it failed.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from importlib.metadata import EntryPoint
from types import FrameType

from effects.errors import EffectsError, EnqueueError
from effects.kit.frames import is_library, relative

PREFIX = "effects."
_importing: ContextVar[bool] = ContextVar("importing", default=False)


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of this group, such as `effects.tables`, by name.

    The distributions are read once per process: searching them all takes longer than making an `Effects`.
    """
    return _by_group().get(group, ())


@functools.cache
def _by_group() -> dict[str, tuple[EntryPoint, ...]]:
    installed = metadata.entry_points()
    # A set: an editable install under the old name of the distribution leaves its entries beside the new ones.
    return {
        group: tuple(sorted(set(installed.select(group=group)), key=lambda entry: entry.name))
        for group in installed.groups
        if group.startswith(PREFIX)
    }


@contextmanager
def importing() -> Iterator[None]:
    """Refuse that code of this thread enqueues."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_while_importing() -> None:
    """Refuse a call that would enqueue each time any command loads the app.

    Raises:
        EnqueueError: names module, file and line.
    """
    if not _importing.get():
        return
    frame = _module_frame(sys._getframe(1))
    if frame is not None:
        name = frame.f_globals.get("__name__")
        where = f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}"
        raise EnqueueError(f"module {name} enqueues while it is imported, at {where}: move it into a function")


def place_of_error(error: BaseException) -> str | None:
    """File and line of the app's own code where the import failed; None if it has no part in it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{relative(error.filename)}:{error.lineno}"
    places = [
        f"{relative(frame.f_code.co_filename)}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_of_app(frame)
    ]
    return places[-1] if places else None


def reason_of_error(error: BaseException) -> str:
    """The class of an exception, and its text where that names code or a variable: others may quote a URL or a key."""
    name = type(error).__name__
    if isinstance(error, EffectsError):
        return str(error)
    if isinstance(error, SyntaxError | ImportError | NameError):
        return f"{name}: {error}"
    if isinstance(error, KeyError) and _is_of_environment(error):
        return f"{name}: {error} is not in the environment"
    return f"{name} (its text may hold values; import it with python to see it)"


def _is_of_environment(error: KeyError) -> bool:
    """Whether `os.environ` had no variable of this name."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code is type(os.environ).__getitem__.__code__


def _module_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of a module's own code, outside of all functions."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame


def _is_of_app(frame: FrameType) -> bool:
    """Neither of Python, nor of an installed library, nor of effects or a package of it."""
    packages = {entry.module.partition(".")[0] for entry in entry_points("effects.job_types")}
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package not in packages and not is_library(frame.f_code.co_filename)
