"""Tables for people: one line a row, whatever the width of the terminal.

In a pipe every column is whole. On a terminal that is too narrow, texts are shortened first (a key in its middle, prose
at its end), then columns are left out, the least important ones first; `-o wide` shows all. Times are told as ages
there, and by `--utc` as they are. States have colours, which NO_COLOR turns off together with bold letters.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click

from effects.cli.process import as_called
from effects.kit.text.unsafe import without_unsafe
from effects.kit.text.wording import duration, moment_text

CELL_CHARS_MAX = 100
_GAP = "  "
_CUT = "…"
# Columns that may be shortened, and the fewest characters that still tell something.
_NAMES = dict.fromkeys(("key", "url", "endpoint", "subject", "limit", "worker", "host", "recipient", "queues"), 20)
_PROSE = dict.fromkeys(
    ("error", "reason", "answer", "finding", "detail", "description", "example", "problem", "missing", "code",
     "held up by", "what ends it"), 24
)  # fmt: skip
# Those that a narrow terminal does without, the first one first. After them the last columns go.
_SPARE = (
    "limit", "detail", "example", "tenant", "zone", "verdict", "host", "queue", "attempts", "error", "reason",
    "expected", "no longer match", "left", "actor", "format", "created", "ended", "worker", "settled ago",
    "claimed ago",
)  # fmt: skip
_COLOURS = {
    **dict.fromkeys(("dead", "error", "failed", "unknown", "refused", "lost", "failing", "disabled", "silent"), "red"),
    **dict.fromkeys(("retrying", "warning", "paused", "cancelled", "stopped", "not done", "waiting"), "yellow"),
    **dict.fromkeys(("succeeded", "done", "ok", "active", "ready", "sent", "alive", "delivered"), "green"),
}
_STATES = ("status", "effect", "outcome", "level", "fate", "")  # columns that hold one of these words


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people; `as_json` prints them as a list of objects by column name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    empty: str
    title: str | None = None

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Style:
    """How tables are printed.

    Args:
        width: of the terminal in characters; None: each cell is whole, as for a pipe.
        wide: all columns, at whatever width.
        utc: times as they are, not as ages.
        coloured: states have colours, and heads are bold.
        now: what ages count to.
    """

    width: int | None = None
    wide: bool = False
    utc: bool = True
    coloured: bool = False
    now: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))


def style_of_output(*, wide: bool = False, utc: bool = False) -> Style:
    """That of standard output."""
    if not sys.stdout.isatty():
        return Style()
    coloured = not os.environ.get("NO_COLOR")
    return Style(shutil.get_terminal_size().columns, wide=wide, utc=utc, coloured=coloured)


def cell(value: Any) -> str:
    """One value on one line. What came from outside cannot move the cursor or colour the screen."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dt.datetime):
        return moment_text(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value)) or "-"
    text = value if isinstance(value, str) else str(value)
    return as_called(without_unsafe(text))


@dataclass(frozen=True, slots=True)
class Checklist:
    """What was looked at: level, name, what is so, and what to do or None. A table, but for people on a terminal.

    Args:
        verbose: what passed, on a terminal too, which has its number.
    """

    entries: Sequence[tuple[str, str, str, str | None]]
    verbose: bool = False


_MARKS = {"error": ("✗", "red"), "warning": ("!", "yellow"), "ok": ("✓", "green")}  # worst first


def lines_of(block: Table | Checklist, style: Style) -> Iterable[str]:
    """The lines to print."""
    if isinstance(block, Table):
        return _table_lines(block, style)
    if style.width is None or not block.entries:
        return _table_lines(Table(("", "check", "finding", "what to do"), block.entries, empty="no problems"), style)
    return _checklist_lines(block, style)


def _checklist_lines(checklist: Checklist, style: Style) -> Iterator[str]:
    """Problems first, each with what to do on a line that can be copied, then what passed."""
    levels = list(_MARKS)
    entries = sorted(checklist.entries, key=lambda entry: levels.index(entry[0]))
    passed = sum(entry[0] == levels[-1] for entry in entries)
    shown = entries if checklist.verbose else entries[: len(entries) - passed]
    width = max((len(entry[1]) for entry in shown), default=0)
    for level, name, finding, advice in shown:
        yield f"{_mark(level, style)} {name:<{width}}  {cell(finding)}"
        if advice is not None:
            yield f"  {'':<{width}}  → {cell(advice)}"
    if passed and not checklist.verbose:
        yield f"{_mark(levels[-1], style)} {passed} passed (-v lists them)"


def _mark(level: str, style: Style) -> str:
    mark, colour = _MARKS[level]
    return click.style(mark, fg=colour) if style.coloured else mark


def _table_lines(table: Table, style: Style) -> Iterable[str]:
    if not table.rows:
        return [table.empty]
    rows = [[_cell(value, style) for value in row] for row in table.rows]
    heads = list(table.columns) if style.width is None else [column.upper() for column in table.columns]
    columns = [
        _Column(name, [head, *(row[at] for row in rows)])
        for at, (name, head) in enumerate(zip(table.columns, heads, strict=True))
    ]
    if style.width is not None and not style.wide:
        columns = _fitted(columns, style.width)
    title = [table.title] if table.title and style.width is not None else []
    return [*title, *(_line(columns, at, style) for at in range(len(rows) + 1))]


def _cell(value: Any, style: Style) -> str:
    if style.width is None:
        return cell(value)
    text = _age(value, style.now) if isinstance(value, dt.datetime) and not style.utc else cell(value)
    return text if style.wide or len(text) <= CELL_CHARS_MAX else _shortened(text, CELL_CHARS_MAX, in_middle=False)


def _age(moment: dt.datetime, now: dt.datetime) -> str:
    """`4 min ago`, `in 2 h`: the largest unit alone."""
    if not 1 < moment.year < dt.MAXYEAR:
        return cell(moment)
    seconds = (now - moment).total_seconds()
    length = " ".join(duration(abs(seconds)).split(" ")[:2])
    return f"{length} ago" if seconds >= 0 else f"in {length}"


@dataclass(frozen=True, slots=True)
class _Column:
    """One column: its head, then its cells."""

    name: str
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(len, self.cells))

    @property
    def least(self) -> int:
        return min(self.width, _NAMES.get(self.name) or _PROSE.get(self.name) or self.width)

    def shortened(self, width: int) -> _Column:
        return replace(self, cells=[_shortened(text, width, in_middle=self.name in _NAMES) for text in self.cells])


def _shortened(text: str, width: int, *, in_middle: bool) -> str:
    if len(text) <= width:
        return text
    tail = (width - 1) // 2 if in_middle else 0
    return text[: width - 1 - tail] + _CUT + (text[-tail:] if tail else "")


def _fitted(columns: list[_Column], width: int) -> list[_Column]:
    """As many of them as the width has room for, each as wide as it can be. One without a value goes before all."""
    if _total([column.least for column in columns]) > width:
        columns = [column for column in columns if set(column.cells[1:]) != {cell(None)}] or columns[:1]
    while len(columns) > 1 and _total([column.least for column in columns]) > width:
        names = [column.name for column in columns]
        spare = next((name for name in _SPARE if name in names[1:]), names[-1])
        columns = [column for column in columns[:-1] if column.name != spare] + columns[-1:] * (names[-1] != spare)
    widths = [column.least for column in columns]
    room = width - _total(widths)
    for at, column in enumerate(columns):
        more = min(max(0, room), column.width - widths[at])
        widths[at] += more
        room -= more
    return [column.shortened(limit) for column, limit in zip(columns, widths, strict=True)]


def _total(widths: list[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(columns: list[_Column], at: int, style: Style) -> str:
    texts = [
        _coloured(column, column.cells[at], at, style) + " " * (column.width - len(column.cells[at]))
        for column in columns
    ]
    return _GAP.join(texts).rstrip()


def _coloured(column: _Column, text: str, at: int, style: Style) -> str:
    if not style.coloured:
        return text
    if at == 0:
        return click.style(text, bold=True)
    colour = _COLOURS.get(text) if column.name in _STATES else None
    return click.style(text, fg=colour) if colour else text
