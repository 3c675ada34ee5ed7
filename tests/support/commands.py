"""`effects …` in this process, on an app that is there already: no import, no new engine, no second pool."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from effects import Effects
from effects.cli.context import Context
from effects.cli.main import cli, exit_code_of
from effects.kit.exit_codes import ExitCode
from tests.cli.conftest import Answer

# Commands that act without an argument, or need one of two: `jobs show` and its like are asked about what was listed.
ACTING = {
    "init", "prune", "retry", "cancel", "jobs show", "keys rotate", "alerts check", "email bounces", "reports repair",
    "webhooks send", "workers drain",
}  # fmt: skip


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        elif command is not None:
            yield " ".join((*path, name)), command


COMMANDS = {name: command for name, command in leaves(cli) if any("--json" in each.opts for each in command.params)}
READING = [name for name, command in COMMANDS.items() if not any(each.required for each in command.params)]


def command(app: Effects, *arguments: object, stdin: str = "") -> Answer:
    """Run one command as `effects --app` would with this app."""
    context = Context()
    vars(context).update(bare_app=app, app=app)
    name, *rest = map(str, arguments)
    chosen = cli.get_command(click.Context(cli), name)
    assert chosen is not None, f"there is no command {name}"
    with CliRunner().isolation(stdin) as (out, err, _):
        code = exit_code_of(lambda: chosen.main(rest, f"effects {name}", standalone_mode=False, obj=context))
        return Answer(code, out.getvalue().decode(), err.getvalue().decode())


def error_line(answer: Answer, exit_code: int = ExitCode.ERROR) -> str:
    """The one line of an error."""
    assert answer.exit_code == exit_code, answer
    [line] = answer.err.splitlines()
    assert line.startswith("error: ")
    return line
