"""Logging for the commands: one line an event, as text or JSON, to standard error.

Our code logs an event by its name and gives the facts as `extra`:

    log.info("job.succeeded", extra={"job": 12, "type": "webhook.deliver", "seconds": 0.031})

    2026-11-21T16:24:03.120Z INFO job.succeeded job=12 type=webhook.deliver seconds=0.031

Facts only, never a payload, a header, a body or a URL's query. An exception is logged as its class and the
places it came through; its text is left out, because a foreign exception may quote what it was given.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
import time
import traceback
from typing import Any, TextIO

from effects.errors import EffectsError

# Everything that a LogRecord carries by itself; what remains came in by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[^\s\"'=\x00-\x1f\x7f]+")  # needs no quotes
_FRAMES_MAX = 6
SAY_SECONDS = 10.0

# httpx logs every URL, with its query, at INFO; the others explain themselves at length.
QUIET = ("httpx", "httpcore", "alembic", "sqlalchemy")


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is now, as the progress bar of a terminal may stand in for it."""

    def __init__(self, formatter: logging.Formatter) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(formatter)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class TextFormatter(logging.Formatter):
    """`time LEVEL event key=value …`; a value with spaces or control characters is quoted as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{name}={_plain(value)}" for name, value in _facts(record).items())
        line = f"{_time(record)} {record.levelname} {_one_line(record.getMessage())}"
        return f"{line} {facts}" if facts else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `event`, `logger` and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": _time(record),
            "level": record.levelname,
            "event": record.getMessage(),
            "logger": record.name,
        }
        return json.dumps({**_facts(record), **head}, ensure_ascii=False, default=str)


class Seldom:
    """An ERROR of one kind that many jobs have reason for: said once in ten seconds, not for every job."""

    def __init__(self, log: logging.Logger, event: str) -> None:
        self._log, self._event = log, event
        self._said_at = float("-inf")

    def say(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._said_at > SAY_SECONDS:
            self._said_at = now
            self._log.error(self._event, extra={"reason": reason})


def configure(log_format: str = "text", log_level: str = "INFO") -> None:
    """Set up the root logger of a command. Calling it again replaces what it had set up.

    Args:
        log_format: `text` or `json`.
        log_level: DEBUG, INFO, WARNING or ERROR. Libraries that log URLs stay at WARNING.
    """
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(StderrHandler(JsonFormatter() if log_format == "json" else TextFormatter()))
    root.setLevel(log_level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        facts["error"] = type(error).__name__
        if isinstance(error, EffectsError):  # our own words are safe
            facts["reason"] = str(error)
        facts["at"] = _places(error)
    return facts


def _places(error: BaseException) -> str:
    """Where it came through, innermost last; names and line numbers only."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_MAX:]
    return " > ".join(f"{_module(frame.filename)}:{frame.lineno}:{frame.name}" for frame in frames)


def _module(filename: str) -> str:
    return "/".join(filename.replace("\\", "/").rsplit("/", 2)[-2:])


def _time(record: logging.LogRecord) -> str:
    moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    return _plain(json.dumps(value, ensure_ascii=False, default=str))


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)
