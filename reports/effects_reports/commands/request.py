"""`effects reports request` and `explain`."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from effects.cli import CommandResult, Context, command, key_option
from effects.extend import ExitCode
from effects_reports.api import ReportStatus, report_status, request_report
from effects_reports.commands.status_text import document_of, facts_of, rows_of
from effects_reports.errors import ReportInvalid
from effects_reports.explanation import explain_report

LOOK_SECONDS = 0.5


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Parameter of the report. Repeatable.")
@click.option("--params", "document", metavar="JSON", help="All parameters as one JSON object.")
@click.option(
    "--format",
    "file",
    metavar="FORMAT",
    help="File format, such as csv, ndjson.gz or xlsx. Default: the report's first.",
)
@key_option
@click.option("--wait", is_flag=True, help="Wait for the run to end, with a progress bar on a terminal.")
@command
def request(
    context: Context,
    *,
    name: str,
    params: tuple[str, ...],
    document: str | None,
    file: str | None,
    key: str | None,
    wait: bool,
) -> CommandResult:
    """Request a report, which `effects work` then produces.

    With --wait, exit code 1 means that the run failed or was cancelled.
    """
    app = context.app
    receipt = request_report(name, _params(params, document), format=file, key=key, effects=app)
    if not wait:
        repeat_note = f" (it was known, and is {receipt.state})" if receipt.existing else ""
        return CommandResult(receipt, f"{receipt.run_id}{repeat_note}")
    status = _await(lambda: report_status(receipt.run_id, effects=app), shown=sys.stderr.isatty())
    exit_code = ExitCode.DONE if status.state == "ready" else ExitCode.FINDINGS
    return CommandResult(document_of(status), facts_of(status), exit_code=exit_code)


def _params(pairs: tuple[str, ...], document: str | None) -> dict[str, Any]:
    if document is not None and pairs:
        raise click.UsageError("give --param or --params, not both")
    if document is not None:
        try:
            parsed = json.loads(document)
        except ValueError as error:
            raise ReportInvalid(f"--params is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise ReportInvalid('--params must be a JSON object, such as \'{"day": "2026-01-14"}\'')
        return parsed
    values = {}
    for pair in pairs:
        name, middle, value = pair.partition("=")
        if not middle:
            raise click.UsageError(f"--param is {pair!r}; give NAME=VALUE")
        values[name] = value
    return values


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
            bar.update(task, completed=status.progress.fraction, description=status.state, rows=rows_of(status))
            pause.wait(LOOK_SECONDS)
        bar.update(task, completed=status.progress.fraction, description=status.state, rows=rows_of(status))
    return status


@click.command("explain")
@click.argument("name", metavar="NAME")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Parameter of the report. Repeatable.")
@click.option("--params", "document", metavar="JSON", help="All parameters as one JSON object.")
@click.option("--format", "file", metavar="FORMAT", help="File format, as for `request`.")
@command
def explain_(
    context: Context, *, name: str, params: tuple[str, ...], document: str | None, file: str | None
) -> CommandResult:
    """Explain what a request would do, without reading a row.

    Shows the SELECT, chunks, estimate and route, and why the request would be refused, if so: exit code 1.
    """
    explained = explain_report(name, _params(params, document), format=file, effects=context.app)
    facts = {**msgspec.structs.asdict(explained), "refusals": "; ".join(explained.refusals) or None}
    return CommandResult(explained, facts, exit_code=ExitCode.FINDINGS if explained.refusals else ExitCode.DONE)
