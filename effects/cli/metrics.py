"""`effects metrics`."""

from __future__ import annotations

import click

from effects.cli.context import Context, pass_context
from effects.metrics import database_families, render


@click.command()
@pass_context
def metrics(context: Context) -> None:
    """Print the queue's numbers in the text format of Prometheus.

    For a node exporter's textfile collector, from cron. A worker serves the same, and its own counts, with
    `effects work --metrics-port`.
    """
    click.echo(render(database_families(context.app)), nl=False)
