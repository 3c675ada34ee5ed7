"""`effects queues`: list, pause, resume."""

from __future__ import annotations

from collections.abc import Sequence

import click

from effects.cli.context import Context, actor
from effects.cli.options import for_option, limit_option, reason_option
from effects.cli.output import Table
from effects.cli.results import CommandResult, command, listed
from effects.model.job import QUARANTINE_QUEUE
from effects.store.limits import queue_pauses as store_queues
from effects.store.limits.queue_pauses import QueueState


@click.group()
def queues() -> None:
    """Manage queues and their pauses."""


@queues.command("list")
@limit_option
@command
def list_(context: Context, *, limit: int) -> CommandResult:
    """List the queues with their live jobs and pauses."""
    app = context.app
    with app.store.read() as connection:
        states = store_queues.list_queues(app.store, connection, app.queues)
    return listed(states, limit, _table)


@queues.command()
@click.argument("name")
@for_option
@reason_option
@click.option("--create", is_flag=True, help="Allow a queue without jobs or job types.")
@command
def pause(context: Context, *, name: str, seconds: float | None, reason: str | None, create: bool) -> CommandResult:
    """Pause a queue. Running jobs finish.

    A worker finishes what it has claimed already, at most a second's work. The newest pause replaces the one before,
    even if it ends earlier. Paused time counts towards max_age: a job that exceeds it in the pause has one more
    attempt.
    """
    app = context.app
    with app.store.begin() as connection:
        pause = store_queues.pause(
            app.store,
            connection,
            name,
            actor=actor(),
            seconds=seconds,
            reason=reason,
            app_queues=app.queues,
            create=create,
        )
    return CommandResult({"queue": name, "result": "paused", "paused_until": pause.until}, str(pause))


@queues.command()
@click.argument("name")
@reason_option
@command
def resume(context: Context, *, name: str, reason: str | None) -> CommandResult:
    """Resume a queue."""
    app = context.app
    with app.store.begin() as connection:
        was_paused = store_queues.resume(
            app.store, connection, name, actor=actor(), reason=reason, app_queues=app.queues
        )
    app.notifier.send({name, QUARANTINE_QUEUE})  # jobs of this queue may wait in quarantine
    text = f"queue {name} resumed" if was_paused else f"queue {name} was not paused"
    return CommandResult({"queue": name, "result": "resumed", "was_paused": was_paused}, text)


def _table(states: Sequence[QueueState]) -> Table:
    rows = [
        (state.queue, state.waiting, state.running, state.paused_until, state.paused_by, state.reason)
        for state in states
    ]  # fmt: skip
    columns = ("queue", "waiting", "running", "paused until", "paused by", "reason")
    return Table(columns, rows, empty="no queues")
