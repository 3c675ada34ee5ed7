"""`effects …` in this process, on an app that is there already: no import, no new engine, no second pool."""

from __future__ import annotations

import click
from click.testing import CliRunner

from effects import Effects
from effects.cli.context import Context
from effects.cli.main import cli, exit_code_of
from effects.exit_codes import ExitCode
from tests.cli.conftest import Answer


def command(app: Effects, *arguments: object) -> Answer:
    """Run one command as `effects --app` would with this app."""
    context = Context()
    vars(context).update(bare_app=app, app=app)
    name, *rest = map(str, arguments)
    chosen = cli.get_command(click.Context(cli), name)
    assert chosen is not None, f"there is no command {name}"
    with CliRunner().isolation() as (out, err, _):
        code = exit_code_of(lambda: chosen.main(rest, f"effects {name}", standalone_mode=False, obj=context))
        return Answer(code, out.getvalue().decode(), err.getvalue().decode())


def error_line(answer: Answer, exit_code: int = ExitCode.ERROR) -> str:
    """The one line of an error."""
    assert answer.exit_code == exit_code, answer
    [line] = answer.err.splitlines()
    assert line.startswith("error: ")
    return line
