"""One way for commands to answer: a result for scripts (`--json`) with a text for people, and an exit code."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from effects.cli.context import Context, pass_context
from effects.cli.output import Table, cell, print_value
from effects.cli.program import as_called
from effects.errors import StoreConflict
from effects.exit_codes import ExitCode
from effects.store.db.records import Moment

P = ParamSpec("P")
T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="JSON output.")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command found or did.

    Args:
        document: what `--json` prints, as one JSON document: a struct, a mapping, a list or a Table.
        text: what people read: a text, a Table, a struct, a mapping, or a list of these, with an empty line between
            two. Default: the document.
        note: a line for standard error, with `--json` too.
        exit_code: 0 by default; 1 for findings and refusals.
    """

    document: Any
    text: Any = None
    note: str | None = None
    exit_code: int = ExitCode.DONE


def command(run: Callable[Concatenate[Context, P], CommandResult]) -> Callable[..., int]:
    """Make the callback of a click command of a function that takes the Context and the options.

    It adds `--json`, prints what the function returns, and gives its exit code. Errors pass through: `effects` prints
    one line for each and ends with its exit code (`effects.cli.main`). Stands next to the function, below the options.
    """

    @json_option
    @pass_context
    @wraps(run)
    def callback(context: Context, /, *args: P.args, **options: P.kwargs) -> int:
        as_json = bool(options.pop("as_json"))
        try:
            result = run(context, *args, **options)
        except StoreConflict as error:
            raise context.with_holder(error) from error
        text = result.document if result.text is None else result.text
        print_value(result.document if as_json else text, as_json=as_json)
        if result.note is not None:
            click.echo(as_called(result.note), err=True)
        return result.exit_code

    return callback


def page_note(noun: str, before: object, *, more: bool, since: Moment | None = None) -> str | None:
    """Say how to see the next page of a list.

    Args:
        noun: what `--before` names, such as `job`.
        before: the `--before` of the next page; None at the end.
        more: further rows match; otherwise older ones merely remain to be searched.
        since: when the oldest row was created that has been searched.
    """
    if before is None:
        return None
    name = cell(shlex.quote(str(before)))
    if more:
        return f"There are more: --before {name} shows older ones."
    created = "" if since is None else f" (created {cell(since)})"
    return f"Searched back to {noun} {name}{created}: --before {name} searches older ones."


def listed(
    rows: Sequence[T],
    limit: int,
    table: Callable[[Sequence[T]], Table],
    *,
    document: Callable[[T], Any] = lambda row: row,
) -> CommandResult:
    """Make the result of a list that was asked for one row more than `limit`: a note says that there are more.

    Args:
        table: for people. document: for scripts, of each row; default the row itself.
    """
    shown = rows[:limit]
    more = f"There are more than {limit:,}: use --limit." if len(rows) > limit else None
    return CommandResult([document(row) for row in shown], table(shown), note=more)
