"""`effects jobs`: list, show, reschedule, wait; `effects dead`: list, causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from effects.calls import control
from effects.cli.context import Context, actor
from effects.cli.insight import evidence_blocks, result_text
from effects.cli.options import (
    Decorator,
    JobId,
    before_option,
    code_option,
    key_option,
    limit_option,
    option_group,
    parse_age,
    parse_time,
    queue_option,
    reason_option,
    status_option,
    tenant_option,
    text_option,
    type_option,
    window_options,
    word_option,
)
from effects.cli.results import CommandResult, command, notice_after, page_note, tell_wait
from effects.cli.table import Table
from effects.errors import JobStateError
from effects.kit.exit_codes import ExitCode
from effects.model.job import ENDED, LIVE_SHOWN
from effects.operate.evidence import Evidence, job_evidence
from effects.operate.sentences import advice
from effects.operate.tables.dead_letters import Cause, DeadFilters, DeadLetter, count_causes, list_dead
from effects.operate.tables.job_list import Filters, list_jobs
from effects.store.db.records import JobRecord


def job_or_key(run: Callable[..., Any]) -> Callable[..., Any]:
    """An optional ID, `--key` and `--type`."""
    argument = click.argument("job_id", type=JobId(min=1), metavar="[ID]", required=False)
    return argument(key_option(type_option(run)))


def chosen_job(context: Context, job_id: int | None, key: str | None, job_type: str | None) -> int:
    """The job of this id, or the newest of this key.

    Raises:
        click.UsageError: neither is given, or both are.
    """
    if (job_id is None) == (key is None):
        raise click.UsageError("give ID or --key")
    if job_id is not None:
        if job_type is not None:
            raise click.UsageError("--type goes with --key")
        return job_id
    return control.status(key=str(key), job_type=job_type, effects=context.app).job_id


@click.command("reschedule")
@click.option("--key", required=True, metavar="KEY", help="Idempotency key.")
@type_option
@click.option("--at", "run_at", required=True, type=parse_time, metavar="TIME",
              help="New due time, such as 2026-11-21T08:00:00Z. A past one means now.")  # fmt: skip
@reason_option
@command
def reschedule_(
    context: Context, *, key: str, job_type: str | None, run_at: datetime, reason: str | None
) -> CommandResult:
    """Give a waiting job another due time.

    Pauses, limits and the order of its group still apply.
    """
    moved = control.reschedule(
        key=key, run_at=run_at, job_type=job_type, actor=actor(), reason=reason, effects=context.app
    )
    effect = moved.effect
    if moved.result != "rescheduled":
        raise JobStateError(
            f"job {effect.job_id} is {effect.status or effect.state}: only a waiting job can be rescheduled"
        )
    document = {"job_id": effect.job_id, "result": moved.result, "run_at": effect.run_at}
    return CommandResult(document, f"job {effect.job_id} is due at {run_at:%Y-%m-%d %H:%M:%S%z}")


@click.command("wait")
@click.option("--key", required=True, metavar="KEY", help="Idempotency key.")
@type_option
@click.option("--timeout", type=parse_age, default="1m", show_default=True, metavar="AGE", help="Maximum wait.")
@command
def wait_(context: Context, *, key: str, job_type: str | None, timeout: float) -> CommandResult:
    """Wait until a job has ended.

    Exit code 0 if its effect is done, 1 if it ended otherwise, 3 if the time ran out.
    """
    patience = notice_after(timeout)
    effect = control.wait(key=key, timeout_seconds=patience, job_type=job_type, effects=context.app)
    if not effect.ended:
        tell_wait(
            f"job {effect.job_id}", advice(job_evidence(context.app, effect.job_id)).rstrip("."), timeout - patience
        )
        effect = control.wait(key=key, timeout_seconds=timeout - patience, job_type=job_type, effects=context.app)
    if not effect.ended:
        return CommandResult(effect, f"job {effect.job_id} is still {effect.status}", exit_code=ExitCode.TIME_RAN_OUT)
    exit_code = ExitCode.DONE if effect.state == "done" else ExitCode.FINDINGS
    text = f"job {effect.job_id} has ended: its effect is {effect.state}{result_text(effect)}"
    return CommandResult(effect, text, exit_code=exit_code)


def job_filter_options(statuses: Sequence[str]) -> Decorator:
    """What selects jobs."""
    return option_group(
        type_option,
        key_option,
        status_option(statuses),
        queue_option,
        code_option,
        text_option,
        word_option,
        click.option("--limit-key", metavar="KEY", help="Limit key, such as webhook:ep_123."),
        click.option("--group", "group_key", metavar="KEY", help="Group key."),
        tenant_option,
        click.option("--worker", metavar="ID", help="Worker that runs the job, or ran an attempt of it."),
        window_options("were created"),
    )


@click.group()
def jobs() -> None:
    """Inspect and manage jobs."""


def tenant_limit_keys(context: Context, tenant: str | None) -> tuple[str, ...] | None:
    """The limit keys of a tenant's jobs, by every job type that knows tenants."""
    if tenant is None:
        return None
    with context.app.store.read() as connection:
        keys = [job_type.limit_keys_of(connection, tenant) for job_type in context.app.job_types]
    return tuple(key for some_keys in keys for key in some_keys)


@jobs.command("list")
@job_filter_options([*LIVE_SHOWN, *ENDED])
@before_option("jobs")
@limit_option
@command
def list_(context: Context, /, *, tenant: str | None, **filters: Any) -> CommandResult:
    """List live and ended jobs, newest first.

    With filters one page looks at a bounded number of jobs. A note then says how far it has searched, and how to search
    older ones.
    """
    limit_keys = tenant_limit_keys(context, tenant)
    page = list_jobs(context.app.store, context.app.ledgers, Filters(limit_keys=limit_keys, **filters))
    note = page_note("job", page.next_before, more=page.more, since=page.searched_since)
    return CommandResult(page.jobs, _table(page.jobs), note=note)


@jobs.command()
@job_or_key
@command
def show(context: Context, *, job_id: int | None, key: str | None, job_type: str | None) -> CommandResult:
    """Show a job with its attempts and recorded actions.

    The payload is not shown.
    """
    job_id = chosen_job(context, job_id, key, job_type)
    return tell_job(context, job_evidence(context.app, job_id))


def tell_job(context: Context, evidence: Evidence) -> CommandResult:
    """A job with its attempts and actions, why it waits, and what can be done about it."""
    job = evidence.facts.jobs[0]
    facts = {
        **msgspec.structs.asdict(job), "max_attempts": _max_attempts(context, job),
        "effect": evidence.facts.ledger_state,
        "next": advice(evidence) if job.status != "running" or evidence.silence else None,
    }  # fmt: skip
    if job.status != "running":  # of no attempt under way: see the attempts
        del facts["started_at"], facts["worker"]
    return CommandResult(evidence, [facts, *evidence_blocks(evidence)])


def _max_attempts(context: Context, job: JobRecord) -> str:
    """The job's own limit, else its type's."""
    if job.max_attempts is not None:
        return str(job.max_attempts)
    types = context.app.job_types
    if job.job_type not in types:
        return "as its job type has it, which is not registered here"
    return f"{types.get(job.job_type).retry.max_attempts} (of its job type)"


jobs.add_command(reschedule_)
jobs.add_command(wait_)


def _table(records: Sequence[JobRecord]) -> Table:
    columns = ("id", "type", "status", "queue", "attempts", "due", "ended", "key", "code")
    rows = [
        (
            job.id,
            job.job_type,
            job.status,
            job.queue,
            job.attempts,
            None if job.finished_at else job.run_at,
            job.finished_at,
            job.key,
            job.error_code,
        )
        for job in records
    ]
    return Table(columns, rows, empty="no jobs")


# -- dead letters ----------------------------------------------------------------------------------------------

_NO_UNRESOLVED = "no unresolved dead letters"


_dead_filter_options = option_group(
    type_option,
    queue_option,
    key_option,
    code_option,
    text_option,
    word_option,
    click.option("--limit-key", metavar="KEY", help="Limit key, or the part after its colon, such as ep_123."),
    tenant_option,
    window_options("ended"),
)


@click.group()
def dead() -> None:
    """List dead letters and unknown outcomes.

    `effects retry` retries them, `effects resolve` decides about them.
    """


@dead.command("list")
@_dead_filter_options
@limit_option
@click.option("--unknown/--known", default=None, help="Only effects that may have happened; or that did not.")
@click.option("--resolved", "closed", is_flag=True, help="Resolved ones instead, of the newest 2,000 actions.")
@before_option("jobs")
@command
def list_dead_letters(context: Context, /, *, limit: int, **filters: Any) -> CommandResult:
    """List unresolved dead letters, newest first."""
    filters["limit_keys"] = tenant_limit_keys(context, filters.pop("tenant"))
    letters = list_dead(context.app.store, context.app.ledgers, DeadFilters(limit=limit + 1, **filters))
    more, shown = len(letters) > limit, letters[:limit]
    empty = "no resolved dead letters" if filters["closed"] else _NO_UNRESOLVED
    return CommandResult(
        shown, _letters_table(shown, empty), note=page_note("job", shown[-1].id if more else None, more=more)
    )


@dead.command()
@command
def causes(context: Context) -> CommandResult:
    """Count unresolved dead letters by type and error code."""
    with context.app.store.read() as connection:
        counted = count_causes(context.app.store, connection)
    return CommandResult(counted, _causes_table(counted))


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


def _letters_table(letters: Sequence[DeadLetter], empty: str = _NO_UNRESOLVED) -> Table:
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
