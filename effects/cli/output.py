"""Printing: JSON for scripts, aligned columns for a pipe, a table for a terminal."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from effects.cli.program import as_called
from effects.text.unsafe import escape_unsafe, lines_without_unsafe, without_unsafe
from effects.text.wording import moment_text

CELL_CHARS_MAX = 100
# What people read in place of the name of a column or of a field.
_SHOWN_NAMES = {
    "job_type": "type", "run_at": "due", "tries": "attempts", "state": "status", "error_code": "code",
    "last_error": "error", "error_text": "error", "run_id": "id",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people; `as_json` prints them as a list of objects by column name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    empty: str
    title: str | None = None

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def print_value(value: Any, *, as_json: bool) -> None:
    """Print a text, a Table, a struct or a mapping, or a list of these with an empty line between two."""
    if as_json:
        plain = value.records() if isinstance(value, Table) else value
        document = msgspec.json.encode(msgspec.to_builtins(plain, enc_hook=str, str_keys=True))
        click.echo(as_called(escape_unsafe(msgspec.json.format(document, indent=2).decode())))
    elif isinstance(value, Table):
        _print_table(value)
    elif isinstance(value, str):
        click.echo(as_called(lines_without_unsafe(value)))
    elif isinstance(value, list):
        for number, block in enumerate(value):
            if number:
                click.echo()
            print_value(block, as_json=False)
    else:
        _print_facts(value if isinstance(value, Mapping) else msgspec.structs.asdict(value))


def _print_facts(facts: Mapping[str, Any]) -> None:
    names = [shown_name(name) for name in facts]
    width = max(map(len, names), default=0)
    for name, fact in zip(names, facts.values(), strict=True):
        click.echo(f"{name:<{width}}  {cell(fact)}")


def shown_name(field: str) -> str:
    """The name that people read of a struct's field: `created` for `created_at`, `type` for `job_type`."""
    return _SHOWN_NAMES.get(field, field.removesuffix("_at")).replace("_", " ")


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
    from rich.console import Console  # noqa: PLC0415 - takes a while, and a pipe needs none of it
    from rich.table import Table as RichTable  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    shown = RichTable(title=table.title, title_justify="left", header_style="bold")
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(_short(cell(value))) for value in row))
    Console().print(shown)


def _short(text: str) -> str:
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
