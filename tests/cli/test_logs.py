"""One line an event, text or JSON; facts as given, never an exception's own words."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import re
import sys
from collections import Counter
from typing import Any

import pytest

from effects import JobNotFound
from effects.kit import logs

log = logs.own_logger("effects.test")


def logged(monkeypatch: pytest.MonkeyPatch, log_format: str, write: Any, level: str = "INFO") -> list[str]:
    """The lines that `write()` leaves on standard error."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's
    logging.getLogger("effects").setLevel(logging.NOTSET)  # whatever a test has left
    logs.configure(log_format, level)
    write()
    return stream.getvalue().splitlines()


def test_text_is_one_line_of_an_event_and_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"job": 12, "type": "webhook.deliver", "seconds": 0.0312345678, "code": None, "queues": "a=1 b=2"}
    [line] = logged(monkeypatch, "text", lambda: log.info("job.succeeded", extra=extra))
    assert re.fullmatch(
        r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO job\.succeeded "
        r'job=12 type=webhook\.deliver seconds=0\.0312346 code=null queues="a=1 b=2"',
        line,
    )


def test_json_is_one_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = logged(monkeypatch, "json", lambda: log.warning("job.failed", extra={"job": 12, "event": "forged"}))
    logged_object = json.loads(line)
    assert logged_object.pop("time").endswith("Z")
    assert logged_object == {"level": "WARNING", "event": "job.failed", "logger": "effects.test", "job": 12}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_break_in_a_value_does_not_break_the_line(monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    def write() -> None:
        log.info("job.failed\nERROR", extra={"code": "x\nERROR forged", "list": ["a\nb"]})

    assert len(logged(monkeypatch, log_format, write)) == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_named_and_placed_but_not_quoted(monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    def write() -> None:
        try:
            raise ValueError("rosebud")
        except ValueError:
            log.exception("rescue.failed")

    [line] = logged(monkeypatch, log_format, write)
    assert "ValueError" in line
    assert "test_logs.py" in line
    assert "rosebud" not in line


def test_our_own_errors_are_logged_with_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        try:
            raise JobNotFound("there is no job 12")
        except JobNotFound:
            log.exception("action.failed")

    assert 'reason="there is no job 12"' in logged(monkeypatch, "text", write)[0]


def test_levels_are_kept_and_libraries_that_log_urls_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        log.info("not.this")
        log.warning("this")
        logging.getLogger("httpx").info("GET https://partner.example/?token=rosebud")

    assert [line.split()[2] for line in logged(monkeypatch, "text", write, "WARNING")] == ["this"]
    assert [line.split()[2] for line in logged(monkeypatch, "text", write, "DEBUG")] == ["not.this", "this"]


def test_setting_up_twice_does_not_log_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("json")
    assert len(logged(monkeypatch, "text", lambda: log.info("once"))) == 1


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log server is away")


class Refusing(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise ValueError("no such field")


def test_a_handler_of_the_app_that_raises_is_counted_and_takes_no_line_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "failures", Counter())
    monkeypatch.setattr(logs, "_told_at", {})

    def write() -> None:
        logging.getLogger().handlers.insert(0, Broken())
        log.info("first")
        log.info("second")

    lines = logged(monkeypatch, "text", write)
    assert [line.split()[2] for line in lines] == ["log.failed", "first", "second"]  # named once in ten seconds
    assert "failed=Broken error=OSError at=" in lines[0]
    assert "log server" not in lines[0]
    assert logs.failures == {"Broken": 2}


def test_a_filter_that_raises_costs_the_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "failures", Counter())
    monkeypatch.setattr(logs, "_told_at", {})
    monkeypatch.setattr(log, "filters", [Refusing()])
    assert ["failed=Filter" in line for line in logged(monkeypatch, "text", lambda: log.info("lost"))] == [True]


def test_a_record_factory_of_the_app_may_use_the_names_of_our_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_told_at", {})
    make = logging.getLogRecordFactory()

    def factory(*values: Any, **named: Any) -> logging.LogRecord:
        record = make(*values, **named)
        vars(record)["job"] = "of the request"
        return record

    logging.setLogRecordFactory(factory)
    try:
        lines = logged(monkeypatch, "text", lambda: log.info("job.succeeded", extra={"job": 12}))
    finally:
        logging.setLogRecordFactory(make)
    assert "failed=LogRecordFactory error=KeyError" in lines[0]
    assert lines[1].endswith("INFO job.succeeded job=12")


def test_what_the_app_has_set_up_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handlers write our lines, at our level, though its configuration disabled our loggers."""
    stream = io.StringIO()
    own = logging.getLogger("effects")
    handlers = {"out": {"class": "logging.StreamHandler", "stream": stream}}
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(own, "level", logging.NOTSET)
    logging.config.dictConfig({"version": 1, "handlers": handlers, "root": {"level": "ERROR", "handlers": ["out"]}})
    assert log.__dict__["disabled"]
    logs.configure("json", "INFO")
    log.info("worker.started")
    assert stream.getvalue() == "worker.started\n"
    assert not [handler for handler in logging.getLogger().handlers if isinstance(handler, logs.StderrHandler)]
    for level, overriding, expected in (("ERROR", False, logging.CRITICAL), ("ERROR", True, logging.ERROR)):
        own.setLevel(logging.CRITICAL)
        logs.configure("text", level, overriding=overriding)
        assert own.level == expected
