"""`effects reports list`, `show`, `download`, `cancel`, `resume` and `repair`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from effects.cli import (
    CommandResult,
    Context,
    Table,
    actor,
    before_key_option,
    command,
    key_option,
    limit_option,
    output_file,
    page_note,
    pass_context,
    reason_option,
    status_option,
    window_options,
)
from effects_reports.admin import cancel_report, repair_reports, resume_report
from effects_reports.api import ReportStatus, find_reports, report_status
from effects_reports.commands.status_text import delivery_facts, document_of, documents_of, facts_of, why_not_done
from effects_reports.delivery.overview import run_deliveries
from effects_reports.results.result_file import open_result
from effects_reports.tables.lists import RunFilters
from effects_reports.tables.schema import RUN_STATES

UNDER_WAY = ("requested", "planning", "running", "assembling")

run_argument = click.argument("run_id", metavar="RUN")


@click.command("list")
@click.option("--report", metavar="NAME", help="Only runs of this report.")
@status_option(RUN_STATES)
@key_option
@window_options("were requested")
@before_key_option("runs", "RUN")
@limit_option
@command
def list_(context: Context, /, *, status: str | None, limit: int, **filters: Any) -> CommandResult:
    """List runs, newest first."""
    runs = find_reports(context.app, RunFilters(state=status, limit=limit + 1, **filters))
    more, shown = len(runs) > limit, runs[:limit]
    note = _elsewhere(status) if not runs else page_note("run", shown[-1].run_id if more else None, more=more)
    return CommandResult([document_of(status) for status in shown], _table(shown), note=note)


def _elsewhere(status: str | None) -> str | None:
    """`running` is one state of a run under way, and few people know the others."""
    if status not in UNDER_WAY:
        return None
    others = ", ".join(state for state in UNDER_WAY if state != status)
    return f"a run under way may also be {others}: `effects reports list` without --status shows all"


def _table(reports: Sequence[ReportStatus]) -> Table:
    rows = [
        (status.run_id, status.report, status.key, status.state,
         f"{status.progress.fraction:.0%}", status.progress.rows_done, status.format, status.created_at)
        for status in reports
    ]  # fmt: skip
    columns = ("id", "report", "key", "status", "done", "rows", "format", "created")
    return Table(columns, rows, empty="no reports")


@click.command()
@run_argument
@command
def show(context: Context, *, run_id: str) -> CommandResult:
    """Show a run: status, progress, file and deliveries."""
    status = report_status(run_id, effects=context.app)
    waits = why_not_done(context, status)
    deliveries = run_deliveries(context.app, status)
    document = {**document_of(status), "waits": waits, "deliveries": documents_of(deliveries)}
    return CommandResult(document, {**facts_of(status, waits), **delivery_facts(deliveries)})


@click.command()
@run_argument
@click.option(
    "--to",
    "to",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Target file; - writes to stdout. Default: the file's own name, here.",
)
@pass_context
def download(context: Context, *, run_id: str, to: Path | None) -> None:
    """Download the file of a finished run."""
    status = report_status(run_id, effects=context.app)
    pieces = open_result(run_id, effects=context.app)
    if str(to) == "-":
        _copy(pieces, sys.stdout.buffer)
        return
    path = to or Path(Path(status.filename or run_id).name)  # the row may name another folder
    with output_file(path) as out:
        _copy(pieces, out)
    click.echo(f"{path}: {path.stat().st_size:,} bytes")


def _copy(pieces: Any, out: BinaryIO) -> None:
    for piece in pieces:
        out.write(piece)


@click.command()
@run_argument
@reason_option
@command
def cancel(context: Context, *, run_id: str, reason: str | None) -> CommandResult:
    """Stop a run.

    Its finished chunks are kept for a day, for `resume`.
    """
    state = cancel_report(run_id, actor=actor(), reason=reason, effects=context.app)
    return CommandResult({"run_id": run_id, "state": state}, f"{run_id} {state}")


@click.command()
@run_argument
@reason_option
@command
def resume(context: Context, *, run_id: str, reason: str | None) -> CommandResult:
    """Resume a failed or cancelled run.

    Finished chunks are not produced again.
    """
    state = resume_report(run_id, actor=actor(), reason=reason, effects=context.app)
    return CommandResult({"run_id": run_id, "state": state}, f"{run_id} {state}")


@click.command("repair")
@reason_option
@command
def repair_(context: Context, *, reason: str | None) -> CommandResult:
    """Repair runs whose jobs were lost.

    The schedule `reports.repair` does so every five minutes.
    """
    repaired = repair_reports(actor=actor(), reason=reason, effects=context.app)
    words = ", ".join(f"{count} {name}" for name, count in msgspec.structs.asdict(repaired).items() if count)
    return CommandResult(repaired, words or "no runs to repair")
