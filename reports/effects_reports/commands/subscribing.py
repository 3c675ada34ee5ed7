"""`effects reports subscriptions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from effects.cli import (
    CommandResult,
    Context,
    Table,
    actor,
    command,
    limit_option,
    listed,
    parse_age,
    parse_json,
    reason_option,
)
from effects_reports.delivery.subscriptions import (
    Subscription,
    list_subscriptions,
    pause_subscription,
    resume_subscription,
    subscribe,
    unsubscribe,
)
from effects_reports.errors import ReportInvalid

subscription_argument = click.argument("subscription_id", metavar="ID")


@click.group()
def subscriptions() -> None:
    """Manage who gets which report, and when."""


@subscriptions.command()
@click.argument("report", metavar="NAME")
@click.option("--to", metavar="ADDRESS", help="The recipient of a mail; needs --template and --link-to.")
@click.option("--bucket", metavar="BUCKET", help="Deliver into this bucket, instead of --to.")
@click.option("--object", "object_name", metavar="TEXT",
              help="Name in the bucket. Default: {report}/{run_id}/{filename}.")  # fmt: skip
@click.option("--template", metavar="NAME", help="Template of the mail.")
@click.option("--cron", metavar="TEXT", required=True, help="Cron expression, such as '30 6 * * MON-FRI'.")
@click.option("--zone", metavar="ZONE", default="UTC", show_default=True, help="IANA time zone.")
@click.option("--link-to", metavar="URL", help="Where download_app is mounted.")
@click.option("--link-for", "link_seconds", type=parse_age, default="3d", show_default=True, metavar="AGE",
              help="Validity of the link.")  # fmt: skip
@click.option("--link-uses", type=click.IntRange(1), metavar="N", help="Maximum downloads. Default: any number.")
@click.option("--attach", "attach_bytes_max", type=click.IntRange(0), default=0, metavar="BYTES",
              help="Attach a file of at most so many bytes. Default: always a link.")  # fmt: skip
@click.option("--params", "document", metavar="JSON", default="{}", show_default=True,
              help="Parameters, with {slot}, {slot_date} and {previous_slot_date} filled in.")  # fmt: skip
@click.option("--format", "format", metavar="FORMAT", help="File format. Default: the report's first.")
@click.option("--locale", metavar="LOCALE", help="Locale of the mail.")
@reason_option
@command
def add(context: Context, /, *, report: str, document: str, reason: str | None, **options: Any) -> CommandResult:
    """Send a report to a recipient or bucket at each slot."""
    params = parse_json(document, "--params", ReportInvalid)
    subscription_id = subscribe(report, params, actor=actor(), reason=reason, effects=context.app, **options)
    return CommandResult({"id": subscription_id}, subscription_id)


@subscriptions.command("list")
@click.option("--report", metavar="NAME", help="Only those of this report.")
@click.option("--to", metavar="ADDRESS", help="Only those of this recipient.")
@click.option("--bucket", metavar="BUCKET", help="Only those into this bucket.")
@limit_option
@command
def list_(context: Context, *, report: str | None, to: str | None, bucket: str | None, limit: int) -> CommandResult:
    """List subscriptions, without addresses and parameters."""
    rows = list_subscriptions(report=report, to=to, bucket=bucket, effects=context.app)
    return listed(rows, limit, _table, document=_document)


def _document(row: Subscription) -> dict[str, Any]:
    names = ("id", "report", "format", "cron", "zone", "schedule", "template", "bucket", "paused", "unopened",
             "created_at")  # fmt: skip
    return {name: getattr(row, name) for name in names}


def _table(rows: Sequence[Subscription]) -> Table:
    columns = ("id", "report", "format", "cron", "zone", "template", "bucket", "status", "created")
    cells = [
        (row.id, row.report, row.format, row.cron, row.zone, row.template, row.bucket,
         _status(row), row.created_at)
        for row in rows
    ]  # fmt: skip
    return Table(columns, cells, empty="no subscriptions")


def _status(row: Subscription) -> str:
    status = "paused" if row.paused else "active"
    return f"{status}, does not open" if row.unopened else status


@subscriptions.command()
@subscription_argument
@reason_option
@command
def remove(context: Context, *, subscription_id: str, reason: str | None) -> CommandResult:
    """End a subscription."""
    unsubscribe(subscription_id, actor=actor(), reason=reason, effects=context.app)
    return CommandResult({"id": subscription_id, "result": "removed"}, f"{subscription_id} removed")


@subscriptions.command()
@subscription_argument
@reason_option
@command
def pause(context: Context, *, subscription_id: str, reason: str | None) -> CommandResult:
    """Pause a subscription. Skipped slots are not caught up."""
    is_changed = pause_subscription(subscription_id, actor=actor(), reason=reason, effects=context.app)
    words = "paused" if is_changed else "was paused"
    return CommandResult({"id": subscription_id, "result": words}, f"{subscription_id} {words}")


@subscriptions.command()
@subscription_argument
@reason_option
@command
def resume(context: Context, *, subscription_id: str, reason: str | None) -> CommandResult:
    """Resume a subscription with its next slot."""
    is_changed = resume_subscription(subscription_id, actor=actor(), reason=reason, effects=context.app)
    words = "resumed" if is_changed else "was not paused"
    return CommandResult({"id": subscription_id, "result": words}, f"{subscription_id} {words}")
