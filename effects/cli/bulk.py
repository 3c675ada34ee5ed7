"""`effects bulk`: list, show, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from effects import bulk as bulks
from effects.cli.context import Context, actor
from effects.cli.options import before_option, limit_option, reason_option, status_option
from effects.cli.output import Table
from effects.cli.results import CommandResult, command, page_note
from effects.store.bulk.records import BulkRecord


def bulk_argument(run: Any) -> Any:
    return click.argument("bulk_id", type=click.IntRange(min=1), metavar="ID")(run)


@click.group()
def bulk() -> None:
    """Follow and cancel bulk actions.

    `dead requeue`, `ignore` and `resolve`, and `jobs requeue`, `cancel` and `run-now` start one where their filters
    select more than 100 jobs.
    """


@bulk.command("list")
@status_option(("running", "done", "cancelled"))
@before_option("bulk actions")
@limit_option
@command
def list_(context: Context, *, status: str | None, before: int | None, limit: int) -> CommandResult:
    """List bulk actions, newest first."""
    records = bulks.find_bulks(status=status, before=before, limit=limit + 1, effects=context.app)
    more, shown = len(records) > limit, records[:limit]
    return CommandResult(shown, _table(shown), note=page_note("bulk action", shown[-1].id if more else None, more=more))


@bulk.command()
@bulk_argument
@command
def show(context: Context, *, bulk_id: int) -> CommandResult:
    """Show the progress of a bulk action.

    Jobs that it could not act on are counted by reason. Those that no longer match changed before they were reached.
    """
    return _shown(bulks.find_bulk(bulk_id, effects=context.app))


@bulk.command()
@bulk_argument
@reason_option
@command
def cancel(context: Context, *, bulk_id: int, reason: str | None) -> CommandResult:
    """Cancel a bulk action before its next chunk.

    What it has done stays done.
    """
    record = bulks.cancel_bulk(bulk_id, actor=actor(), reason=reason, effects=context.app)
    left = "" if record.left is None else f", {record.left:,} are left"
    return CommandResult(
        record, f"bulk {bulk_id} cancelled: {record.done:,} jobs were done, {record.refused:,} refused{left}"
    )


def _shown(record: BulkRecord) -> CommandResult:
    """The facts, and why jobs were refused."""
    left_out = ("counted_all", "refusals", "last_id", "max_id")
    facts = {name: fact for name, fact in msgspec.structs.asdict(record).items() if name not in left_out}
    facts["expected"] = _expected(record)
    facts["options"] = ", ".join(record.options) or None
    facts["filters"] = _filters(record.filters)
    if record.status == "stopped":
        facts["next"] = f"its job has ended: `effects jobs requeue {record.job_id}` continues it"
    refusals = sorted(record.refusals.items(), key=lambda counted: (-counted[1], counted[0]))
    blocks: list[Any] = [facts]
    if refusals:
        blocks.append(Table(("reason", "jobs"), refusals, title="refused", empty="none"))
    return CommandResult(record, blocks)


def _filters(selection: Any) -> str:
    """Those that are set, with the time of the preview."""
    filters = {**selection["filters"], **selection["filters"]["window"]}
    hidden = ("list", "limit", "window", "closed")
    return ", ".join(f"{name}={value}" for name, value in filters.items() if name not in hidden and value is not None)


def _expected(record: BulkRecord) -> str:
    return f"{record.expected:,}" if record.counted_all else f"at least {record.expected:,}"


def _table(records: Sequence[BulkRecord]) -> Table:
    columns = (
        "id", "action", "status", "done", "refused", "no longer match", "left", "expected", "created", "ended", "actor",
        "reason",
    )  # fmt: skip
    rows = [
        (
            record.id, record.action.replace("_", " "), record.status, record.done, record.refused,
            record.no_longer_match, record.left, _expected(record), record.created_at, record.ended_at, record.actor,
            record.reason,
        )
        for record in records
    ]  # fmt: skip
    return Table(columns, rows, empty="no bulk actions")
