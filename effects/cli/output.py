"""Printing: JSON for scripts, aligned columns for a pipe, a table for a terminal."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

CELL_CHARS_MAX = 100


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people; `as_json` prints them as a list of objects by column name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str | None = None
    empty: str = "nothing"

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def print_value(value: Any, *, as_json: bool) -> None:
    """Print a text, a Table, a struct or a mapping."""
    if as_json:
        plain = value.records() if isinstance(value, Table) else value
        document = msgspec.json.encode(msgspec.to_builtins(plain, enc_hook=str, str_keys=True))
        click.echo(msgspec.json.format(document, indent=2).decode())
    elif isinstance(value, Table):
        _print_table(value)
    elif isinstance(value, str):
        click.echo(value)
    else:
        facts: Mapping[str, Any] = value if isinstance(value, Mapping) else msgspec.to_builtins(value)
        width = max((len(name) for name in facts), default=0)
        for name, fact in facts.items():
            click.echo(f"{name:<{width}}  {cell(fact)}")


def cell(value: Any) -> str:
    """One value on one line. What came from outside cannot move the cursor or colour the screen."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dt.datetime):
        return moment(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else str(value)
    return "".join(char if char.isprintable() else " " for char in text)


def moment(value: dt.datetime) -> str:
    """A time as people read it, in UTC, to the second."""
    return value.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S") + "Z"


def duration(seconds: float) -> str:
    """A length of time in its two largest units: `3 s`, `2 min 5 s`, `1 h 10 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, unit in units:
        if whole >= size or (size == 1 and not parts):
            parts.append(f"{whole // size} {unit}")
            whole %= size
    return " ".join(parts[:2])


def _print_table(table: Table) -> None:
    if not table.rows:
        click.echo(table.empty)
        return
    if sys.stdout.isatty():
        _print_rich(table)
        return
    cells = [list(table.columns), *([cell(value) for value in row] for row in table.rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(table.columns))]
    for row in cells:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(table: Table) -> None:
    shown = RichTable(title=table.title, title_justify="left", header_style="bold")
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(_short(cell(value))) for value in row))
    Console().print(shown)


def _short(text: str) -> str:
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
