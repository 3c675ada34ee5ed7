"""`effects failovers`: list, orphans, resolve."""

from __future__ import annotations

from collections.abc import Sequence

import click

from effects.cli.context import Context, actor
from effects.cli.options import limit_option, reason_option
from effects.cli.output import Table
from effects.cli.results import CommandResult, command, listed
from effects.store.recovery import failover_records
from effects.store.recovery.failover_records import EvidenceRecord, FailoverRecord


@click.group()
def failovers() -> None:
    """Show failovers of the database and what they lost."""


@failovers.command("list")
@limit_option
@command
def list_(context: Context, *, limit: int) -> CommandResult:
    """List the failovers that workers noticed, newest first."""
    app = context.app
    with app.store.read() as connection:
        records = failover_records.list_failovers(app.store, connection)
    return listed(records, limit, _failovers_table)


@failovers.command()
@limit_option
@command
def orphans(context: Context, *, limit: int) -> CommandResult:
    """List effects of jobs that a failover lost, newest first.

    Each arrived, or may have, and the database does not know its job. They are not repeated, and their keys are free.
    The job id is of the lost history: another job may have it now.
    """
    app = context.app
    with app.store.read() as connection:
        records = failover_records.list_orphans(app.store, connection)
    return listed(records, limit, orphans_table)


@failovers.command()
@click.argument("failover", metavar="ID", type=click.IntRange(min=1))
@reason_option
@command
def resolve(context: Context, *, failover: int, reason: str | None) -> CommandResult:
    """Resolve a failover once its orphans are looked into.

    `effects audit` and `effects doctor` no longer report it. Nothing is deleted.
    """
    changed = failover_records.resolve_failover(context.app.store, failover, actor=actor(), reason=reason)
    text = f"failover {failover} {'resolved' if changed else 'was resolved already'}"
    return CommandResult({"failover": failover, "result": "resolved", "changed": changed}, text)


def _failovers_table(records: Sequence[FailoverRecord]) -> Table:
    rows = [
        (
            record.id,
            record.noticed_at,
            f"{record.compared} of {record.workers}",
            record.recorded,
            record.unknowns,
            record.orphans,
            "open" if record.is_open else "resolved" if record.resolved_at else "complete",
        )
        for record in records
    ]
    columns = ("id", "noticed", "workers compared", "written back", "unknown", "orphans", "status")
    return Table(columns, rows, empty="no failovers")


def orphans_table(records: Sequence[EvidenceRecord]) -> Table:
    """Effects whose jobs the database does not know."""
    rows = [
        (
            record.failover_id,
            record.happened_at,
            record.job_type,
            record.key,
            record.job_id,
            record.outcome or "released",
            record.verdict,
            record.worker,
        )
        for record in records
    ]
    columns = ("failover", "happened", "type", "key", "job then", "outcome", "verdict", "worker")
    return Table(columns, rows, title="orphans", empty="no orphans")
