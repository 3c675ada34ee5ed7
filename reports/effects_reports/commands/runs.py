"""`effects reports list`, `show`, `download` and `repair`, and a run's status in words."""

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
    duration,
    key_option,
    limit_option,
    output_file,
    page_note,
    pass_context,
    reason_option,
    status_option,
    why_unserved,
    window_options,
)
from effects_reports.admin import repair_reports
from effects_reports.api import (
    BucketDelivery,
    ReportStatus,
    RunDeliveries,
    failing_step,
    find_reports,
    open_result,
    report_status,
    run_deliveries,
)
from effects_reports.routing import QUEUE
from effects_reports.tables.runs import RunFilters
from effects_reports.tables.schema import RUN_STATES


def rows_of(status: ReportStatus) -> str:
    """`1,200,000 of 2,000,000 rows, 310,000/s, 3 s left`."""
    progress = status.progress
    total_note = "" if progress.rows_total is None else f" of {_about(progress.total_kind)}{progress.rows_total:,}"
    parts = [f"{progress.rows_done:,}{total_note} rows"]
    if progress.rows_per_second is not None and status.state == "running":
        parts.append(f"{progress.rows_per_second:,.0f}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


def _about(kind: str) -> str:
    return "about " if kind == "estimated" else ""


def document_of(status: ReportStatus) -> dict[str, Any]:
    """For scripts, without the params: as of jobs, what was given is not shown."""
    return {name: fact for name, fact in msgspec.structs.asdict(status).items() if name != "params"}


def why_not_done(context: Context, status: ReportStatus) -> str | None:
    """What a run under way waits for: a step that has failed and is tried again, or a worker."""
    if status.ended:
        return None
    step = failing_step(context.app, status.run_id)
    unserved = why_unserved(context, QUEUE)
    failed = (
        None if step is None else f"job {step.job_id} is tried again after: {step.error} (`effects why {step.job_id}`)"
    )
    return "; ".join(filter(None, (failed, unserved))) or None


def facts_of(status: ReportStatus, waits: str | None = None) -> dict[str, Any]:
    """What is known, without what is not there."""
    progress = status.progress
    facts: dict[str, Any] = {
        "id": status.run_id, "report": status.report, "key": status.key,
        "generation": status.generation if status.generation > 1 else None, "status": status.state,
        "done": f"{progress.fraction:.0%}, {rows_of(status)}, {progress.chunks_done} of {progress.chunks_total} chunks",
        "format": status.format, "consistency": status.consistency, "waits": waits,
        "error": status.error_text, "code": status.error_code,
        "file": status.filename, "bytes": status.bytes, "sha256": status.sha256,
        "created": status.created_at, "ended": status.ended_at,
        "expires": status.expires_at if status.state == "ready" else None,
    }  # fmt: skip
    return {name: fact for name, fact in facts.items() if fact is not None}


def delivery_facts(deliveries: RunDeliveries) -> dict[str, str]:
    """`bucket acme: done, attempts: 1, job 12`, one line a bucket."""
    return {f"bucket {each.bucket}": ", ".join(map(str, _parts(each))) for each in deliveries.buckets}


def _parts(each: BucketDelivery) -> list[object]:
    if each.delivery is None:
        return [each.state]
    delivery = each.delivery
    attempts = None if delivery.attempts is None else f"attempts: {delivery.attempts}"
    code = None if each.state == "done" else delivery.error_code
    return [part for part in (each.state, attempts, code, f"job {delivery.job_id}") if part is not None]


def documents_of(deliveries: RunDeliveries) -> list[dict[str, Any]]:
    """The same for scripts."""
    return [
        {
            "bucket": each.bucket, "state": each.state,
            **{name: getattr(each.delivery, name, None) for name in ("job_id", "attempts", "error_code", "changed_at")},
        }
        for each in deliveries.buckets
    ]  # fmt: skip


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
