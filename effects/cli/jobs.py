"""`effects jobs`: list, show, cancel, requeue, run-now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from effects.cli.context import Context, actor, json_option, pass_context
from effects.cli.evidence import actions_table, attempts_table
from effects.cli.output import Table
from effects.job import ENDED, LIVE
from effects.store import actions, lookup
from effects.store.records import JobRecord, JobStory

reason_option = click.option("--reason", metavar="TEXT", help="Why; kept with your name in effects_job_actions.")


def job_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("job_id", type=click.IntRange(min=1), metavar="ID")(command)


@click.group()
def jobs() -> None:
    """Look at jobs and act on them."""


@jobs.command("list")
@click.option("--status", type=click.Choice([*LIVE, *ENDED]))
@click.option("--type", "job_type", metavar="NAME", help="Job type, such as webhook.deliver.")
@click.option("--queue", metavar="NAME")
@click.option("--key", metavar="KEY", help="Idempotency key.")
@click.option("--limit", type=click.IntRange(1, lookup.LIST_MAX), default=50, show_default=True)
@json_option
@pass_context
def list_(context: Context, /, as_json: bool, **filters: Any) -> None:
    """Live and ended jobs, newest first."""
    found = lookup.list_jobs(context.app.store, lookup.Filters(**filters))
    context.echo(found if as_json else _table(found), as_json)


@jobs.command()
@job_argument
@json_option
@pass_context
def show(context: Context, job_id: int, as_json: bool) -> None:
    """One job, live or ended, with its attempts and what people did to it. No payload is shown."""
    print_story(context, lookup.get_job(context.app.store, context.app.ledgers, job_id), as_json)


def print_story(context: Context, story: JobStory, as_json: bool) -> None:
    """A job with its attempts and actions."""
    if as_json:
        context.echo(story, as_json=True)
        return
    context.echo({**msgspec.structs.asdict(story.job), "effect": story.state})
    context.echo("")
    context.echo(attempts_table(story.attempts))
    if story.actions:
        context.echo("")
        context.echo(actions_table(story.actions))


@jobs.command()
@job_argument
@reason_option
@json_option
@pass_context
def cancel(context: Context, job_id: int, reason: str | None, as_json: bool) -> None:
    """Cancel a waiting job now; ask a running one to stop.

    A running attempt is not interrupted. If its effect happens all the same, it is recorded as done; if not, it
    is not tried again.
    """
    app = context.app
    result = actions.cancel(app.store, app.ledgers, job_id, actor=actor(), reason=reason)
    text = {
        "cancelled": f"job {job_id} is cancelled",
        "cancel_requested": f"job {job_id} is running: it is asked to stop, and will not be tried again",
    }
    context.echo({"job_id": job_id, "result": result} if as_json else text[result], as_json)


@jobs.command("run-now")
@job_argument
@reason_option
@json_option
@pass_context
def run_now(context: Context, job_id: int, reason: str | None, as_json: bool) -> None:
    """Make a waiting job due now. Pauses, limits and the order of its group still hold."""
    queue = actions.run_now(context.app.store, job_id, actor=actor(), reason=reason)
    context.app.hints.send([queue])
    text = f"job {job_id} is due now in the lane {queue}"
    context.echo({"job_id": job_id, "result": "due", "queue": queue} if as_json else text, as_json)


@jobs.command()
@job_argument
@click.option("--again", is_flag=True, help="Also when the effect is done: carry it out once more.")
@reason_option
@json_option
@pass_context
def requeue(context: Context, job_id: int, again: bool, reason: str | None, as_json: bool) -> None:
    """Try an ended job again, as a new job; the old one stays in the history."""
    app = context.app
    made = actions.requeue(app.store, app.ledgers, job_id, actor=actor(), reason=reason, again=again)
    app.hints.send([made.queue])
    text = f"job {made.job_id} is queued; it tries job {job_id} again"
    result = {"job_id": made.job_id, "requeued_from": job_id, "result": "queued", "queue": made.queue}
    context.echo(result if as_json else text, as_json)


def _table(found: list[JobRecord]) -> Table:
    columns = ("id", "type", "status", "queue", "attempts", "due or ended", "key", "error")
    rows = [
        (
            job.id,
            job.job_type,
            job.status,
            job.queue,
            job.attempts,
            job.finished_at or job.run_at,
            job.key,
            job.error_code,
        )
        for job in found
    ]
    return Table(columns, rows, empty="no jobs")
