"""`effects doctor`."""

from __future__ import annotations

import click

from effects.cli.context import Context, json_option, pass_context, refuse_missing_file
from effects.cli.output import Table
from effects.doctor import examine, exit_code


@click.command()
@click.option("--quiet", is_flag=True, help="Print only what is wrong.")
@json_option
@pass_context
def doctor(context: Context, quiet: bool, as_json: bool) -> int:
    """Look at the database, the workers, the keys and the settings; say what to do about each finding.

    Exit codes, for monitoring: 0 all well, 1 warnings, 2 errors.
    """
    app = context.bare_app
    refuse_missing_file(app.settings.database_url)
    findings = examine(app)
    shown = [one for one in findings if one.level != "ok"] if quiet else findings
    if as_json:
        context.echo(shown, as_json=True)
    else:
        rows = [(one.level, one.check, one.text, one.advice) for one in shown]
        context.echo(Table(("", "check", "finding", "what to do"), rows, empty="all well"))
    return exit_code(findings)
