"""`effects jobs`: list, show, cancel, reschedule, requeue, run-now, wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from effects.cli.by_key import cancel_by_key, chosen_job, job_or_key, reschedule_, wait_
from effects.cli.context import Context, actor
from effects.cli.evidence import advice, evidence_blocks
from effects.cli.many import tenant_limit_keys
from effects.cli.options import (
    before_option,
    code_option,
    key_option,
    limit_option,
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
from effects.cli.output import Table, shown_status
from effects.cli.results import CommandResult, command, page_note
from effects.evidence import Evidence, job_evidence
from effects.job import ENDED, LIVE
from effects.store.db.records import JobRecord
from effects.store.operator import actions
from effects.store.operator import requeue as store_requeue
from effects.store.operator.job_list import Filters, list_jobs


def job_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("job_id", type=click.IntRange(min=1), metavar="ID")(command)


@click.group()
def jobs() -> None:
    """Inspect and manage jobs."""


@jobs.command("list")
@status_option([*LIVE, *ENDED])
@type_option
@queue_option
@key_option
@code_option
@text_option
@word_option
@click.option("--limit-key", metavar="KEY", help="Limit key, such as webhook:ep_123.")
@click.option("--group", "group_key", metavar="KEY", help="Group key.")
@tenant_option
@click.option("--worker", metavar="ID", help="Worker that runs the job, or ran an attempt of an ended one.")
@window_options("were created")
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
    return tell_job(job_evidence(context.app, job_id))


def tell_job(evidence: Evidence) -> CommandResult:
    """A job with its attempts and actions, why it waits, and what can be done about it."""
    job = evidence.facts.jobs[0]
    status = job.status
    if (shown := shown_status(status)) != status:
        status = f"{shown} ({status})"
    facts = {
        **msgspec.structs.asdict(job), "status": status, "effect": evidence.facts.ledger_state,
        "next": advice(evidence) if status != "running" else None,
    }  # fmt: skip
    return CommandResult(evidence, [facts, *evidence_blocks(evidence)])


@jobs.command()
@job_or_key
@reason_option
@command
def cancel(
    context: Context, *, job_id: int | None, key: str | None, job_type: str | None, reason: str | None
) -> CommandResult:
    """Cancel a waiting job, or ask a running one to stop.

    A running attempt is not interrupted. If its effect still happens, it is recorded as done; otherwise it is not
    tried again.
    """
    if key is not None and job_id is None:
        return cancel_by_key(context, key, job_type, reason)
    job_id = chosen_job(context, job_id, key, job_type)
    app = context.app
    result = actions.cancel(app.store, app.ledgers, job_id, actor=actor(), reason=reason)
    text = {
        "cancelled": f"job {job_id} cancelled",
        "cancel_requested": f"job {job_id} is running: asked to stop, will not be retried",
    }
    return CommandResult({"job_id": job_id, "result": result}, text[result])


@jobs.command("run-now")
@job_or_key
@reason_option
@command
def run_now(
    context: Context, *, job_id: int | None, key: str | None, job_type: str | None, reason: str | None
) -> CommandResult:
    """Make a waiting job due now.

    Pauses, limits and the order of its group still apply.
    """
    job_id = chosen_job(context, job_id, key, job_type)
    queue = actions.run_now(context.app.store, job_id, actor=actor(), reason=reason)
    context.app.notifier.send([queue])
    text = f"job {job_id} is due now on queue {queue}"
    return CommandResult({"job_id": job_id, "result": "due", "queue": queue}, text)


@jobs.command()
@job_argument
@override_options
@reason_option
@command
def requeue(
    context: Context, *, job_id: int, even_if_unknown: bool, even_if_done: bool, reason: str | None
) -> CommandResult:
    """Requeue an ended job as a new job.

    The old job stays in the history. An effect that may have happened, or is done, needs an explicit override.
    """
    app = context.app
    requeued = store_requeue.requeue(
        app.store, app.job_types, job_id, confirm_unknown=even_if_unknown, confirm_done=even_if_done, actor=actor(),
        reason=reason,
    )  # fmt: skip
    app.notifier.send([requeued.queue])
    text = f"job {job_id} requeued as job {requeued.job_id}"
    result = {"job_id": requeued.job_id, "requeued_from": job_id, "result": "queued", "queue": requeued.queue}
    return CommandResult(result, text)


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
