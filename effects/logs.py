"""Logging for the commands: one line an event, as text or JSON, to standard error.

Our code logs an event by its name and gives the facts as `extra`:

    log.info("job.succeeded", extra={"job": 12, "type": "webhook.deliver", "seconds": 0.031})

    2026-11-21T16:24:03.120Z INFO job.succeeded job=12 type=webhook.deliver seconds=0.031

Facts only, never a payload, a header, a body or a URL's query. An exception is logged as its class and the
places it came through; its text is left out, because a foreign exception may quote what it was given.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from types import FrameType
from typing import Any, TextIO

from effects.errors import EffectsError
from effects.moments import moment
from effects.process.frames import error_frames, frame_texts, thread_frames
from effects.text.unsafe import UNSAFE, escape_unsafe

_log = logging.getLogger("effects")

# Everything that a LogRecord carries by itself; what remains came in by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[^\s\"'=\x00-\x1f\x7f]+")  # needs no quotes
_FRAMES_MAX = 6
ERROR_INTERVAL_SECONDS = 10.0

# httpx logs every URL, with its query, at INFO; the others explain themselves at length.
QUIET = ("httpx", "httpcore", "alembic", "sqlalchemy")


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current standard error, which a terminal's progress bar may have replaced."""

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
        return escape_unsafe(json.dumps({**_facts(record), **head}, ensure_ascii=False, default=str))


class RateLimitedLogger:
    """Logs one kind of ERROR at most once in ten seconds, however many jobs cause it."""

    def __init__(self, log: logging.Logger, event: str) -> None:
        self._log, self._event = log, event
        self._logged_at = float("-inf")

    def error(self, reason: str) -> None:
        """Log the reason, unless the last one was logged less than ten seconds ago."""
        now = time.monotonic()
        if now - self._logged_at > ERROR_INTERVAL_SECONDS:
            self._logged_at = now
            self._log.error(self._event, extra={"reason": reason})


def configure(log_format: str = "text", log_level: str = "INFO") -> None:
    """Set up the root logger of a command. Calling it again replaces what it had set up.

    Args:
        log_format: `text` or `json`.
        log_level: DEBUG, INFO, WARNING or ERROR. Libraries that log URLs stay at WARNING.
    """
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, StderrHandler)]:
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
        facts["at"] = error_places(error)
    return facts


def log_thread_error(error: threading.ExceptHookArgs) -> None:
    """For `threading.excepthook`: Python's own would print the error's text."""
    if error.exc_value is not None:
        facts = {"part": error.thread.name if error.thread is not None else None, "error": error.exc_type.__name__}
        _log.error("thread.failed", extra={**facts, "at": error_places(error.exc_value)})


def error_reason(error: BaseException) -> str:
    """Our own words; of any other error the class alone, since its text may quote what it was given."""
    return str(error) if isinstance(error, EffectsError) else type(error).__name__


def error_places(error: BaseException, frames_max: int = _FRAMES_MAX) -> str:
    """Where an error came through, the app's innermost frame first; see `effects.process.frames`."""
    return " < ".join(error_frames(error, frames_max))


def frame_places(frame: FrameType, frames_max: int = _FRAMES_MAX) -> str:
    """Where a thread is, in the same form."""
    return " < ".join(frame_texts(thread_frames(frame), frames_max))


def _time(record: logging.LogRecord) -> str:
    return moment(record.created).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and not UNSAFE.search(value) else _quoted(value)
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    return _plain(json.dumps(value, ensure_ascii=False, default=str))


def _one_line(text: str) -> str:
    return _quoted(text) if UNSAFE.search(text) else text


def _quoted(text: str) -> str:
    return escape_unsafe(json.dumps(text, ensure_ascii=False))
