"""`effects email show`, `list`, `requeue` and `test`: messages on record, and a test of a transport."""

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
    override_options,
    reason_option,
    status_option,
    window_options,
)
from effects.extend import LEDGER_STATES, ExitCode, Window, phases_ms
from effects_email import admin
from effects_email.admin import EmailRecord
from effects_email.settings import DEFAULT_TRANSPORT


@click.command()
@click.argument("name", metavar="KEY")
@command
def show(context: Context, *, name: str) -> CommandResult:
    """Show a message by key, Message-ID or job id."""
    record = admin.get_email(context.app, name)
    fields = [field for field in record.__struct_fields__ if field not in ("recipients", "events")]
    blocks: list[Any] = [{field: getattr(record, field) for field in fields}]
    if record.recipients:
        rows = [
            (recipient.kind, recipient.address, recipient.outcome, recipient.code) for recipient in record.recipients
        ]
        blocks.append(Table(("kind", "recipient", "outcome", "code"), rows, empty="no recipients"))
    if record.events:
        event_rows = [(event.provider, event.kind, event.code, event.at) for event in record.events]
        blocks.append(Table(("provider", "event", "code", "at"), event_rows, empty="no events"))
    return CommandResult(record, blocks)


@click.command("list")
@click.argument("address")
@status_option(LEDGER_STATES)
@window_options("were created")
@limit_option
@command
def list_to(context: Context, *, address: str, status: str | None, window: Window, limit: int) -> CommandResult:
    """List messages to ADDRESS, newest first."""
    records = admin.emails_to(context.app, address, limit + 1, status=status, window=window)
    return listed(records, limit, _table, document=_facts)


def _facts(record: EmailRecord) -> dict[str, Any]:
    return {
        "key": record.key, "status": record.state, "outcome": record.outcome, "template": record.template,
        "attempts": record.tries, "code": record.reply_code, "created": record.created_at,
    }  # fmt: skip


def _table(records: Sequence[EmailRecord]) -> Table:
    columns = ("key", "status", "outcome", "template", "attempts", "code", "created")
    return Table(columns, [tuple(_facts(record).values()) for record in records], empty="no messages")


@click.command()
@click.argument("name", metavar="KEY")
@click.option("--render-again", is_flag=True, help="Render again from the newest template, with a new Message-ID.")
@override_options
@reason_option
@command
def requeue(
    context: Context, *, name: str, render_again: bool, even_if_unknown: bool, even_if_done: bool, reason: str | None
) -> CommandResult:
    """Requeue an ended message, with the same bytes."""
    requeued = admin.requeue_email(
        context.app, name, actor=actor(), reason=reason, render_again=render_again, confirm_unknown=even_if_unknown,
        confirm_done=even_if_done,
    )  # fmt: skip
    document = {"job_id": requeued.job_id, "result": "queued", "queue": requeued.queue}
    return CommandResult(document, f"job {requeued.job_id} sends it")


@click.command()
@click.argument("address")
@click.option("--transport", default=DEFAULT_TRANSPORT, show_default=True, help="Name of a configured transport.")
@command
def test(context: Context, *, address: str, transport: str) -> CommandResult:
    """Send a test message to ADDRESS at once.

    It bypasses the queue and shows the server's reply. Exit code 1 if the message was not accepted.
    """
    send_result = admin.send_test_email(context.bare_app, address, transport)
    verdict, reply = send_result.verdict, send_result.verdict.reply
    facts = {
        "result": verdict.kind, "why": verdict.reason, "code": verdict.code,
        "stage": reply.stage if reply is not None else None, "reply": reply.text or None if reply is not None else None,
        "server": send_result.peer, "tls": send_result.tls, "id": send_result.provider_id,
        "ms": phases_ms(send_result.phases),
    }  # fmt: skip
    return CommandResult(facts, exit_code=ExitCode.DONE if verdict.kind == "accepted" else ExitCode.FINDINGS)
