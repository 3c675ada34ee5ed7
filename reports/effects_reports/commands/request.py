"""`effects reports request` and `explain`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from effects.cli import (
    CommandResult,
    Context,
    actor,
    command,
    key_option,
    notice_after,
    parse_age,
    parse_object,
    reason_option,
    tell_wait,
)
from effects.extend.process import ExitCode
from effects_reports.admin import rewind_report
from effects_reports.api import ReportStatus, report_status, request_report
from effects_reports.commands.runs import document_of, facts_of, rows_of, why_not_done
from effects_reports.errors import ParamsInvalid, ReportInvalid
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
@click.option("--timeout", type=parse_age, default="1h", show_default=True, metavar="AGE", help="Maximum wait.")
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
    timeout: float,
) -> CommandResult:
    """Request a report, which `effects work` then produces.

    With --wait, exit code 1 means that the run failed or was cancelled, 3 that the time ran out.
    """
    with _params_named():
        receipt = request_report(name, _params(params, document), format=file, key=key, effects=context.app)
    if not wait:
        repeat_note = f" (it was known, and is {receipt.state})" if receipt.existing else ""
        return CommandResult(receipt, f"{receipt.run_id}{repeat_note}")
    status = _await(context, receipt.run_id, timeout, shown=sys.stderr.isatty())
    exit_code = _exit_code(status)
    note = None
    if exit_code == ExitCode.TIME_RAN_OUT:
        note = f"{status.run_id} is still {status.state}: see `effects reports show {status.run_id}`"
    return CommandResult(document_of(status), facts_of(status), note=note, exit_code=exit_code)


def _exit_code(status: ReportStatus) -> ExitCode:
    if not status.ended:
        return ExitCode.TIME_RAN_OUT
    return ExitCode.DONE if status.state == "ready" else ExitCode.FINDINGS


@contextmanager
def _params_named() -> Iterator[None]:
    """Say how params are given here, where they do not fit.

    Raises:
        click.UsageError: they do not fit.
    """
    try:
        yield
    except ParamsInvalid as error:
        raise click.UsageError(f"{error}: give --param NAME=VALUE for each, or --params JSON") from None


def _params(pairs: tuple[str, ...], document: str | None) -> dict[str, Any]:
    if document is not None and pairs:
        raise click.UsageError("give --param or --params, not both")
    if document is not None:
        return parse_object(document, "--params", ReportInvalid, example='{"day": "2026-01-14"}')
    values = {}
    for pair in pairs:
        name, middle, value = pair.partition("=")
        if not middle:
            raise click.UsageError(f"--param is {pair!r}; give NAME=VALUE")
        values[name] = value
    return values


def _await(context: Context, run_id: str, timeout: float, *, shown: bool) -> ReportStatus:
    """The status once the run has ended, or the time is over. After some seconds it says what the run waits for."""
    pause = threading.Event()
    begun, has_told = time.monotonic(), False
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rows]}"), TimeElapsedColumn(), console=Console(stderr=True),
    )  # fmt: skip
    with bar if shown else nullcontext():
        task = bar.add_task("requested", total=1.0, rows="")
        while True:
            status = report_status(run_id, effects=context.app)
            bar.update(task, completed=status.progress.fraction, description=status.state, rows=rows_of(status))
            waited = time.monotonic() - begun
            if status.ended or waited >= timeout:
                return status
            if not has_told and waited >= notice_after(timeout):
                has_told = True
                tell_wait(run_id, why_not_done(context, status) or f"it is {status.state}", timeout - waited)
            pause.wait(min(LOOK_SECONDS, timeout - waited))


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Parameter of the runs. Repeatable.")
@click.option("--params", "document", metavar="JSON", help="All parameters as one JSON object.")
@reason_option
@command
def rewind(
    context: Context, *, name: str, params: tuple[str, ...], document: str | None, reason: str | None
) -> CommandResult:
    """Restart an incremental report from its first row.

    The next run has every row. A run in progress is not affected.
    """
    with _params_named():
        is_rewound = rewind_report(name, _params(params, document), actor=actor(), reason=reason, effects=context.app)
    words = "rewound" if is_rewound else "had no run yet"
    return CommandResult({"report": name, "rewound": is_rewound}, f"{name} {words}")


@click.command("explain")
@click.argument("name", metavar="NAME")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Parameter of the report. Repeatable.")
@click.option("--params", "document", metavar="JSON", help="All parameters as one JSON object.")
@click.option("--format", "file", metavar="FORMAT", help="File format, as for `request`.")
@click.option("--sheet", metavar="SHEET", help="Sheet of a workbook report. Default: its first.")
@command
def explain_(
    context: Context, *, name: str, params: tuple[str, ...], document: str | None, file: str | None, sheet: str | None
) -> CommandResult:
    """Explain what a request would do, without reading a row.

    Shows the SELECT, chunks, estimate and route, and why the request would be refused, if so: exit code 1.
    """
    with _params_named():
        explained = explain_report(name, _params(params, document), format=file, sheet=sheet, effects=context.app)
    facts = {**msgspec.structs.asdict(explained), "refusals": "; ".join(explained.refusals) or None}
    return CommandResult(explained, facts, exit_code=ExitCode.FINDINGS if explained.refusals else ExitCode.DONE)
