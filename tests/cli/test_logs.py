"""One line an event, text or JSON; facts as given, never an exception's own words."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from typing import Any

import pytest

from effects import JobNotFound, logs

log = logging.getLogger("effects.test")


def logged(monkeypatch: pytest.MonkeyPatch, log_format: str, write: Any, level: str = "INFO") -> list[str]:
    """The lines that `write()` leaves on standard error."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
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
