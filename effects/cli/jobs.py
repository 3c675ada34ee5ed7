"""`effects jobs`: list, show, cancel, reschedule, requeue, run-now, wait; by id or by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from effects.calls import control
from effects.calls.control import CancelResult
from effects.cli.bulk import Scope, act_on_many, many_options, tenant_limit_keys
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
    override_options,
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
from effects.operate.sentences import advice, wait_text
from effects.operate.tables import actions
from effects.operate.tables.bulk_selection import BulkAction
from effects.operate.tables.job_list import Filters, list_jobs
from effects.store.db.records import JobRecord
from effects.store.db.sql import ANY_TIME
from effects.store.effects import requeue as store_requeue
from effects.store.effects.by_key import EffectStatus
from effects.store.queue import cancellation

_CANCELLED = {
    "cancelled": "cancelled",
    "stopped": "was not released: it ends without its effect",
    "released": "is running and was released: asked to stop, its effect may happen, will not be retried",
}


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


def cancel_by_key(context: Context, key: str, job_type: str | None, reason: str | None) -> CommandResult:
    """Cancel the effect of this key, and say whether that was in time.

    Raises:
        JobStateError: it had ended.
    """
    cancelled = control.cancel(key=key, job_type=job_type, actor=actor(), reason=reason, effects=context.app)
    _check_live(cancelled.effect, cancelled.result, "cancelled")
    text = f"job {cancelled.effect.job_id} {_CANCELLED[cancelled.result]}"
    return with_what_remains(context, _cancel_facts(cancelled), text)


def with_what_remains(context: Context, facts: dict[str, Any], text: str) -> CommandResult:
    """The result of a cancellation, with what a person has to decide where the effect may have happened."""
    evidence = job_evidence(context.app, facts["job_id"])
    has_ended = evidence.standing is not None and evidence.standing.ended
    unresolved = has_ended and any(action.name == "mark-done" for action in evidence.next)
    if unresolved:
        text += f". Its effect may have happened, by an earlier attempt: an unresolved dead letter. {advice(evidence)}"
    elif not has_ended and facts["result"] != "stopped":
        why = f"effects why {facts['job_id']}"
        text += f". If its effect may have happened by then, an unresolved dead letter remains: see `{why}` then"
    return CommandResult({**facts, "unresolved": unresolved}, text)


def _cancel_facts(cancelled: CancelResult) -> dict[str, Any]:
    effect = cancelled.effect
    return {
        "job_id": effect.job_id,
        "result": cancelled.result,
        "prevented": cancelled.prevented,
        "state": effect.state,
    }


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
    _check_live(effect, moved.result, "rescheduled")
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


def _check_live(effect: EffectStatus, result: str, action: str) -> None:
    if result in ("ended", "running"):
        raise JobStateError(
            f"job {effect.job_id} is {effect.status or effect.state}: only a "
            f"{'live' if action == 'cancelled' else 'waiting'} job can be {action}"
        )


def filter_options(statuses: Sequence[str]) -> Decorator:
    """What selects jobs, beside their type."""
    return option_group(
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


@jobs.command("list")
@type_option
@key_option
@filter_options([*LIVE_SHOWN, *ENDED])
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


@jobs.command()
@job_or_key
@filter_options(LIVE_SHOWN)
@many_options
@reason_option
@command
def cancel(
    context: Context,
    /,
    *,
    job_id: int | None,
    key: str | None,
    job_type: str | None,
    reason: str | None,
    scope: Scope,
    **filters: Any,
) -> CommandResult:
    """Cancel waiting jobs, or ask running ones to stop.

    A running attempt is not interrupted. If its effect still happens, it is recorded as done; otherwise it is not
    tried again. ID or --key act at once, filters only with --yes; more than 100 jobs become a bulk action.
    """
    if not _is_named(job_id, key, filters, scope):
        return _act(context, BulkAction("cancel"), reason, scope, job_type=job_type, **filters)
    if key is not None and job_id is None:
        return cancel_by_key(context, key, job_type, reason)
    job_id = chosen_job(context, job_id, key, job_type)
    app = context.app
    result = cancellation.cancel(app.store, app.ledgers, job_id, actor=actor(), reason=reason)
    text = {
        "cancelled": f"job {job_id} cancelled",
        "cancel_requested": f"job {job_id} is running: asked to stop, will not be retried",
    }
    return with_what_remains(context, {"job_id": job_id, "result": result}, text[result])


@jobs.command("run-now")
@job_or_key
@filter_options(LIVE_SHOWN)
@many_options
@reason_option
@command
def run_now(
    context: Context,
    /,
    *,
    job_id: int | None,
    key: str | None,
    job_type: str | None,
    reason: str | None,
    scope: Scope,
    **filters: Any,
) -> CommandResult:
    """Make waiting jobs due now.

    Pauses, limits and the order of their groups still apply. ID or --key act at once, filters only with --yes; more
    than 100 jobs become a bulk action.
    """
    if not _is_named(job_id, key, filters, scope):
        return _act(context, BulkAction("run_now"), reason, scope, job_type=job_type, **filters)
    job_id = chosen_job(context, job_id, key, job_type)
    queue = actions.run_now(context.app.store, job_id, actor=actor(), reason=reason)
    context.app.notifier.send([queue])
    waits = job_evidence(context.app, job_id).waits
    holds = "" if waits is None or waits.reason == "free_worker" else f". {wait_text(waits)}"
    text = f"job {job_id} is due now on queue {queue}{holds}"
    return CommandResult({"job_id": job_id, "result": "due", "queue": queue, "waits": waits}, text)


@jobs.command()
@click.argument("job_id", type=JobId(min=1), metavar="[ID]", required=False)
@type_option
@filter_options(ENDED)
@many_options
@override_options
@reason_option
@command
def requeue(
    context: Context,
    /,
    *,
    job_id: int | None,
    job_type: str | None,
    even_if_unknown: bool,
    even_if_done: bool,
    reason: str | None,
    scope: Scope,
    **filters: Any,
) -> CommandResult:
    """Requeue ended jobs as new jobs.

    The old jobs stay in the history. An effect that may have happened, or is done, needs an explicit override. An ID
    acts at once, filters only with --yes; more than 100 jobs become a bulk action.
    """
    if job_id is None or not _is_named(job_id, None, {**filters, "job_type": job_type}, scope):
        action = BulkAction("requeue", even_if_unknown, even_if_done)
        return _act(context, action, reason, scope, job_type=job_type, **filters)
    app = context.app
    requeued = store_requeue.requeue(
        app.store, app.job_types, job_id, confirm_unknown=even_if_unknown, confirm_done=even_if_done, actor=actor(),
        reason=reason,
    )  # fmt: skip
    app.notifier.send([requeued.queue])
    text = f"job {job_id} requeued as job {requeued.job_id}"
    result = {"job_id": requeued.job_id, "requeued_from": job_id, "result": "queued", "queue": requeued.queue}
    return CommandResult(result, text)


def _is_named(job_id: int | None, key: str | None, filters: Mapping[str, Any], scope: Scope) -> bool:
    """Whether one job is meant.

    Raises:
        click.UsageError: by ID or key, and filters as well.
    """
    if job_id is None and key is None:
        return False
    if scope.is_used or any(value not in (None, ANY_TIME) for value in filters.values()):
        raise click.UsageError("give one job, or filters")
    return True


def _act(
    context: Context, action: BulkAction, reason: str | None, scope: Scope, *, tenant: str | None, **filters: Any
) -> CommandResult:
    """Act on what the filters select."""
    selected = Filters(limit_keys=tenant_limit_keys(context, tenant), as_of=scope.as_of, **filters)
    scope.check((), filtered=selected != Filters(as_of=scope.as_of))
    # Without a status the list has the others as well.
    statuses = [selected.status] if selected.status else list(ENDED if action.name == "requeue" else LIVE_SHOWN)

    def newest(limit: int, everywhere: bool) -> tuple[list[int], Table]:
        lists = [
            _newest(context, msgspec.structs.replace(selected, status=status, limit=limit), everywhere)
            for status in statuses
        ]
        records = sorted((job for jobs in lists for job in jobs), key=lambda job: job.id, reverse=True)[:limit]
        return [job.id for job in records], _table(records)

    return act_on_many(context, action, reason, scope, (), selected, newest)


def _newest(context: Context, filters: Filters, everywhere: bool) -> list[JobRecord]:
    """The newest jobs that match, at most `filters.limit`: of the first page, or of as many as it takes."""
    app = context.app
    page = list_jobs(app.store, app.ledgers, filters)
    records = list(page.jobs)
    while everywhere and len(records) < filters.limit and page.next_before is not None:
        page = list_jobs(app.store, app.ledgers, msgspec.structs.replace(filters, before=page.next_before))
        records += page.jobs
    return records[: filters.limit]


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
