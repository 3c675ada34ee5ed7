"""Notices of a command that waits for workers: that none is running, and how long it still waits."""

from __future__ import annotations

import click

from effects.cli.context import Context
from effects.cli.output import cell
from effects.store.limits.holds import read_worker_queues
from effects.text.wording import duration

_NOTICE_SECONDS = 3.0  # what a running worker starts at once has begun by then


def notice_after(timeout: float) -> float:
    """Seconds of a wait that pass in silence."""
    return min(_NOTICE_SECONDS, timeout / 2)


def tell_wait(what: str, why: str, seconds: float) -> None:
    """Print, on standard error, what is waited for, why it has not ended, and for how long it is waited for."""
    click.echo(cell(f"{what}: {why}; waiting up to {duration(seconds)} more (--timeout)"), err=True)


def why_unserved(context: Context, queue: str) -> str | None:
    """Why no worker takes jobs of this queue, and the command that starts one; None where a worker does."""
    app = context.app
    with app.store.read() as connection:
        served = read_worker_queues(app.store, connection, app.settings.lease_seconds)
    if any(queue in queues for queues in served):
        return None
    running = f"no running worker serves the queue {queue}" if served else "no worker is running"
    return f"{running}: start one with `effects work`"
