"""`effects jobs`: list, show, cancel, reschedule, requeue, run-now, wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from effects.cli.by_key import cancel_by_key, chosen_job, job_or_key, reschedule_, wait_, with_what_remains
from effects.cli.context import Context, actor
from effects.cli.evidence import evidence_blocks
from effects.cli.many import Scope, act_on_many, many_options, tenant_limit_keys
from effects.cli.options import (
    Decorator,
    JobId,
    before_option,
    code_option,
    key_option,
    limit_option,
    option_group,
    override_options,
    queue_option,
    reason_option,
    status_option,
    tenant_option,
    text_option,
    type_option,
    window_options,
    word_option,
)
from effects.cli.output import Table
from effects.cli.results import CommandResult, command, page_note
from effects.model.job import ENDED, LIVE
from effects.observation.evidence import Evidence, job_evidence
from effects.observation.sentences import advice
from effects.store.bulk.operation import BulkAction
from effects.store.db.records import JobRecord
from effects.store.db.sql import ANY_TIME
from effects.store.operator import actions
from effects.store.operator import requeue as store_requeue
from effects.store.operator.job_list import Filters, list_jobs
from effects.text.wording import shown_status


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
@filter_options([*LIVE, *ENDED])
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
    status = job.status
    if (shown := shown_status(status)) != status:
        status = f"{shown} ({status})"
    facts = {
        **msgspec.structs.asdict(job), "status": status, "max_attempts": _max_attempts(context, job),
        "effect": evidence.facts.ledger_state,
        "next": advice(evidence) if status != "running" or evidence.silence else None,
    }  # fmt: skip
    if status != "running":  # of no attempt under way: see the attempts
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
@filter_options(LIVE)
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
    result = actions.cancel(app.store, app.ledgers, job_id, actor=actor(), reason=reason)
    text = {
        "cancelled": f"job {job_id} cancelled",
        "cancel_requested": f"job {job_id} is running: asked to stop, will not be retried",
    }
    return with_what_remains(context, {"job_id": job_id, "result": result}, text[result])


@jobs.command("run-now")
@job_or_key
@filter_options(LIVE)
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
    text = f"job {job_id} is due now on queue {queue}"
    return CommandResult({"job_id": job_id, "result": "due", "queue": queue}, text)


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
    statuses = [selected.status] if selected.status else list(ENDED if action.name == "requeue" else LIVE)

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
            shown_status(job.status),
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
