"""`effects workers`: list, drain, forget."""

from __future__ import annotations

from collections.abc import Sequence

import click

from effects.cli.context import Context, actor
from effects.cli.options import limit_option, reason_option
from effects.cli.output import Table
from effects.cli.results import CommandResult, command, listed
from effects.store.operator.actions import forget_worker, request_drain
from effects.store.operator.queue_status import WorkerState, read_workers
from effects.text.wording import duration


@click.group()
def workers() -> None:
    """List, drain and forget workers."""


@workers.command("list")
@limit_option
@command
def list_(context: Context, *, limit: int) -> CommandResult:
    """List the workers, with what each last did."""
    app = context.app
    with app.store.read() as connection:
        states = read_workers(app.store, connection, app.settings.lease_seconds)
    return listed(states, limit, _table)


@workers.command()
@click.argument("worker", metavar="[ID]", required=False)
@click.option("--all", "every", is_flag=True, help="All workers.")
@reason_option
@command
def drain(context: Context, *, worker: str | None, every: bool, reason: str | None) -> CommandResult:
    """Ask a worker to end in order, as after SIGTERM.

    With its next heartbeat it stops claiming, finishes or returns its jobs within the grace
    period, and exits 0. A service manager that always restarts it starts a fresh one.
    """
    if (worker is None) is not every:
        raise click.UsageError("give the ID of a worker (see `effects workers list`), or --all")
    worker_ids = request_drain(context.app.store, worker, actor=actor(), reason=reason)
    lines = [f"worker {worker_id} will drain from its next heartbeat" for worker_id in worker_ids]
    return CommandResult({"workers": worker_ids, "result": "drain_requested"}, "\n".join(lines) or "no workers running")


@workers.command()
@click.argument("worker", metavar="ID")
@reason_option
@command
def forget(context: Context, *, worker: str, reason: str | None) -> CommandResult:
    """Forget a worker that ended by a fault.

    Once its cause is mended: `effects doctor`, `effects status` and the metrics count it for an
    hour. The audit log keeps who forgot it. Its jobs must have been taken back.
    """
    forget_worker(context.app.store, worker, actor=actor(), reason=reason)
    return CommandResult({"worker": worker, "result": "forgotten"}, f"worker {worker} forgotten")


def _table(states: Sequence[WorkerState]) -> Table:
    rows = [
        (
            state.id,
            state.host,
            state.queues,
            state.started_at,
            *(None if ago is None else duration(ago)
              for ago in (state.silent_seconds, state.claimed_seconds, state.settled_seconds)),
            state.running,
            state.shown_state,
        )
        for state in states
    ]  # fmt: skip
    columns = ("id", "host", "queues", "started", "last seen ago", "claimed ago", "settled ago", "running", "status")
    return Table(columns, rows, empty="no workers running")
