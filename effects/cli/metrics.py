"""`effects metrics`."""

from __future__ import annotations

import click

from effects.cli.context import Context, pass_context
from effects.observation.metrics import database_families, render


@click.command()
@pass_context
def metrics(context: Context) -> None:
    """Print queue metrics in the Prometheus text format.

    For the textfile collector of node_exporter, from cron. `effects work --metrics-port` serves the same metrics and
    those of the worker.
    """
    click.echo(render(database_families(context.app)), nl=False)
