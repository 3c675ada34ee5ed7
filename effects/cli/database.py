"""`effects init`."""

from __future__ import annotations

import click

from effects.cli.context import Context, json_option, pass_context
from effects.store import migrate


@click.command()
@json_option
@pass_context
def init(context: Context, as_json: bool) -> None:
    """Create the tables, or bring them to this version.

    Running it again changes nothing. It is the only command that creates a database.
    """
    applied = migrate.init(context.bare_app.store)
    if as_json:
        context.echo({"applied": applied}, as_json=True)
    elif applied:
        context.echo(f"the tables are ready (applied {', '.join(applied)})")
    else:
        context.echo("the tables are up to date")
