"""`effects webhooks send` and `test`: events from the command line.

Of a file of JSON lines the good ones are sent, and each bad one is named by its line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from effects import Effects, EnqueueError, StoreUnavailable
from effects.cli import CommandResult, Context, actor, cell, command, key_option, parse_object, reason_option
from effects.extend.process import ExitCode
from effects_webhooks.api import deliver_webhook, deliver_webhooks, send_test
from effects_webhooks.commands.endpoints import tenant_option
from effects_webhooks.errors import EventInvalid
from effects_webhooks.request import WebhookEvent
from effects_webhooks.tenants import Tenant
from effects_webhooks.writing import BATCH, WebhookReceipt


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    data: dict[str, Any]
    key: str | None = None
    id: str | None = None
    occurred_at: datetime | None = None
    tenant: str | None = None
    ordering_key: str | None = None


@dataclass
class BatchResult:
    """What became of a file. `errors` has the number of each bad line, from 1, and what is wrong with it."""

    events: int = 0
    existing: int = 0
    deliveries: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)

    def add(self, receipt: WebhookReceipt) -> None:
        self.events += not receipt.existing
        self.existing += receipt.existing
        self.deliveries += 0 if receipt.existing else len(receipt.deliveries)


def send_lines(
    lines: Iterable[bytes],
    app: Effects,
    *,
    failed: Callable[[int, str], None] = lambda number, reason: None,
    passed: Callable[[int], None] = lambda size: None,
) -> BatchResult:
    """Send the events of `lines`, 500 in a transaction. Blank lines are skipped.

    Args:
        failed: called with the number of each bad line and the reason, as soon as it is known.
        passed: called with the bytes of the lines that are dealt with, for a progress bar.

    A crash leaves the batches that were committed. Run it again: an event with a key or an id is not sent twice.

    Raises:
        StoreUnavailable: the database is unavailable; the message names the first line whose result is not known.
    """
    result = BatchResult()

    def refuse(number: int, reason: str) -> None:
        result.errors.append((number, reason))
        failed(number, reason)

    numbered = enumerate(lines, 1)
    while batch := list(islice(numbered, BATCH)):
        good = list(_parsed(batch, refuse))
        try:
            for receipt in _sent(good, app, refuse):
                result.add(receipt)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}; what came before line {batch[0][0]} is sent") from error
        passed(sum(len(line) for _, line in batch))
    return result


def _parsed(
    batch: Sequence[tuple[int, bytes]], refuse: Callable[[int, str], None]
) -> Iterator[tuple[int, WebhookEvent]]:
    for number, line in batch:
        if line.strip():
            try:
                yield number, _parse_line(line)
            except EnqueueError as error:
                refuse(number, str(error))


def _parse_line(line: bytes) -> WebhookEvent:
    """The event of one line: an object with `type` and `data`, and perhaps `key`, `id`, `occurred_at`, `tenant`,
    `ordering_key`.

    Raises:
        EnqueueError: the line is invalid; the message tells why.
    """
    try:
        fields = msgspec.json.decode(line, type=_Line)
    except msgspec.ValidationError as error:
        raise EnqueueError(f"no event: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EnqueueError(f"no JSON: {error}") from None
    except RecursionError:
        raise EnqueueError("no event: nested too deeply") from None
    return WebhookEvent(
        fields.type, fields.data, key=fields.key, id=fields.id, occurred_at=fields.occurred_at, tenant=fields.tenant,
        ordering_key=fields.ordering_key,
    )  # fmt: skip


def _sent(
    good: Sequence[tuple[int, WebhookEvent]], app: Effects, refuse: Callable[[int, str], None]
) -> list[WebhookReceipt]:
    """One transaction for all; where one event spoils it, one for each."""
    try:
        return deliver_webhooks([event for _, event in good], effects=app)
    except EnqueueError:
        pass
    receipts = []
    for number, event in good:
        try:
            receipts.append(deliver_webhook(event, effects=app))
        except EnqueueError as error:
            refuse(number, str(error))
    return receipts


@click.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@tenant_option
@click.option("--type", "event_type", metavar="TYPE", help="Declared event type, whose example is sent.")
@reason_option
@command
def test(
    context: Context, *, endpoint_id: str, tenant: Tenant, event_type: str | None, reason: str | None
) -> CommandResult:
    """Send a test event to one endpoint.

    The event has the type webhook.test unless --type names another, and ignores the endpoint's patterns; `effects work`
    delivers it.
    """
    receipt = send_test(
        endpoint_id, event_type=event_type, actor=actor(), reason=reason, tenant=tenant, effects=context.app
    )
    return CommandResult(receipt, f"event {receipt.event_id}: see `effects why {receipt.event_id}`")


@click.command()
@click.option("--type", "event_type", metavar="TYPE", help="Event type, such as order.paid.")
@click.option("--data", metavar="JSON", help="The event's data, a JSON object.")
@key_option
@click.option("--tenant", metavar="NAME", help="Tenant of the event.")
@click.option(
    "--file", "file", type=click.File("rb"), metavar="FILE",
    help='JSON lines {"type": …, "data": {…}}, optionally key, id, occurred_at, tenant, ordering_key; - reads stdin.',
)  # fmt: skip
@command
def send(
    context: Context,
    *,
    event_type: str | None,
    data: str | None,
    key: str | None,
    tenant: str | None,
    file: BinaryIO | None,
) -> CommandResult:
    """Send one event, or a file of events.

    `effects work` delivers them. Invalid lines of a file are reported by number and the others are sent; the exit
    code is then 2.
    """
    if file is not None:
        if event_type or data or key or tenant:
            raise click.UsageError("--file goes without --type, --data, --key and --tenant: its lines have them")
        return _send_file(context, file)
    if event_type is None or data is None:
        raise click.UsageError("give --type and --data, or --file")
    fields = parse_object(data, "--data", EventInvalid, example='{"id": 1}')
    event = WebhookEvent(event_type, fields, key=key, tenant=tenant)
    receipt = deliver_webhook(event, effects=context.app)
    repeat_note = " (it was known: nothing new is sent)" if receipt.existing else ""
    reached = _counted(len(receipt.deliveries), "endpoint")
    if receipt.fan_out_job_id is not None:
        reached += f" now, and the others by job {receipt.fan_out_job_id}"
    if receipt.unwanted:
        reached = f"no endpoint takes it: see `effects why {receipt.event_id}`"
    text = f"event {receipt.event_id}: {reached}{repeat_note}"
    return CommandResult(receipt, text)


def _send_file(context: Context, file: BinaryIO) -> CommandResult:
    app = context.app
    progress = _progress() if sys.stderr.isatty() else None
    task = progress.add_task("sending", total=_size(file)) if progress else None

    def failed(number: int, reason: str) -> None:
        click.echo(f"error: line {number}: {cell(reason)}", err=True)

    def passed(size: int) -> None:
        if progress is not None and task is not None:
            progress.update(task, advance=size)

    with progress or nullcontext():
        result = send_lines(file, app, failed=failed, passed=passed)
    errors = [{"line": number, "error": reason} for number, reason in sorted(result.errors)]
    exit_code = ExitCode.ERROR if result.errors else ExitCode.DONE
    return CommandResult({**vars(result), "errors": errors}, _summary(result), exit_code=exit_code)


def _summary(result: BatchResult) -> str:
    parts = [_counted(result.events, "event"), _counted(result.deliveries, "delivery", "deliveries")]
    if result.existing:
        parts.append(f"{result.existing:,} known before")
    if result.errors:
        parts.append(f"{_counted(len(result.errors), 'line')} refused")
    return ", ".join(parts)


def _counted(count: int, singular: str, many: str | None = None) -> str:
    return f"{count:,} {singular if count == 1 else many or singular + 's'}"


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
