"""Logging for the commands: one line an event, as text or JSON, to standard error.

Our code logs an event by its name and gives the facts as `extra`:

    log.info("job.succeeded", extra={"job": 12, "type": "webhook.deliver", "seconds": 0.031})

    2026-11-21T16:24:03.120Z INFO job.succeeded job=12 type=webhook.deliver seconds=0.031

The logging is the app's where it has set it up: then its handlers write our lines. What they raise changes nothing of
what we do.

Facts only, never a payload, a header, a body or a URL's query. An exception is logged as its class and the
places it came through; its text is left out, because a foreign exception may quote what it was given. Where a person
runs the worker on a terminal, or EFFECTS_ERROR_TEXTS is `plain`, the text of a handler's exception is the `reason`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from types import FrameType
from typing import Any, TextIO

from effects.errors import EffectsError
from effects.kit.frames import error_frames, frame_texts, thread_frames
from effects.kit.moments import moment
from effects.kit.text.unsafe import UNSAFE, escape_unsafe

# Everything that a LogRecord carries by itself; what remains came in by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[^\s\"'=\x00-\x1f\x7f]+")  # needs no quotes
_FRAMES_MAX = 6
ERROR_INTERVAL_SECONDS = 10.0

failures: Counter[str] = Counter()  # class of a handler of the app's → how often it has raised
_told_at: dict[str, float] = {}
_configured = 0  # by a command: to which level it has set ours

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


class _Logger(logging.Logger):
    """One of ours: a line that cannot be written is counted, and neither raises nor takes others with it."""

    @property
    def disabled(self) -> bool:
        """Of a command never, though `logging.config` disables each logger that it does not name."""
        return bool(vars(self).get("disabled")) and not _configured

    @disabled.setter
    def disabled(self, disabled: bool) -> None:
        vars(self)["disabled"] = disabled

    def makeRecord(self, *record: Any, **named: Any) -> logging.LogRecord:  # noqa: N802 - the base class's name
        """The app's record factory may raise, or use the name of one of our facts."""
        try:
            return super().makeRecord(*record, **named)
        except Exception as error:
            _count_failure("LogRecordFactory", error)
            *head, extra, stack = record  # as `Logger._log` passes them
            plain = logging.LogRecord(*[*head, stack])
            vars(plain).update(extra or {})
            return plain

    def handle(self, record: logging.LogRecord) -> None:
        try:
            super().handle(record)
        except Exception as error:  # of a filter
            _count_failure("Filter", error)

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """As the base class; a handler that raises leaves the others their line."""
        if not self.hasHandlers():
            super().callHandlers(record)
            return
        logger: logging.Logger | None = self
        while logger is not None:
            for handler in logger.handlers:
                if record.levelno >= handler.level:
                    try:
                        handler.handle(record)
                    except Exception as error:
                        _count_failure(type(handler).__name__, error)
            logger = logger.parent if logger.propagate else None


def own_logger(name: str) -> logging.Logger:
    """The logger of one of our modules, `effects` or below."""
    logger = logging.getLogger(name)
    logger.__class__ = _Logger
    return logger


_log = own_logger("effects")


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


def configure(log_format: str = "text", log_level: str = "INFO", *, overriding: bool = False) -> None:
    """Set up logging for a command, once its app is imported: what the app has set up stays.

    Without a handler of the app's at the root, lines go to standard error. Libraries that log URLs stay at WARNING.

    Args:
        log_format: `text` or `json`, of our own handler.
        log_level: DEBUG, INFO, WARNING or ERROR, in either case: of our loggers; with our own handler, of all.
        overriding: whether it goes above a level that the app has set for the logger `effects`.
    """
    global _configured  # noqa: PLW0603 - of the process
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, StderrHandler)]:
        root.removeHandler(old)
    if not root.handlers:
        root.addHandler(StderrHandler(JsonFormatter() if log_format == "json" else TextFormatter()))
        root.setLevel(log_level.upper())
    if overriding or _log.level in (logging.NOTSET, _configured):
        _log.setLevel(log_level.upper())
    _configured = _log.level
    for name in QUIET:
        if (library := logging.getLogger(name)).level == logging.NOTSET:
            library.setLevel(logging.WARNING)


def _count_failure(what: str, error: Exception) -> None:
    """Count it, and say so on standard error, at most every ten seconds: the log is what failed."""
    failures[what] += 1
    now = time.monotonic()
    if now - _told_at.get(what, float("-inf")) > ERROR_INTERVAL_SECONDS:
        _told_at[what] = now
        facts = {"failed": what, "error": type(error).__name__, "at": error_places(error)}
        record = logging.makeLogRecord({"levelname": "ERROR", "msg": "log.failed", **facts})
        for stream in (sys.stderr, sys.__stderr__):  # the app may have put its log in place of the first
            with suppress(Exception):
                print(TextFormatter().format(record), file=stream)
                return


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        facts["error"] = type(error).__name__
        if isinstance(error, EffectsError):  # our own words are safe
            facts["reason"] = str(error)
        elif (text := vars(type(error)).get("logged_text")) is not None:  # of the worker's stand-in: it is to be logged
            facts["reason"] = text
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
    """Where an error came through, the app's innermost frame first; see `effects.kit.frames`."""
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
