"""`effects prune`."""

from __future__ import annotations

import click

from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import Table
from effects.prune import prune as run_prune


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@json_option
@pass_context
def prune(context: Context, dry_run: bool, as_json: bool) -> None:
    """Delete what has ended and is older than its age, in small batches.

    Runs by itself every ten minutes, as the schedule effects.prune, where a worker runs. The ages are
    EFFECTS_RETENTION_JOBS_DAYS, EFFECTS_RETENTION_DEAD_DAYS and EFFECTS_RETENTION_EFFECTS_DAYS, and those of
    job types. Dead and unknown jobs that nobody has closed are never taken.
    """
    found = run_prune(context.app, dry_run=dry_run)
    if as_json:
        context.echo(found, as_json=True)
        return
    rows = [("ended jobs", found.jobs), ("effects", found.effects), ("groups", found.groups), ("limits", found.limits)]
    rows.append(("slots", found.slots))
    packages = [(f"rows of {name}", count) for name, count in sorted(found.packages.items())]
    context.echo(Table(("what", "would go" if dry_run else "deleted"), [*rows, *packages]))
