"""`effects jobs reschedule` and `wait`, and how commands on jobs take a key in place of an id."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from effects import control
from effects.cli.context import Context, actor
from effects.cli.options import JobId, key_option, parse_age, parse_time, reason_option, type_option
from effects.cli.results import CommandResult, command
from effects.cli.waiting import notice_after, tell_wait
from effects.control import CancelResult
from effects.errors import JobStateError
from effects.exit_codes import ExitCode
from effects.observation.evidence import job_evidence
from effects.observation.sentences import advice
from effects.store.effects.by_key import EffectStatus
from effects.text.wording import shown_status

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
        resolve = f"effects dead resolve {facts['job_id']}"
        text += f". If its effect may have happened by then, an unresolved dead letter remains: decide by `{resolve}`"
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
        status = shown_status(effect.status or "")
        return CommandResult(effect, f"job {effect.job_id} is still {status}", exit_code=ExitCode.TIME_RAN_OUT)
    exit_code = ExitCode.DONE if effect.state == "done" else ExitCode.FINDINGS
    return CommandResult(effect, f"job {effect.job_id} has ended: its effect is {effect.state}", exit_code=exit_code)


def _check_live(effect: EffectStatus, result: str, action: str) -> None:
    if result in ("ended", "running"):
        raise JobStateError(
            f"job {effect.job_id} is {shown_status(effect.status or effect.state)}: only a "
            f"{'live' if action == 'cancelled' else 'waiting'} job can be {action}"
        )
