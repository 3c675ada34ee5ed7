"""`effects.cli.table`: one line a row at any width, nothing shortened in a pipe, colours that NO_COLOR turns off."""

from __future__ import annotations

import datetime as dt
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects.cli.table import Checklist, Style, Table, cell, lines_of

NOW = dt.datetime(2026, 11, 29, 12, 0, tzinfo=dt.UTC)
COLUMNS = ("id", "type", "effect", "ended", "attempts", "key", "limit", "code", "error")
ROW = (
    104024, "report.chunk", "not done", NOW - dt.timedelta(minutes=4), 5, "rep_01a2f00c9f04/00001/1", None, "22012",
    "division by zero in the twelfth column",
)  # fmt: skip
LETTERS = Table(COLUMNS, [ROW, ROW], empty="no letters")
TERMINAL = Style(80, utc=False, now=NOW)


def lines(table: Table | Checklist, style: Style) -> list[str]:
    return list(lines_of(table, style))


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (140, "ID TYPE EFFECT ENDED ATTEMPTS KEY LIMIT CODE ERROR"),
        (112, "ID TYPE EFFECT ENDED ATTEMPTS KEY CODE ERROR"),
        (80, "ID TYPE EFFECT ENDED KEY CODE"),
        (40, "ID TYPE EFFECT"),
        (5, "ID"),
    ],
)
def test_a_narrow_terminal_has_the_columns_that_matter_most(width: int, columns: str) -> None:
    shown = lines(LETTERS, replace(TERMINAL, width=width))
    assert shown[0].split() == columns.split()
    assert len(shown) == 3


def test_a_key_is_shortened_in_its_middle_and_prose_at_its_end() -> None:
    shown = lines(LETTERS, replace(TERMINAL, width=108))[1]
    assert "  4 min ago  " in shown
    assert "  rep_01a2f00…04/00001/1  " in shown
    assert shown.endswith("  division by zero in the…")


def test_in_a_pipe_and_by_wide_every_cell_is_whole() -> None:
    piped = lines(LETTERS, Style())
    assert piped[0].split() == list(COLUMNS)
    assert "2026-11-29 11:56:00Z" in piped[1]
    wide = lines(LETTERS, replace(TERMINAL, width=20, wide=True, utc=True))
    assert [line.lower() for line in wide] == [line.lower() for line in piped]


names = st.sampled_from(["id", "key", "error", "limit", "status", "created", "type", "queue", "what ends it", "reason"])
cells = st.one_of(st.none(), st.integers(), st.text(max_size=200), st.datetimes(timezones=st.just(dt.UTC)))


@given(st.data(), st.lists(names, min_size=1, max_size=8, unique=True), st.integers(20, 160))
def test_no_row_takes_two_lines(data: st.DataObject, columns: list[str], width: int) -> None:
    rows = data.draw(st.lists(st.tuples(*[cells] * len(columns)), min_size=1, max_size=5))
    shown = lines(Table(columns, rows, empty=""), replace(TERMINAL, width=width))
    assert len(shown) == len(rows) + 1
    assert not any("\n" in line for line in shown)
    least = max(len(text) for text in [columns[0], *(_first(row[0]) for row in rows)])
    assert max(map(len, shown)) <= max(width, least)


def _first(value: Any) -> str:
    """A first column is never left out; it is at most as wide as this."""
    return cell(value)[:100] if not isinstance(value, dt.datetime) else "x" * 25


def test_problems_come_first_and_what_passed_is_counted() -> None:
    checklist = Checklist(
        [("ok", "schema", "up to date", None), ("warning", "keys", "no key", "effects keys generate"),
         ("error", "queues", "media: 3 jobs wait", None)]
    )  # fmt: skip
    assert lines(checklist, TERMINAL) == [
        "✗ queues  media: 3 jobs wait",
        "! keys    no key",
        "          → effects keys generate",
        "✓ 1 passed (-v lists them)",
    ]
    assert lines(replace(checklist, verbose=True), TERMINAL)[-1] == "✓ schema  up to date"
    assert lines(checklist, Style())[0].split() == ["check", "finding", "what", "to", "do"]


@pytest.mark.parametrize(("environment", "has_escapes"), [({}, True), ({"NO_COLOR": "1"}, False)])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_terminal_has_colours_unless_it_wants_none(
    database_url: str, tmp_path: Path, environment: dict[str, str], *, has_escapes: bool
) -> None:
    command = [sys.executable, "-c", "from effects_toolkit.command import main; main()", "doctor"]
    parent, child = pty.openpty()
    variables = {**os.environ, "EFFECTS_DATABASE_URL": database_url, "TERM": "xterm-256color", **environment}
    with subprocess.Popen(command, stdout=child, stderr=subprocess.DEVNULL, env=variables, cwd=tmp_path) as process:
        os.close(child)
        printed = _until_closed(parent)
    assert process.returncode == 1  # it has no keys
    assert "passed (-v lists them)" in printed
    assert ("\x1b[" in printed) == has_escapes


def _until_closed(terminal: int) -> str:
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: the other side has closed it
            piece = b""
        if not piece:
            os.close(terminal)
            return b"".join(pieces).decode()
        pieces.append(piece)
