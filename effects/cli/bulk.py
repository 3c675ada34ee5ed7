"""`effects bulk`: list, show, cancel; and how commands act on many jobs: filters with a preview first, and `--yes`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeAlias

import click
import msgspec

from effects.cli.context import Context, actor
from effects.cli.options import before_option, limit_option, newest_option, parse_time, reason_option, status_option
from effects.cli.results import CommandResult, command, page_note
from effects.cli.table import Table
from effects.kit.exit_codes import ExitCode
from effects.operate import bulk as bulks
from effects.operate.bulk import INLINE_MAX, BulkPreview, BulkStarted
from effects.operate.tables.bulk_rows import BulkRecord
from effects.operate.tables.bulk_selection import BulkAction, Counted, InlineResult
from effects.operate.tables.dead_letters import DeadFilters
from effects.operate.tables.job_list import Filters


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
def list_bulks(context: Context, *, status: str | None, before: int | None, limit: int) -> CommandResult:
    """List bulk actions, newest first."""
    records = bulks.find_bulks(status=status, before=before, limit=limit + 1, effects=context.app)
    more, shown = len(records) > limit, records[:limit]
    return CommandResult(
        shown, _bulks_table(shown), note=page_note("bulk action", shown[-1].id if more else None, more=more)
    )


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


def _bulks_table(records: Sequence[BulkRecord]) -> Table:
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


SAMPLE = 20  # jobs that a preview shows

# The newest jobs that match, at most so many: their ids, and a table of them. With True they are looked for in all of
# the history; else in its newest part, which is what a preview shows.
Newest: TypeAlias = Callable[[int, bool], tuple[list[int], Table]]

NO_MATCH = "no jobs match"
_WORDS = {
    "requeue": "requeued", "resolve_requeue": "requeued", "ignore": "ignored", "mark_done": "marked as done",
    "give_up": "left unknown (given up)", "cancel": "cancelled or asked to stop", "run_now": "made due now",
}  # fmt: skip


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say beside the filters."""

    all_: bool
    limit: int | None
    as_of: dt.datetime | None
    yes: bool
    dry_run: bool

    def check(self, job_ids: Sequence[int], *, filtered: bool) -> None:
        """Refuse IDs together with filters, and neither.

        Raises:
            click.UsageError: says what to give.
        """
        if bool(job_ids) + (filtered or self.all_) != 1:
            raise click.UsageError("give IDs, or filters, or --all")
        if len(job_ids) > INLINE_MAX:
            raise click.UsageError(f"give at most {INLINE_MAX} IDs, or filters")

    @property
    def is_used(self) -> bool:
        """Whether any of these options was used."""
        return self.all_ or self.yes or self.dry_run or self.limit is not None or self.as_of is not None


def many_options(run: Callable[..., Any]) -> Callable[..., Any]:
    """`--all`, `--limit`, `--as-of`, `--yes` and `--dry-run`, handed over as one `scope`."""

    @wraps(run)
    def with_scope(*args: Any, **options: Any) -> Any:
        scope = Scope(**{name: options.pop(name) for name in Scope.__struct_fields__})
        return run(*args, scope=scope, **options)

    callback: Callable[..., Any] = with_scope
    for option in (
        click.option("--dry-run", is_flag=True, help="Preview only."),
        click.option("--yes", is_flag=True, help="Confirmation. Without it, filters only show a preview."),
        click.option("--as-of", type=parse_time, metavar="TIME", help="Only what matched then: the time of a preview."),
        newest_option(INLINE_MAX),
        click.option("--all", "all_", is_flag=True, help="All jobs, without a filter."),
    ):  # fmt: skip
        callback = option(callback)
    return callback


def tenant_limit_keys(context: Context, tenant: str | None) -> tuple[str, ...] | None:
    """The limit keys of a tenant's jobs, by every job type that knows tenants."""
    if tenant is None:
        return None
    with context.app.store.read() as connection:
        keys = [job_type.limit_keys_of(connection, tenant) for job_type in context.app.job_types]
    return tuple(key for some_keys in keys for key in some_keys)


def act_on_many(
    context: Context,
    action: BulkAction,
    reason: str | None,
    scope: Scope,
    job_ids: Sequence[int],
    filters: DeadFilters | Filters,
    newest: Newest,
) -> CommandResult:
    """Act on the IDs, or on what the filters select; the latter only with --yes."""
    word = _WORDS[action.name]
    if job_ids:
        return _ids_preview(job_ids, word) if scope.dry_run else _act_now(context, action, reason, job_ids, word)
    if scope.limit is not None:
        newest_ids, table = newest(scope.limit, True)
        if scope.dry_run or not scope.yes:
            return _ids_preview(newest_ids, word, table)
        return _act_now(context, action, reason, sorted(newest_ids), word)
    previewed = bulks.preview(action, filters, effects=context.app)
    if scope.dry_run or not scope.yes:
        return _preview(previewed, newest(SAMPLE, False), word)
    outcome = bulks.carry_out(previewed, actor=actor(), reason=reason, effects=context.app)
    return _started(outcome, word) if isinstance(outcome, BulkStarted) else _acted(outcome, word)


def _act_now(
    context: Context, action: BulkAction, reason: str | None, job_ids: Sequence[int], word: str
) -> CommandResult:
    return _acted(bulks.act_on(action, job_ids, actor=actor(), reason=reason, effects=context.app), word)


def _acted(result: InlineResult, word: str) -> CommandResult:
    lines = [
        f"job {job_id}: {word}" + (f" as job {new_id}" if new_id else "") for job_id, new_id in result.done.items()
    ]
    lines += [f"refused: {reason}" for reason in result.refused.values()]
    exit_code = ExitCode.FINDINGS if result.refused else ExitCode.DONE
    return CommandResult(result, "\n".join(lines) or NO_MATCH, exit_code=exit_code)


def _started(started: BulkStarted, word: str) -> CommandResult:
    at_least = "" if started.counted_all else "at least "
    text = (
        f"bulk {started.bulk_id} started: {at_least}{started.expected:,} jobs to be {word} by job {started.job_id}; "
        f"see `effects bulk show {started.bulk_id}`"
    )
    return CommandResult({**msgspec.structs.asdict(started), "result": "started"}, text)


def _ids_preview(job_ids: Sequence[int], word: str, table: Table | None = None) -> CommandResult:
    summary = f"{len(job_ids)} would be {word}; nothing was done (use --yes)" if job_ids else NO_MATCH
    document = {"preview": True, "jobs": len(job_ids), "at_least": False, "job_ids": list(job_ids)}
    return CommandResult(document, [table, summary] if table is not None and table.rows else summary)


def _preview(previewed: BulkPreview, newest: tuple[list[int], Table], word: str) -> CommandResult:
    """The newest jobs, how many there are, and how to act on just these."""
    counted, as_of = previewed.counted, previewed.as_of
    moment = as_of.isoformat().replace("+00:00", "Z")
    job_ids, table = newest
    summary = (
        f"{_counted(counted)} would be {word}; nothing was done "
        f"(use --yes; with --as-of {moment}, nothing newer is included)"
    )
    document = {
        "preview": True, "jobs": counted.jobs, "at_least": not counted.all, "as_of": moment, "newest": job_ids,
        "job_ids": None if previewed.job_ids is None else list(previewed.job_ids),
    }  # fmt: skip
    if not counted.jobs and counted.all:
        return CommandResult(document, NO_MATCH)
    title = f"the newest {len(job_ids)}" if counted.jobs > len(job_ids) else None
    return CommandResult(document, [replace(table, title=title), summary] if table.rows else summary)


def _counted(counted: Counted) -> str:
    """How many jobs match, where the older ones were not looked at too."""
    if counted.all:
        return f"{counted.jobs:,}"
    return f"at least {counted.jobs:,}" if counted.jobs else "none of the newest jobs, but all older ones that match"
