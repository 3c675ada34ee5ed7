"""`effects prune`."""

from __future__ import annotations

import click

from effects.cli.context import Context, actor
from effects.cli.options import reason_option
from effects.cli.output import Table
from effects.cli.results import CommandResult, command
from effects.retention import prune as run_prune


@click.command()
@click.option("--dry-run", is_flag=True, help="Preview only: count what would be deleted.")
@reason_option
@command
def prune(context: Context, *, dry_run: bool, reason: str | None) -> CommandResult:
    """Delete ended jobs past their retention, in batches.

    Workers also do this every ten minutes, by the schedule effects.prune. Retention is set by
    EFFECTS_RETENTION_JOBS_DAYS, EFFECTS_RETENTION_DEAD_DAYS, EFFECTS_RETENTION_EFFECTS_DAYS,
    EFFECTS_RETENTION_AUDIT_DAYS and per job type.
    Unresolved dead and unknown jobs are never deleted. Rows of job types that are not registered here (see --app) are
    kept for the longest of these.
    """
    result = run_prune(context.app, dry_run=dry_run, actor=actor(), reason=reason)
    rows = [
        ("ended jobs", result.jobs),
        ("effects", result.effects),
        ("groups", result.groups),
        ("limits", result.limits),
        ("slots", result.slots),
        ("audit log", result.audit_log),
        ("bulk actions", result.bulks),
        ("evidence of failovers", result.evidence),
        ("failovers", result.failovers),
        ("numbers over time", result.numbers),
    ]
    packages = [(f"rows of {name}", count) for name, count in sorted(result.packages.items())]
    columns = ("what", "would be deleted" if dry_run else "deleted")
    return CommandResult(result, Table(columns, [*rows, *packages], empty="no rows"))
