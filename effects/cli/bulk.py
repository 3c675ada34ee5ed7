"""`effects bulk`: list, show, cancel; and how commands act on what filters select: a preview first, and `--yes`."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click
import msgspec

from effects.cli.context import Context, actor
from effects.cli.options import (
    before_option,
    limit_option,
    newest_option,
    option_group,
    parse_time,
    reason_option,
    status_option,
)
from effects.cli.results import CommandResult, command, page_note
from effects.cli.table import Table
from effects.kit.exit_codes import ExitCode
from effects.model.job import LIVE_SHOWN
from effects.operate import bulk as bulks
from effects.operate.bulk import BulkPreview, BulkStarted
from effects.operate.tables.bulk_rows import BulkRecord
from effects.operate.tables.bulk_selection import BulkAction, Counted, InlineResult, SelectedCause
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects.operate.tables.job_list import Filters, list_jobs
from effects.store.db.records import JobRecord


def bulk_argument(run: Any) -> Any:
    return click.argument("bulk_id", type=click.IntRange(min=1), metavar="ID")(run)


@click.group()
def bulk() -> None:
    """Follow and cancel bulk actions.

    `effects retry`, `cancel` and `resolve` start one where their filters select more than 1,000 jobs.
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
        facts["next"] = f"its job has ended: `effects retry {record.job_id}` continues it"
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


# -- acting on many ---------------------------------------------------------------------------------------------

AT_ONCE = 1_000  # jobs that are acted on without a bulk action
SHOWN = 20  # lines about single jobs; more are counted
WILL = {
    "requeue": "retry", "run_now": "make due now", "cancel": "cancel", "mark_done": "mark as done",
    "resolve_requeue": "retry", "give_up": "give up", "ignore": "give up",
}  # fmt: skip
DONE = {
    "requeue": "retried", "run_now": "made due now", "cancel": "cancelled, or asked to stop",
    "mark_done": "marked as done", "resolve_requeue": "retried", "give_up": "given up: left unknown",
    "ignore": "given up",
}  # fmt: skip
_LEFT = "leave alone"


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say beside names and filters."""

    all_: bool
    limit: int | None
    as_of: dt.datetime | None
    yes: bool
    dry_run: bool

    @property
    def acts(self) -> bool:
        """Whether it is more than a preview."""
        return self.yes and not self.dry_run


def many_options(run: Callable[..., Any]) -> Callable[..., Any]:
    """`--all`, `--limit`, `--as-of`, `--yes` and `--dry-run`, handed over as one `scope`."""

    @wraps(run)
    def with_scope(*args: Any, **options: Any) -> Any:
        scope = Scope(**{name: options.pop(name) for name in Scope.__struct_fields__})
        return run(*args, scope=scope, **options)

    options = option_group(
        click.option("--all", "all_", is_flag=True, help="Everything that it can act on, without a filter."),
        newest_option(AT_ONCE),
        click.option("--as-of", type=parse_time, metavar="TIME", help="Only what matched then: the time of a preview."),
        click.option("--yes", is_flag=True, help="Act. Without it, filters only show a preview."),
        click.option("--dry-run", is_flag=True, help="Show a preview, even with --yes."),
    )
    return options(with_scope)


def few(lines: Sequence[str]) -> list[str]:
    more = [f"… and {len(lines) - SHOWN:,} more (--json has all)"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


@dataclass(frozen=True, slots=True)
class Part:
    """One action on what one list's filters select."""

    action: BulkAction
    filters: DeadFilters | Filters


def act_on_parts(context: Context, parts: Sequence[Part], reason: str | None, scope: Scope) -> CommandResult:
    previews, left = list[BulkPreview](), scope.limit
    for part in parts:
        filters = msgspec.structs.replace(part.filters, as_of=scope.as_of)
        previewed = bulks.preview(part.action, filters, at_once=AT_ONCE, effects=context.app)
        if left is not None:
            previewed = _newest_of(context, previewed, filters, left)
            left -= previewed.counted.jobs
        previews.append(previewed)
    if all(not previewed.counted.jobs and previewed.counted.all for previewed in previews):
        return CommandResult({"preview": not scope.acts, "parts": []}, "no jobs match")
    if not scope.acts:
        return _preview(context, previews)
    outcomes = [bulks.carry_out(previewed, actor=actor(), reason=reason, effects=context.app) for previewed in previews]
    return _carried_out([part.action for part in parts], outcomes)


def _newest_of(context: Context, previewed: BulkPreview, filters: DeadFilters | Filters, limit: int) -> BulkPreview:
    """The same, of the newest that match."""
    if not limit:
        return msgspec.structs.replace(previewed, counted=Counted(0, all=True), job_ids=())
    store, ledgers = context.app.store, context.app.ledgers
    facts: list[tuple[int, str, str | None, bool]]
    if isinstance(filters, DeadFilters):
        letters = list_dead(store, ledgers, msgspec.structs.replace(filters, limit=limit))
        facts = [(letter.id, letter.job_type, letter.error_code, letter.unknown) for letter in letters]
    else:
        statuses = [filters.status] if filters.status else LIVE_SHOWN
        lists = [_newest_jobs(context, msgspec.structs.replace(filters, status=status, limit=limit))
                 for status in statuses]  # fmt: skip
        jobs = sorted((job for jobs in lists for job in jobs), key=lambda job: job.id, reverse=True)[:limit]
        facts = [(job.id, job.job_type, job.error_code, False) for job in jobs]
    counts = Counter(fact[1:] for fact in facts)
    causes = tuple(SelectedCause(*cause, jobs) for cause, jobs in counts.most_common())
    counted = Counted(len(facts), all=True, causes=causes)
    return msgspec.structs.replace(previewed, counted=counted, job_ids=tuple(sorted(fact[0] for fact in facts)))


def _newest_jobs(context: Context, filters: Filters) -> list[JobRecord]:
    """At most `filters.limit`, of as many pages as it takes."""
    app = context.app
    page = list_jobs(app.store, app.ledgers, filters)
    records = list(page.jobs)
    while len(records) < filters.limit and page.next_before is not None:
        page = list_jobs(app.store, app.ledgers, msgspec.structs.replace(filters, before=page.next_before))
        records += page.jobs
    return records[: filters.limit]


def _preview(context: Context, previews: Sequence[BulkPreview]) -> CommandResult:
    """How many jobs each action is about, by cause, and where it cannot help."""
    rows, warnings = list[tuple[Any, ...]](), list[str]()
    by_action = Counter[str]()
    for previewed in previews:
        for cause in previewed.counted.causes:
            will = _will(context, previewed.action, cause)
            by_action[will] += cause.jobs
            effect = "unknown" if cause.unknown else "waits" if previewed.selection.table == "jobs" else "not done"
            rows.append((cause.jobs, will, cause.job_type, cause.error_code, effect))
            if will == "retry" and (why := why_not(context, cause)):
                warnings.append(f"A retry of {cause.job_type}, {cause.error_code}, cannot help: {why}")
    as_of = previews[0].as_of.isoformat().replace("+00:00", "Z")
    counts = [f"{jobs:,} to {will}" for will, jobs in by_action.items() if will != _LEFT]
    if any(not previewed.counted.all for previewed in previews):
        counts.append("more among the older ones")
    if _LEFT in by_action:
        warnings.append(
            f"{by_action[_LEFT]:,} may have happened, and are left alone: decide with `effects resolve`, or retry them "
            "too with --even-if-done"
        )
    summary = f"{', '.join(counts) or 'none'}. Nothing was done: use --yes (with --as-of {as_of}, on nothing newer)"
    document = {"preview": True, "as_of": as_of, "parts": [_part_document(previewed) for previewed in previews]}
    table = Table(("jobs", "action", "type", "code", "effect"), rows, empty="")
    blocks: list[Any] = [*([table] if rows else []), *(["\n".join(warnings)] if warnings else []), summary]
    return CommandResult(document, blocks)


def _part_document(previewed: BulkPreview) -> dict[str, Any]:
    counted = previewed.counted
    ids = None if previewed.job_ids is None else list(previewed.job_ids)
    return {"action": WILL[previewed.action.name].replace(" ", "_"), "jobs": counted.jobs,
            "at_least": not counted.all, "job_ids": ids, "causes": counted.causes}  # fmt: skip


def _will(context: Context, action: BulkAction, cause: SelectedCause) -> str:
    types = context.app.job_types
    repeats = cause.job_type in types and types.get(cause.job_type).on_unknown == "repeat"
    if action.name == "requeue" and cause.unknown and not (action.even_if_unknown or repeats):
        return _LEFT
    return WILL[action.name]


def why_not(context: Context, cause: SelectedCause) -> str | None:
    types = context.app.job_types
    try:
        return types.get(cause.job_type).why_retry_fails(cause.error_code) if cause.job_type in types else None
    except Exception:  # a package's words are advice alone
        return None


def _carried_out(acts: Sequence[BulkAction], outcomes: Sequence[InlineResult | BulkStarted]) -> CommandResult:
    documents, lines, refused = list[Any](), list[str](), list[str]()
    for action, outcome in zip(acts, outcomes, strict=True):
        name = WILL[action.name].replace(" ", "_")
        documents.append({"action": name, **msgspec.structs.asdict(outcome)})
        if isinstance(outcome, BulkStarted):
            at_least = "" if outcome.counted_all else "at least "
            jobs = f"{at_least}{outcome.expected:,} jobs to {WILL[action.name]}"
            see = f"see `effects bulk show {outcome.bulk_id}`"
            lines.append(f"bulk {outcome.bulk_id} started: {jobs}, by job {outcome.job_id}; {see}")
            continue
        done = [f"job {job_id}: {DONE[action.name]}" + (f" as job {new_id}" if new_id else "")
                for job_id, new_id in outcome.done.items()]  # fmt: skip
        lines += few(done)
        refused += outcome.refused.values()
    lines += few([f"refused: {reason}" for reason in refused])
    exit_code = ExitCode.FINDINGS if refused else ExitCode.DONE
    return CommandResult({"preview": False, "parts": documents}, "\n".join(lines), exit_code=exit_code)
