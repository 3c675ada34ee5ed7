"""`effects email show`, `list`, `resend`, `test`, `export` and `forget`: messages on record, by key or by address."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

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
    override_option,
    page_note,
    reason_option,
    required_reason_option,
    status_option,
    window_options,
)
from effects.extend.ledger import LEDGER_STATES
from effects.extend.process import ExitCode
from effects.extend.text import phases_ms
from effects_email import admin
from effects_email.admin import EmailSummary, list_emails
from effects_email.events import FATES
from effects_email.personal import export_address, forget_address
from effects_email.settings import DEFAULT_TRANSPORT


@click.command()
@click.argument("name", metavar="KEY")
@command
def show(context: Context, *, name: str) -> CommandResult:
    """Show a message by key, Message-ID or job id."""
    record = admin.get_email(context.app, name)
    fields = [field for field in record.__struct_fields__ if field not in ("recipients", "attempts", "events")]
    blocks: list[Any] = [{field: getattr(record, field) for field in fields}]
    if record.recipients:
        rows = [
            (recipient.kind, recipient.address, recipient.outcome, recipient.code) for recipient in record.recipients
        ]
        blocks.append(Table(("kind", "recipient", "outcome", "code"), rows, empty="no recipients"))
    if record.attempts:
        columns = ("attempt", "transport", "outcome", "code", "ended")
        tries = [(row.attempt, row.transport, row.outcome, row.code, row.ended) for row in record.attempts]
        blocks.append(Table(columns, tries, empty="no attempts"))
    if record.events:
        event_rows = [(event.provider, event.kind, event.code, event.at) for event in record.events]
        blocks.append(Table(("provider", "event", "code", "at"), event_rows, empty="no events"))
    return CommandResult(record, blocks)


@click.command("list")
@click.argument("address", required=False)
@status_option(LEDGER_STATES)
@click.option("--fate", type=click.Choice(list(FATES)), help="What was reported after a server took it.")
@key_option
@window_options("were created")
@before_key_option("messages", "KEY")
@limit_option
@command
def list_(context: Context, /, **filters: Any) -> CommandResult:
    """List messages, to ADDRESS if given, newest first.

    By status or fate, without ADDRESS, one page looks at 10,000 messages. A note then says how to see older ones.
    """
    page = list_emails(context.app, **filters)
    note = page_note("message", page.next_before, more=page.more)
    return CommandResult([_facts(email) for email in page.emails], _table(page.emails), note=note)


def _facts(email: EmailSummary) -> dict[str, Any]:
    return {
        "key": email.key, "status": email.state, "fate": email.fate, "outcome": email.outcome,
        "template": email.template, "attempts": email.tries, "code": email.reply_code, "created": email.created_at,
    }  # fmt: skip


def _table(emails: Sequence[EmailSummary]) -> Table:
    columns = ("key", "status", "fate", "outcome", "template", "attempts", "code", "created")
    return Table(columns, [tuple(_facts(email).values()) for email in emails], empty="no messages")


@click.command()
@click.argument("name", metavar="KEY")
@override_option
@reason_option
@command
def resend(context: Context, *, name: str, even_if_done: bool, reason: str | None) -> CommandResult:
    """Send an ended message again, from its newest template.

    It is another message, with a new Message-ID and Date. `effects retry KEY` sends the same bytes.
    """
    requeued = admin.requeue_email(
        context.app, name, actor=actor(), reason=reason, render_again=True, confirm_unknown=even_if_done,
        confirm_done=even_if_done,
    )  # fmt: skip
    document = {"job_id": requeued.job_id, "result": "queued", "queue": requeued.queue}
    return CommandResult(document, f"job {requeued.job_id} sends it")


@click.command()
@click.argument("address")
@click.option("--transport", default=DEFAULT_TRANSPORT, show_default=True, help="Name of a configured transport.")
@reason_option
@command
def test(context: Context, *, address: str, transport: str, reason: str | None) -> CommandResult:
    """Send a test message to ADDRESS at once.

    It bypasses the queue and shows the server's reply. Exit code 1 if the message was not accepted.
    """
    send_result = admin.send_test_email(context.app, address, transport, actor=actor(), reason=reason)
    verdict, reply = send_result.verdict, send_result.verdict.reply
    facts = {
        "result": verdict.kind, "why": verdict.reason, "code": verdict.code,
        "stage": reply.stage if reply is not None else None, "reply": reply.text or None if reply is not None else None,
        "server": send_result.peer, "tls": send_result.tls, "id": send_result.provider_id,
        "ms": phases_ms(send_result.phases),
    }  # fmt: skip
    return CommandResult(facts, exit_code=ExitCode.DONE if verdict.kind == "accepted" else ExitCode.FINDINGS)


@click.command()
@click.argument("address")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@reason_option
@command
def export(context: Context, *, address: str, file: Path, reason: str | None) -> CommandResult:
    """Write what is kept of ADDRESS into FILE, as ZIP.

    It has index.json and each message as .eml. An existing FILE is replaced.
    """
    with output_file(file) as out:
        exported = export_address(address, out, actor=actor(), reason=reason, effects=context.app)
    text = f"{file}: {exported.messages} messages, {exported.contents} of them with their words"
    return CommandResult(exported, text)


@click.command()
@click.argument("address")
@required_reason_option
@command
def forget(context: Context, *, address: str, reason: str) -> CommandResult:
    """Forget what is kept of ADDRESS.

    Messages to it that wait are cancelled; suppressions stay, by digest. Exit code 1 if messages are left that are
    still to be sent: forget again when they have ended.
    """
    forgotten = forget_address(address, actor=actor(), reason=reason, effects=context.app)
    facts = {
        "messages": forgotten.messages, "cancelled": forgotten.cancelled, "files": forgotten.files,
        "events": forgotten.events, "suppressions kept": forgotten.suppressions,
        "still to be sent": ", ".join(forgotten.waiting) or None,
    }  # fmt: skip
    exit_code = ExitCode.FINDINGS if forgotten.waiting else ExitCode.DONE
    return CommandResult(forgotten, facts, exit_code=exit_code)
