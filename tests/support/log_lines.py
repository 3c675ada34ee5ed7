"""What is logged, as an operator or a collector of logs would read it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from effects.kit.logs import JsonFormatter, TextFormatter


class LogLines(logging.Handler):
    """Every record, as both formats write it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [TextFormatter().format(record), JsonFormatter().format(record)]


@contextmanager
def unconfigured_logging() -> Iterator[None]:
    """As in a process whose app sets up no logging: a command does. pytest's own handlers wait."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers


@contextmanager
def log_lines(logger_name: str | None = None) -> Iterator[LogLines]:
    """Collect what this logger and those below it log, from DEBUG on; default all of them."""
    handler, logger = LogLines(), logging.getLogger(logger_name)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
