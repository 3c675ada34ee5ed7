"""`effects doctor`."""

from __future__ import annotations

import click

from effects.cli.context import Context, refuse_missing_file
from effects.cli.output import Table
from effects.cli.results import CommandResult, command
from effects.observation.doctor import examine, exit_code


@click.command()
@click.option("--quiet", is_flag=True, help="Print problems only; nothing if there are none.")
@command
def doctor(context: Context, *, quiet: bool) -> CommandResult:
    """Check database, workers, keys and settings.

    Each problem comes with advice. Exit codes, for monitoring: 0 no problems, 1 warnings, 2 errors.
    """
    app = context.bare_app
    refuse_missing_file(app)
    findings = examine(app)
    shown = [finding for finding in findings if finding.level != "ok"] if quiet else findings
    rows = [(finding.level, finding.check, finding.text, finding.advice) for finding in shown]
    table = Table(("", "check", "finding", "what to do"), rows, empty="no problems")
    return CommandResult(shown, table if shown or not quiet else [], exit_code=exit_code(findings))
