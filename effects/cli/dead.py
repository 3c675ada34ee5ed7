"""`effects dead`: list, show, requeue, ignore, resolve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from effects.cli.bulk import Scope, act_on_many, many_options, tenant_limit_keys
from effects.cli.context import Context
from effects.cli.jobs import tell_job
from effects.cli.options import (
    JobId,
    before_option,
    code_option,
    key_option,
    limit_option,
    option_group,
    override_options,
    queue_option,
    reason_option,
    required_reason_option,
    tenant_option,
    text_option,
    type_option,
    window_options,
    word_option,
)
from effects.cli.results import CommandResult, command, page_note
from effects.cli.table import Table
from effects.operate.evidence import job_evidence
from effects.operate.tables.bulk_selection import ActionName, BulkAction
from effects.operate.tables.dead_letters import Cause, DeadFilters, DeadLetter, count_causes, list_dead
from effects.store.effects.requeue import RESOLUTIONS, Resolution

_NO_UNRESOLVED = "no unresolved dead letters"
_RESOLVING: dict[Resolution, ActionName] = {
    "requeue": "resolve_requeue", "mark-done": "mark_done", "give-up": "give_up"
}  # fmt: skip


filter_options = option_group(
    type_option,
    queue_option,
    key_option,
    code_option,
    text_option,
    word_option,
    click.option("--endpoint", metavar="ID", help="Limit key, or the part after its colon, such as ep_123."),
    tenant_option,
    window_options("ended"),
)


# IDs, or filters with a preview: what every action that may concern many takes.
selection_options = option_group(
    click.argument("job_ids", type=JobId(min=1), metavar="[ID]...", nargs=-1), filter_options, many_options
)


@click.group()
def dead() -> None:
    """Manage dead letters and unknown outcomes."""


@dead.command("list")
@filter_options
@limit_option
@click.option("--unknown/--known", default=None, help="Only effects that may have happened; or that did not.")
@click.option("--resolved", "closed", is_flag=True, help="Resolved ones instead, of the newest 2,000 actions.")
@before_option("jobs")
@command
def list_(context: Context, /, *, limit: int, **filters: Any) -> CommandResult:
    """List unresolved dead letters, newest first."""
    filters["limit_keys"] = tenant_limit_keys(context, filters.pop("tenant"))
    letters = list_dead(context.app.store, context.app.ledgers, DeadFilters(limit=limit + 1, **filters))
    more, shown = len(letters) > limit, letters[:limit]
    empty = "no resolved dead letters" if filters["closed"] else _NO_UNRESOLVED
    return CommandResult(shown, _table(shown, empty), note=page_note("job", shown[-1].id if more else None, more=more))


@dead.command()
@command
def causes(context: Context) -> CommandResult:
    """Count unresolved dead letters by type and error code."""
    with context.app.store.read() as connection:
        counted = count_causes(context.app.store, connection)
    return CommandResult(counted, _causes_table(counted))


@dead.command()
@click.argument("job_id", type=JobId(min=1), metavar="ID")
@command
def show(context: Context, *, job_id: int) -> CommandResult:
    """Show a job with all its attempts.

    Attempts of the jobs that it was requeued from are included.
    """
    return tell_job(context, job_evidence(context.app, job_id, earlier=True))


@dead.command()
@selection_options
@override_options
@reason_option
@command
def requeue(
    context: Context, /, *, reason: str | None, even_if_unknown: bool, even_if_done: bool, **selection: Any
) -> CommandResult:
    """Requeue ended jobs as new jobs.

    The old jobs stay as they are. IDs act at once, filters only with --yes; more than 100 jobs become a bulk action. A
    job whose effect may have happened is refused unless its type repeats unknown effects by itself; use `resolve`. Exit
    code 1 if any job was refused.
    """
    return _act(context, selection, BulkAction("requeue", even_if_unknown, even_if_done), reason)


@dead.command()
@selection_options
@required_reason_option
@command
def ignore(context: Context, /, *, reason: str, **selection: Any) -> CommandResult:
    """Resolve without action.

    Retention may then delete the jobs. IDs act at once, filters only with --yes; more than 100 jobs become a bulk
    action. Exit code 1 if any job was refused.
    """
    return _act(context, selection, BulkAction("ignore"), reason)


@dead.command()
@selection_options
@click.option("--as", "resolution", type=click.Choice(RESOLUTIONS), required=True,
              help="Resolution: requeue (a new job), mark-done (it happened), give-up (unknown).")  # fmt: skip
@reason_option
@command
def resolve(context: Context, /, *, resolution: Resolution, reason: str | None, **selection: Any) -> CommandResult:
    """Resolve jobs whose effect may have happened.

    IDs act at once, filters only with --yes; more than 100 jobs become a bulk action. Exit code 1 if any job was
    refused.
    """
    return _act(context, selection, BulkAction(_RESOLVING[resolution]), reason, unknown=True)


def _act(
    context: Context,
    selection: dict[str, Any],
    action: BulkAction,
    reason: str | None,
    unknown: bool | None = None,
) -> CommandResult:
    """Act on the IDs, or on what the filters select."""
    job_ids: tuple[int, ...] = selection.pop("job_ids")
    scope: Scope = selection.pop("scope")
    selection["limit_keys"] = tenant_limit_keys(context, selection.pop("tenant"))
    filters = DeadFilters(**selection, unknown=unknown, as_of=scope.as_of)
    scope.check(job_ids, filtered=filters != DeadFilters(unknown=unknown, as_of=scope.as_of))

    def newest(limit: int, everywhere: bool) -> tuple[list[int], Table]:
        letters = list_dead(context.app.store, context.app.ledgers, msgspec.structs.replace(filters, limit=limit))
        return [letter.id for letter in letters], _table(letters)

    return act_on_many(context, action, reason, scope, job_ids, filters, newest)


def _causes_table(causes: Sequence[Cause]) -> Table:
    rows = [
        (
            cause.job_type,
            cause.error_code,
            "unknown" if cause.unknown else "not done",
            cause.jobs,
            cause.first_at,
            cause.last_at,
        )
        for cause in causes
    ]
    return Table(("type", "code", "effect", "jobs", "first", "last"), rows, empty=_NO_UNRESOLVED)


def _effect(letter: DeadLetter) -> str:
    """As `dead causes` has it; a resolved one may be of a job that was cancelled or succeeded later."""
    if letter.unknown:
        return "unknown"
    return "not done" if letter.status == "dead" else letter.status


def _table(letters: Sequence[DeadLetter], empty: str = _NO_UNRESOLVED) -> Table:
    columns = ("id", "type", "effect", "ended", "attempts", "key", "limit", "code", "error")
    rows = [
        (
            letter.id,
            letter.job_type,
            _effect(letter),
            letter.finished_at,
            letter.attempts,
            letter.key,
            letter.limit_key,
            letter.error_code,
            letter.last_error,
        )
        for letter in letters
    ]
    return Table(columns, rows, empty=empty)
