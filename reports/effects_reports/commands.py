"""`effects reports`: request, watch, fetch, cancel, take up again."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import Table, duration
from effects_reports import explanation, sweep
from effects_reports.api import (
    ReportStatus,
    cancel_report,
    list_reports,
    report_status,
    request_report,
    resume_report,
)
from effects_reports.errors import ReportInvalid
from effects_reports.results import open_result
from effects_reports.tables.schema import RUN_STATES

EXIT_FAILED = 1
LOOK_SECONDS = 0.5

_run_argument = click.argument("run_id", metavar="RUN")


@click.group()
def reports() -> None:
    """Reports: request one, see how far it is, fetch its file."""


@reports.command()
@click.argument("name", metavar="NAME")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Give it again for more.")
@click.option("--params", "document", metavar="JSON", help="All params as one JSON object.")
@click.option("--format", "file", metavar="FORMAT", help="Such as csv, ndjson.gz or xlsx; default the report's first.")
@click.option("--key", metavar="KEY", help="Request key: the same key is the same run.")
@click.option("--wait", is_flag=True, help="Until it has ended, with a progress bar on a terminal.")
@json_option
@pass_context
def request(
    context: Context,
    *,
    name: str,
    params: tuple[str, ...],
    document: str | None,
    file: str | None,
    key: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Request a report; `effects work` makes it. With --wait, exit code 1 says that it failed or was cancelled."""
    app = context.app
    receipt = request_report(name, _params(params, document), format=file, request_key=key, effects=app)
    if not wait:
        known = f" (it was known, and is {receipt.state})" if receipt.existing else ""
        context.echo(receipt if as_json else f"{receipt.run_id}{known}", as_json)
        return 0
    status = _await(lambda: report_status(receipt.run_id, effects=app), shown=sys.stderr.isatty() and not as_json)
    context.echo(_document(status) if as_json else _facts(status), as_json)
    return 0 if status.state == "ready" else EXIT_FAILED


def _params(pairs: tuple[str, ...], document: str | None) -> dict[str, Any]:
    if document is not None and pairs:
        raise click.UsageError("give --param or --params, not both")
    if document is not None:
        try:
            found = json.loads(document)
        except ValueError as error:
            raise ReportInvalid(f"--params is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ReportInvalid('--params must be a JSON object, such as \'{"day": "2026-01-14"}\'')
        return found
    given = {}
    for pair in pairs:
        name, middle, value = pair.partition("=")
        if not middle:
            raise click.UsageError(f"--param is {pair!r}; give NAME=VALUE")
        given[name] = value
    return given


# -- waiting ----------------------------------------------------------------------------------------------------


def _await(look: Callable[[], ReportStatus], *, shown: bool) -> ReportStatus:
    """The status once the run has ended."""
    pause = threading.Event()
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rows]}"), TimeElapsedColumn(), console=Console(stderr=True),
    )  # fmt: skip
    with bar if shown else nullcontext():
        task = bar.add_task("requested", total=1.0, rows="")
        while not (status := look()).ended:
            bar.update(task, completed=status.progress.fraction, description=status.state, rows=_rows(status))
            pause.wait(LOOK_SECONDS)
        bar.update(task, completed=status.progress.fraction, description=status.state, rows=_rows(status))
    return status


def _rows(status: ReportStatus) -> str:
    """`1,200,000 of 2,000,000 rows, 310,000/s, 3 s left`."""
    progress = status.progress
    known = "" if progress.rows_total is None else f" of {_about(progress.total_kind)}{progress.rows_total:,}"
    parts = [f"{progress.rows_done:,}{known} rows"]
    if progress.rows_per_second is not None and status.state == "running":
        parts.append(f"{progress.rows_per_second:,.0f}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


def _about(kind: str) -> str:
    return "about " if kind == "estimated" else ""


# -- looking ----------------------------------------------------------------------------------------------------


@reports.command("list")
@click.option("--report", metavar="NAME", help="Runs of this report only.")
@click.option("--state", type=click.Choice(RUN_STATES), help="Runs in this state only.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N")
@json_option
@pass_context
def list_(context: Context, *, report: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """Runs, the newest first."""
    found = list_reports(report=report, state=state, limit=limit, effects=context.app)
    rows = [
        (one.run_id, one.report, one.key if one.key != one.run_id else None, one.state,
         f"{one.progress.fraction:.0%}", one.progress.rows_done, one.format, one.created_at)
        for one in found
    ]  # fmt: skip
    columns = ("run", "report", "key", "state", "done", "rows", "format", "created_at")
    context.echo(list(map(_document, found)) if as_json else Table(columns, rows, empty="no reports"), as_json)


@reports.command()
@_run_argument
@json_option
@pass_context
def show(context: Context, *, run_id: str, as_json: bool) -> None:
    """One run: its state, how far it is, its file."""
    status = report_status(run_id, effects=context.app)
    context.echo(_document(status) if as_json else _facts(status), as_json)


def _document(status: ReportStatus) -> dict[str, Any]:
    """For scripts, without the params: as of jobs, what was given is not shown."""
    return {name: fact for name, fact in msgspec.structs.asdict(status).items() if name != "params"}


def _facts(status: ReportStatus) -> dict[str, Any]:
    """What is known, without what is not there."""
    progress = status.progress
    facts: dict[str, Any] = {
        "run": status.run_id, "report": status.report, "key": None if status.key == status.run_id else status.key,
        "generation": status.generation if status.generation > 1 else None, "state": status.state,
        "done": f"{progress.fraction:.0%}, {_rows(status)}, {progress.chunks_done} of {progress.chunks_total} chunks",
        "format": status.format, "consistency": status.consistency, "error": status.error_text,
        "error_code": status.error_code, "file": status.filename, "bytes": status.bytes, "sha256": status.sha256,
        "created_at": status.created_at, "ended_at": status.ended_at,
        "expires_at": status.expires_at if status.state == "ready" else None,
    }  # fmt: skip
    return {name: fact for name, fact in facts.items() if fact is not None}


@reports.command()
@click.argument("name", metavar="NAME")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Give it again for more.")
@click.option("--params", "document", metavar="JSON", help="All params as one JSON object.")
@click.option("--format", "file", metavar="FORMAT", help="As for `request`.")
@json_option
@pass_context
def explain(
    context: Context, *, name: str, params: tuple[str, ...], document: str | None, file: str | None, as_json: bool
) -> int:
    """What a request would do: its SELECT, chunks, estimate and route, and what would refuse it. Reads no row.

    Exit code 1 says that it would be refused.
    """
    found = explanation.explain_report(name, _params(params, document), format=file, effects=context.app)
    joined = {"columns": ", ".join(found.columns), "refusals": "; ".join(found.refusals) or None}
    context.echo(found if as_json else {**msgspec.structs.asdict(found), **joined}, as_json)
    return EXIT_FAILED if found.refusals else 0


# -- the file ---------------------------------------------------------------------------------------------------


@reports.command()
@_run_argument
@click.option(
    "--to", "to", type=click.Path(path_type=Path), metavar="FILE", help="Default: its own name, here; -: stdout."
)
@pass_context
def download(context: Context, *, run_id: str, to: Path | None) -> None:
    """Copy the file of a run that is ready from the storage to here."""
    status = report_status(run_id, effects=context.app)
    pieces = open_result(run_id, effects=context.app)
    if str(to) == "-":
        _copy(pieces, sys.stdout.buffer)
        return
    path = to or Path(status.filename or run_id)
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("wb") as out:
        _copy(pieces, out)
    unfinished.replace(path)
    click.echo(f"{path}: {path.stat().st_size:,} bytes")


def _copy(pieces: Any, out: BinaryIO) -> None:
    for piece in pieces:
        out.write(piece)


# -- acting -----------------------------------------------------------------------------------------------------


@reports.command()
@_run_argument
@json_option
@pass_context
def cancel(context: Context, *, run_id: str, as_json: bool) -> None:
    """Stop a run. Its finished chunks are kept for a day, for `resume`."""
    state = cancel_report(run_id, effects=context.app)
    context.echo({"run_id": run_id, "state": state} if as_json else f"{run_id} is {state}", as_json)


@reports.command()
@_run_argument
@json_option
@pass_context
def resume(context: Context, *, run_id: str, as_json: bool) -> None:
    """Take up a run that has failed or was cancelled; finished chunks are not made again."""
    state = resume_report(run_id, effects=context.app)
    context.echo({"run_id": run_id, "state": state} if as_json else f"{run_id} is {state}", as_json)


@reports.command("sweep")
@json_option
@pass_context
def sweep_(context: Context, *, as_json: bool) -> None:
    """Repair what lost jobs left behind; the schedule `reports.sweep` does it every five minutes."""
    swept = sweep.sweep_reports(effects=context.app)
    words = ", ".join(f"{count} {name}" for name, count in msgspec.structs.asdict(swept).items() if count)
    context.echo(swept if as_json else words or "nothing to repair", as_json)
