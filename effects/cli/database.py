"""`effects init`."""

from __future__ import annotations

import click

from effects.cli.context import Context, json_option, pass_context
from effects.store import migrate, schedules
from effects.store.schedules import Registered


@click.command()
@json_option
@pass_context
def init(context: Context, as_json: bool) -> None:
    """Create the tables, or bring them to this version, and register the schedules of the app's code.

    Running it again changes nothing. It is the only command that creates a database. With --app, a schedule that
    was in the app's code and no longer is stops, and is named; a pause stays.
    """
    app = context.bare_app
    applied = migrate.init(app.store)
    # Without --app we know the built-in schedules only: what else there is belongs to an app that we have not seen.
    types = app.job_types.names() if context.app_path else []
    registered = schedules.register(app.store, list(app.schedules.values()), retire_types=types)
    if as_json:
        context.echo({"applied": applied, "schedules": registered}, as_json=True)
        return
    context.echo(f"the tables are ready (applied {', '.join(applied)})" if applied else "the tables are up to date")
    for line in _told(registered):
        context.echo(line)


def _told(registered: Registered) -> list[str]:
    words = {
        "registered": registered.added,
        "changed": registered.changed,
        "no longer in the app's code, and stopped": registered.retired,
    }
    return [f"schedules {word}: {', '.join(names)}" for word, names in words.items() if names]
