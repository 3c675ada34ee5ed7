"""`effects init`."""

from __future__ import annotations

import click

from effects.cli.context import Context, actor
from effects.cli.options import reason_option
from effects.cli.results import CommandResult, command
from effects.store.db import revisions
from effects.store.schedules import definitions as schedule_definitions
from effects.store.schedules.definitions import Registered


@click.command()
@reason_option
@command
def init(context: Context, *, reason: str | None) -> CommandResult:
    """Create or migrate tables and register schedules.

    Running it again changes nothing. It is the only command that creates a database. With --app, schedules that were
    removed from the app's code are stopped and listed; paused schedules stay paused.
    If a schedule's job would be refused when it runs, init fails and changes nothing.
    Workers may run meanwhile, this version's and the one's before. Tables that a later version has migrated stay
    as they are: init succeeds where they work with this one.
    """
    app = context.bare_app
    for schedule in app.schedules.values():
        app.job_types.check_declared(schedule)
    applied = app.create_tables(actor=actor(), reason=reason)
    # Without --app we know the built-in schedules only: what else there is belongs to an app that we have not seen.
    types = app.job_types.names() if context.app_path else []
    registered = schedule_definitions.register(app.store, list(app.schedules.values()), retire_types=types)
    newer = revisions.check(app.store)
    tables = f"tables are ready (applied {', '.join(applied)})" if applied else "tables are up to date"
    if newer:
        tables = f"tables are newer than this version, which works with them ({', '.join(newer)})"
    return CommandResult({"applied": applied, "schedules": registered}, "\n".join([tables, *_changes(registered)]))


def _changes(registered: Registered) -> list[str]:
    words = {
        "registered": registered.added,
        "changed": registered.changed,
        "removed from the app's code, stopped": registered.retired,
    }
    return [f"schedules {word}: {', '.join(names)}" for word, names in words.items() if names]
