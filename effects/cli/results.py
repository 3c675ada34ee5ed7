"""One way for commands to answer: a result for scripts (`--json`), tables and texts for people, notices, and a file."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar

import click
import msgspec

from effects.cli.context import Context, pass_context
from effects.cli.process import as_called
from effects.cli.table import Checklist, Style, Table, cell, lines_of, style_of_output
from effects.errors import StoreConflict
from effects.kit import lazy
from effects.kit.exit_codes import ExitCode
from effects.kit.process import private_file
from effects.kit.text.unsafe import escape_unsafe, lines_without_unsafe
from effects.kit.text.wording import duration
from effects.store.limits.holds import is_unserved, read_worker_queues

with lazy.modules(__name__):
    from effects.operate.tables import held_up

# What people read in place of the name of a column or of a field.
_SHOWN_NAMES = {
    "job_type": "type", "run_at": "due", "tries": "attempts", "state": "status", "error_code": "code",
    "last_error": "error", "error_text": "error", "run_id": "id",
}  # fmt: skip


def print_value(value: Any, *, as_json: bool, style: Style | None = None) -> None:
    """Print a text, a Table or Checklist, a struct or a mapping, or a list of these with an empty line between two.

    Args:
        style: of tables; default that of standard output.
    """
    if as_json:
        plain = value.records() if isinstance(value, Table) else value
        document = msgspec.json.encode(msgspec.to_builtins(plain, enc_hook=str, str_keys=True))
        click.echo(as_called(escape_unsafe(msgspec.json.format(document, indent=2).decode())))
    elif isinstance(value, Table | Checklist):
        for line in lines_of(value, style or style_of_output()):
            click.echo(line)
    elif isinstance(value, str):
        click.echo(as_called(lines_without_unsafe(value)))
    elif isinstance(value, list):
        for number, block in enumerate(value):
            if number:
                click.echo()
            print_value(block, as_json=False, style=style)
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
        has_database: the text names the database; for other commands a line on a terminal does.
    """

    document: Any
    text: Any = None
    note: str | None = None
    exit_code: int = ExitCode.DONE
    has_database: bool = False


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
        style = style_of_output(wide=options.pop("output", None) is not None, utc=bool(options.pop("utc", False)))
        try:
            result = run(context, *args, **options)
        except StoreConflict as error:
            raise context.with_holder(error) from error
        text = result.document if result.text is None else result.text
        print_value(result.document if as_json else text, as_json=as_json, style=style)
        if result.note is not None:
            click.echo(as_called(result.note), err=True)
        if not result.has_database and context.has_app and sys.stderr.isatty():
            click.echo(f"({cell(str(context.bare_app.database))})", err=True)
        return result.exit_code

    return callback


def page_note(noun: str, before: object, *, more: bool, since: dt.datetime | None = None) -> str | None:
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


_NOTICE_SECONDS = 3.0  # what a running worker starts at once has begun by then


def notice_after(timeout: float) -> float:
    """Seconds of a wait that pass in silence."""
    return min(_NOTICE_SECONDS, timeout / 2)


def tell_wait(what: str, why: str, seconds: float) -> None:
    """Print, on standard error, what is waited for, why it has not ended, and for how long it is waited for."""
    click.echo(cell(f"{what}: {why}; waiting up to {duration(seconds)} more (--timeout)"), err=True)


def why_unserved(context: Context, queue: str) -> str | None:
    """Why no worker takes jobs of this queue, and the command that starts one; None where a worker does."""
    app = context.app
    with app.store.read() as connection:
        served = read_worker_queues(app.store, connection, app.settings.lease_seconds)
    if is_unserved(queue, served, app.queues):
        return f"no worker serves the queue {queue}: start one with `{held_up.serve_command(queue)}`"
    return None if served else "no worker is running: start one with `effects work`"


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """A file that an option names, written whole or not at all, with mode 0600: as `effects.kit.process`.

    Raises:
        click.FileError: it cannot be written.
    """
    try:
        with private_file(path) as file:
            yield file
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from None
