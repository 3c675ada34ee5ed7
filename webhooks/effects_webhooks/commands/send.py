"""`effects webhooks send` and `test`: events from the command line."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import cell
from effects_webhooks.api import deliver_webhook, send_test
from effects_webhooks.batch import Report, send_lines
from effects_webhooks.errors import EventInvalid
from effects_webhooks.event import WebhookEvent

EXIT_ERROR = 2


@click.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@json_option
@pass_context
def test(context: Context, endpoint_id: str, as_json: bool) -> None:
    """Send an event of type webhook.test to one endpoint, whatever its patterns; `effects work` delivers it."""
    receipt = send_test(endpoint_id, effects=context.app)
    context.echo(receipt if as_json else f"event {receipt.event_id}: see `effects why {receipt.event_id}`", as_json)


@click.command()
@click.option("--type", "event_type", metavar="TYPE", help="Event type, such as order.paid.")
@click.option("--data", metavar="JSON", help="The event's data, a JSON object.")
@click.option("--key", metavar="KEY", help="Idempotency key: the same key is one event.")
@click.option("--tenant", metavar="NAME", help="For the endpoints of this tenant.")
@click.option(
    "--file", "file", type=click.File("rb"), metavar="FILE",
    help='One event a line: {"type": …, "data": {…}}, perhaps key, id, occurred_at, tenant, ordering_key. -: stdin.',
)  # fmt: skip
@json_option
@pass_context
def send(
    context: Context,
    *,
    event_type: str | None,
    data: str | None,
    key: str | None,
    tenant: str | None,
    file: BinaryIO | None,
    as_json: bool,
) -> int:
    """Send one event, or a file of them; `effects work` delivers them.

    A bad line of a file is named by its number and the others are sent; the exit code is then 2.
    """
    if file is not None:
        if event_type or data or key or tenant:
            raise click.UsageError("--file goes without --type, --data, --key and --tenant: its lines have them")
        return _send_file(context, file, as_json)
    if event_type is None or data is None:
        raise click.UsageError("give --type and --data, or --file")
    event = WebhookEvent(event_type, _object(data), key=key, tenant=tenant)
    receipt = deliver_webhook(event, effects=context.app)
    known = " (it was known: nothing new is sent)" if receipt.existing else ""
    text = f"event {receipt.event_id}: {_counted(len(receipt.deliveries), 'endpoint')}{known}"
    context.echo(receipt if as_json else text, as_json)
    return 0


def _object(data: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise EventInvalid(f"--data is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise EventInvalid("--data must be a JSON object, such as '{\"id\": 1}'")
    return found


def _send_file(context: Context, file: BinaryIO, as_json: bool) -> int:
    app = context.app
    progress = _progress() if sys.stderr.isatty() and not as_json else None
    task = progress.add_task("sending", total=_size(file)) if progress else None

    def failed(number: int, reason: str) -> None:
        click.echo(f"error: line {number}: {cell(reason)}", err=True)

    def passed(size: int) -> None:
        if progress is not None and task is not None:
            progress.update(task, advance=size)

    with progress or nullcontext():
        report = send_lines(file, app, failed=failed, passed=passed)
    _print_report(context, report, as_json)
    return EXIT_ERROR if report.errors else 0


def _print_report(context: Context, report: Report, as_json: bool) -> None:
    if as_json:
        errors = [{"line": number, "error": reason} for number, reason in sorted(report.errors)]
        context.echo({**vars(report), "errors": errors}, as_json=True)
        return
    parts = [_counted(report.events, "event"), _counted(report.deliveries, "delivery", "deliveries")]
    if report.existing:
        parts.append(f"{report.existing:,} known before")
    if report.errors:
        parts.append(f"{_counted(len(report.errors), 'line')} refused")
    context.echo(", ".join(parts))


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _size(file: BinaryIO) -> int | None:
    """The bytes of a regular file; a pipe has no end that is known."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
