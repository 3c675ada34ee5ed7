"""`effects webhooks event-types`: what the app declares."""

from __future__ import annotations

import click

from effects.cli import CommandResult, Context, Table, command
from effects_webhooks.state import state_of


@click.command("event-types")
@command
def event_types_(context: Context) -> CommandResult:
    """List the event types that the app declares.

    With --json also their examples and schemas, as a page for partners needs them. The app that declares them is named
    by --app or EFFECTS_APP.
    """
    declared = list(state_of(context.app).event_types)
    data = [
        {
            "name": event_type.name,
            "description": event_type.description,
            "example": event_type.example_data(),
            "schema": event_type.schema,
        }
        for event_type in declared
    ]
    rows = [
        (event_type.name, event_type.description, "yes" if event_type.example is not None else "no")
        for event_type in declared
    ]
    return CommandResult(data, Table(("type", "description", "example"), rows, empty="no event types"))
