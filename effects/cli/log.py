"""`effects log`: the audit log."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from effects.cli.context import Context
from effects.cli.options import JobId, before_option, limit_option, window_options
from effects.cli.output import Table
from effects.cli.results import CommandResult, command, page_note
from effects.store.audit_log.entries import AuditEntry, LogFilters, list_entries
from effects.store.db.sql import Window


@click.command()
@click.option("--actor", metavar="NAME", help="Who acted, such as cli:ann.")
@click.option("--action", metavar="NAME", help="What was done, such as pause.")
@click.option("--subject", metavar="KIND[:NAME]", help="What it was done to, such as limit or limit:smtp.")
@click.option("--job", "job_id", type=JobId(min=1), metavar="ID", help="Same as --subject job:ID.")
@window_options("were written")
@before_option("entries")
@limit_option
@command
def log(
    context: Context,
    *,
    actor: str | None,
    action: str | None,
    subject: str | None,
    job_id: int | None,
    before: int | None,
    window: Window,
    limit: int,
) -> CommandResult:
    """List who did what, when and why, newest first.

    Actions are kept for EFFECTS_RETENTION_AUDIT_DAYS, even if their subject is deleted. The next page: --before with
    the last id of this one.
    """
    if job_id is not None and subject is not None:
        raise click.UsageError("give --job or --subject, not both")
    kind, _, name = f"job:{job_id}".partition(":") if job_id is not None else (subject or "").partition(":")
    filters = LogFilters(
        actor=actor, action=action, subject_kind=kind or None, subject=name or None, before=before, window=window,
        limit=limit + 1,
    )  # fmt: skip
    entries = list_entries(context.app.store, filters)
    more, shown = len(entries) > limit, entries[:limit]
    return CommandResult(shown, _table(shown), note=page_note("entry", shown[-1].id if more else None, more=more))


def _table(entries: Sequence[AuditEntry]) -> Table:
    columns = ("id", "created", "actor", "action", "subject", "reason", "detail")
    rows = [
        (
            entry.id,
            entry.created_at,
            entry.actor,
            entry.action,
            f"{entry.subject_kind}:{entry.subject}",
            entry.reason,
            msgspec.json.encode(entry.detail, enc_hook=str).decode() if entry.detail else None,
        )
        for entry in entries
    ]
    return Table(columns, rows, empty="no entries")
