"""The program as it was called: what advice has in place of `effects`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NAME = "effects"
_program: ContextVar[str] = ContextVar("effects_program", default=_NAME)
_ADVICE = re.compile(rf'(`|"command": "){_NAME} (?=[a-z-])(?!--app\b)')


@contextmanager
def called_as(program: str = _NAME) -> Iterator[None]:
    """Let advice that is printed meanwhile name this program, such as `manage.py effects`."""
    token = _program.set(program)
    try:
        yield
    finally:
        _program.reset(token)


def name_app(path: str) -> None:
    """Let advice that follows within `called_as` name the app, which was named on the command line of `effects`."""
    if _program.get() == _NAME:
        _program.set(f"{_NAME} --app {path}")


def as_called(text: str) -> str:
    """A text whose advice (`` `effects jobs list` ``, or an action's command) names the program as it was called."""
    program = _program.get()
    return text if program == _NAME else _ADVICE.sub(lambda advice: f"{advice[1]}{program} ", text)
