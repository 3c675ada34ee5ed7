"""Third-party text at every outlet: nothing that moves a cursor, turns text round or hides in it comes through."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from effects import Effects, enqueue
from effects.cli.main import exit_code_of
from effects.cli.results import print_value
from effects.cli.table import Table
from effects.kit.exit_codes import ExitCode
from effects.kit.files.names import attachment
from effects.kit.logs import JsonFormatter, TextFormatter
from effects.kit.text.unsafe import UNSAFE, lines_without_unsafe
from effects.operate.metrics import Family, Sample, render
from effects.store.db.records import shown_json
from effects_email.errors import AttachmentInvalid
from effects_email.message.address import parse_address
from effects_email.message.attachments import File, describe
from tests.cli.conftest import Run
from tests.support.manual_workers import run_sql

NAMED_QUEUES = ("later",)

# One of each kind: C0, DEL, C1, soft hyphen, marks, overrides, isolates, zero width, separators, a tag.
PLANTED = "\x1b[2J\x7f\x9b31m\xad\u200e\u202egnp.exe\u2066\u200b\u2028\u2029\ufeff\U000e0041"


def test_the_list_is_that_of_the_categories() -> None:
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    expected = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in kinds}
    listed = {code for code in range(sys.maxunicode + 1) if UNSAFE.match(chr(code))}
    assert expected <= listed
    later = {unicodedata.category(chr(code)) for code in listed - expected}  # this Python's Unicode may be older
    assert later <= {"Cn"}


def logged(formatter: logging.Formatter) -> str:
    record = logging.makeLogRecord({"msg": f"event {PLANTED}", "levelname": "INFO", "name": PLANTED, "key": PLANTED,
                                    "more": {PLANTED: [PLANTED]}})  # fmt: skip
    return formatter.format(record)


def in_metrics() -> str:
    return render([Family("effects_jobs", "gauge", "Jobs.", [Sample(1.0, {"type": PLANTED})])])


OUTLETS: dict[str, Callable[[], str]] = {
    "text log": lambda: logged(TextFormatter()),
    "JSON log": lambda: logged(JsonFormatter()),
    "download": lambda: attachment(PLANTED),
    "metrics": in_metrics,
    "display name": lambda: parse_address("ann@example.com", PLANTED).name,
}


@pytest.mark.parametrize("outlet", OUTLETS)
def test_no_output_contains_unsafe_text(outlet: str) -> None:
    shown = OUTLETS[outlet]()
    assert lines_without_unsafe(shown) == shown


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("kind", ["text", "table", "facts"])
def test_no_printed_value_contains_unsafe_text(kind: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"text": PLANTED, "table": Table(("a", "b"), [(PLANTED, 1)], empty="no rows"), "facts": {"a": PLANTED}}
    print_value(values[kind], as_json=as_json)
    shown = capsys.readouterr().out
    assert lines_without_unsafe(shown) == shown
    if as_json:
        assert repr(PLANTED)[1:-1] in repr(json.loads(shown))  # the document means the same


def test_no_error_line_contains_unsafe_text(run: Run) -> None:
    shown = run("why", PLANTED).err
    assert shown.startswith("error:")
    assert lines_without_unsafe(shown) == shown


def test_a_planted_row_is_shown_without_unsafe_text(app: Effects, run: Run) -> None:
    job = enqueue("scripted", {}, queue="later", effects=app)
    quoted = PLANTED.replace("'", "''")
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET queue = '{quoted}'".replace(":", "\\:"))
    for command in (("retry", job.job_id), ("jobs", "list"), ("jobs", "list", "--json")):
        answer = run(*command)
        assert answer.exit_code == 0
        assert lines_without_unsafe(answer.out) == answer.out


def test_an_attachment_of_such_a_name_is_refused(app: Effects, tmp_path: Path) -> None:
    (tmp_path / "invoice").write_bytes(b"x")
    for name in ("invoice\u202efdp.exe", "a\u200bb.pdf", "a\x1bb"):
        with pytest.raises(AttachmentInvalid):
            describe(app, [File(tmp_path / "invoice", filename=name)])


def test_an_unexpected_error_shows_its_class_and_place_alone(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def broken() -> None:
        raise ZeroDivisionError("rosebud")

    assert exit_code_of(lambda: broken.main([], standalone_mode=False)) == ExitCode.ERROR
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "rosebud" not in said


def test_half_of_a_surrogate_pair_in_stored_json_is_shown_as_it_is_stored() -> None:
    """SQLite keeps it; a value that has it could not be printed as JSON."""
    assert shown_json('{"answer": "\\ud800"}') == '{"answer": "\\ud800"}'
    assert shown_json('{"answer": "\\ud83d\\ude00"}') == {"answer": "\U0001f600"}
