"""Where an exception came through: files, lines and functions. No values, no source, no texts.

    shop/jobs.py:41 perform
    shop/client.py:12 charge
    httpx/_client.py:914 send

The app's own frames come first, those of libraries (the standard library and effects among them) after them; each
group with the innermost frame first, and of libraries the innermost few. The first line is where to look.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

Frame: TypeAlias = tuple[FrameType, int]

FRAMES_MAX = 50
LIBRARY_FRAMES_MAX = 5
CAUSES_MAX = 3
GROUPS_MAX = 20  # one in another
AWAITED_MAX = 200
_OURS = Path(__file__).parents[1]
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (_OURS, Path(os.__file__).parent))
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_WORKER = str(_OURS / "worker" / "attempts" / "attempt.py")  # called every handler: tells nothing


def error_frames(error: BaseException, frames_max: int = FRAMES_MAX) -> list[str]:
    """The frames of an exception and of what caused it, one text each.

    Args:
        frames_max: of each of them, the outermost left out. What caused it, at most 3 exceptions, is announced by a
            text such as `caused by KeyError`.
    """
    texts = frame_texts(traceback.walk_tb(error.__traceback__), frames_max)
    for _ in range(CAUSES_MAX):
        cause = cause_of(error)
        if cause is None:
            break
        name = type.__getattribute__(type(cause), "__name__")
        texts += [f"caused by {name}", *frame_texts(traceback.walk_tb(cause.__traceback__), frames_max)]
        error = cause
    return texts


def cause_of(error: BaseException) -> BaseException | None:
    """The exception that led to this one, as Python's own traceback has it; of a group the first that it holds."""
    if error.__cause__ is not None:
        return error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return _errors_of(error)[0]
    return None if error.__suppress_context__ else error.__context__


def sole_error(error: BaseException) -> BaseException:
    """What a group of one holds, as a TaskGroup raises it where one task fails; any other exception as it is."""
    for _ in range(GROUPS_MAX):
        if not issubclass(type(error), BaseExceptionGroup) or len(errors := _errors_of(error)) != 1:
            break
        error = errors[0]
    return error


def _errors_of(group: BaseException) -> tuple[BaseException, ...]:
    """Of which there is always one; past what a subclass may make of the attribute."""
    errors: tuple[BaseException, ...] = BaseExceptionGroup.__dict__["exceptions"].__get__(group)
    return errors


def frame_texts(frames: Iterable[Frame], frames_max: int = FRAMES_MAX) -> list[str]:
    """`file:line function` of each frame; they are given outermost first. Of libraries' the innermost five."""
    innermost_first = [frame for frame in frames if frame[0].f_code.co_filename != _WORKER][::-1]
    own = [frame for frame in innermost_first if not is_library(frame[0].f_code.co_filename)]
    libraries = [frame for frame in innermost_first if is_library(frame[0].f_code.co_filename)]
    ordered = [*own, *libraries[:LIBRARY_FRAMES_MAX]][:frames_max]
    return [place(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in ordered]


def handler_frames(frames: Iterable[Frame]) -> list[str]:
    """Where a handler is, of the frames of its thread or task, outermost first; nothing once it has come back."""
    return frame_texts(dropwhile(lambda frame: frame[0].f_code.co_filename != _WORKER, frames))


def awaiting_frames(coroutine: Any) -> list[Frame]:
    """Where a suspended coroutine waits, through what it awaits, outermost first; as far as that can be seen."""
    frames: list[Frame] = []
    with suppress(BaseException):  # of an awaitable's own attributes
        while len(frames) < AWAITED_MAX:
            frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
            if not isinstance(frame, FrameType):
                break
            frames.append((frame, frame.f_lineno))
            coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames


def thread_frames(frame: FrameType) -> list[Frame]:
    """The frames of a thread, outermost first, of its innermost."""
    return list(traceback.walk_stack(frame))[::-1]


def place(filename: str, line: int, function: str) -> str:
    """`file:line function`, the file relative to the working directory or to the import path."""
    return f"{relative(filename)}:{line} {function}"


def is_library(filename: str) -> bool:
    """Whether it is a file of Python, of an installed library, or of effects itself; or code that one generated."""
    return (
        filename.startswith(_LIBRARIES) or filename.startswith("<") or any(folder in filename for folder in _INSTALLED)
    )


def relative(filename: str) -> str:
    """Without the longest folder of the import path that it is in; of any other file the last two parts."""
    if not Path(filename).is_absolute():
        return filename
    folders = [path.rstrip(os.sep) + os.sep for path in (_working_directory(), *sys.path) if path]
    folder = max(filter(filename.startswith, folders), key=len, default=None)
    name = "/".join(Path(filename).parts[-2:]) if folder is None else filename[len(folder) :]
    return name.replace(os.sep, "/")


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return ""
