"""`effects workers` (list, drain, forget) and `effects failovers` (list, orphans, resolve)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from effects.cli.context import Context, actor
from effects.cli.options import limit_option, reason_option
from effects.cli.results import CommandResult, command, listed
from effects.cli.table import Table
from effects.kit.text.wording import duration
from effects.operate.tables import failovers as failover_records
from effects.operate.tables.actions import forget_worker, request_drain
from effects.operate.tables.failovers import EvidenceRecord, FailoverRecord
from effects.operate.tables.queue_status import WorkerState, read_workers


@click.group()
def workers() -> None:
    """List, drain and forget workers."""


@workers.command("list")
@limit_option
@command
def list_workers(context: Context, *, limit: int) -> CommandResult:
    """List the workers, with what each last did."""
    app = context.app
    with app.store.read() as connection:
        states = read_workers(app.store, connection, app.settings.lease_seconds)
    result = listed(states, limit, _workers_table)
    notes = [note for note in (_silence(states[:limit]), result.note) if note is not None]
    return replace(result, note=" ".join(notes) or None)


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


def _silence(states: Sequence[WorkerState]) -> str | None:
    """What is to come of those that are not heard of."""
    silent = [state for state in states if state.state == "silent"]
    if not silent:
        return None
    jobs = sum(state.running for state in silent)
    return (
        f"{len(silent)} silent: what they run ({jobs:,} job{'' if jobs == 1 else 's'}) is lost with them unless they "
        "are heard of within a lease; another worker then runs it in quarantine, one job at a time."
    )


def _workers_table(states: Sequence[WorkerState]) -> Table:
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


@click.group()
def failovers() -> None:
    """Show failovers of the database and what they lost."""


@failovers.command("list")
@limit_option
@command
def list_failovers(context: Context, *, limit: int) -> CommandResult:
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
