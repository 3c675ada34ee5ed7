"""`effects schedules`: list, add, pause, resume, run."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from effects.cli.context import Context, actor, json_option, pass_context
from effects.cli.output import Table, cell
from effects.firing import fire_now
from effects.schedules import CATCH_UP, CATCH_UP_MAX, OVERLAP, Schedule
from effects.store import schedules as store_schedules
from effects.store.schedules import ScheduleState


def name_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name")(command)


@click.group()
def schedules() -> None:
    """Jobs that fall due by the clock."""


@schedules.command("list")
@json_option
@pass_context
def list_(context: Context, as_json: bool) -> None:
    """Every schedule: whether it runs, its next slot, and what became of the last one."""
    found = store_schedules.states(context.app.store)
    context.echo(found if as_json else _table(found), as_json)


@schedules.command()
@name_argument
@click.option("--type", "job_type", metavar="NAME", required=True, help="Job type, such as effects.prune.")
@click.option("--cron", metavar="TEXT", required=True, help="Five fields, such as '30 6 * * MON-FRI'.")
@click.option("--zone", metavar="ZONE", default="UTC", show_default=True, help="IANA time zone.")
@click.option("--payload", metavar="JSON", default="{}", show_default=True,
              help="May hold {slot}, {slot_date} and {previous_slot_date}.")  # fmt: skip
@click.option("--key", metavar="TEMPLATE", help="Idempotency key, such as 'sales_report:{slot_date}'.")
@click.option("--catch-up", type=click.Choice(CATCH_UP), default="latest", show_default=True,
              help="What becomes of slots that no worker was there for.")  # fmt: skip
@click.option("--catch-up-max", type=click.IntRange(1, CATCH_UP_MAX), default=100, show_default=True,
              help="With --catch-up all.")  # fmt: skip
@click.option("--overlap", type=click.Choice(OVERLAP), default="skip", show_default=True,
              help="What happens while a job of it is still live.")  # fmt: skip
@click.option("--max-attempts", type=click.IntRange(1, 1000), metavar="N")
@json_option
@pass_context
def add(context: Context, /, as_json: bool, payload: str, **options: Any) -> None:
    """Add a schedule. One that belongs to the app's code is better declared there."""
    schedule = Schedule(payload=_mapping(payload), **options)
    schedule.check(context.app.job_types)
    store_schedules.add(context.app.store, schedule)
    following = next(schedule.times.after(_now(context)))
    text = f"schedule {schedule.name} is added; its next slot is {cell(following)}"
    context.echo({"name": schedule.name, "result": "added", "next_slot": following} if as_json else text, as_json)


@schedules.command()
@name_argument
@click.option("--reason", metavar="TEXT", help="Why; shown in the list.")
@json_option
@pass_context
def pause(context: Context, name: str, reason: str | None, as_json: bool) -> None:
    """Let no slot run until `resume`; what falls into the pause is not caught up. A deploy does not end it."""
    store_schedules.pause(context.app.store, name, actor=actor(), reason=reason)
    context.echo({"name": name, "result": "paused"} if as_json else f"schedule {name} is paused", as_json)


@schedules.command()
@name_argument
@json_option
@pass_context
def resume(context: Context, name: str, as_json: bool) -> None:
    """Go on with the next slot."""
    store_schedules.resume(context.app.store, name)
    context.echo({"name": name, "result": "active"} if as_json else f"schedule {name} runs again", as_json)


@schedules.command()
@name_argument
@click.option("--slot", metavar="TIME", help="ISO 8601, UTC where it names no zone. Default: now.")
@json_option
@pass_context
def run(context: Context, name: str, slot: str | None, as_json: bool) -> None:
    """Run it once by hand, as if now, or `--slot`, were one of its slots. The same slot twice runs once."""
    fired = fire_now(context.app, name, actor=actor(), slot=_moment(slot) if slot else None)
    known = " (its key was known: nothing new runs)" if fired.outcome == "existing" else ""
    text = f"schedule {name}, slot {cell(fired.slot)}: job {fired.job_id}{known}"
    context.echo(fired if as_json else text, as_json)


def _now(context: Context) -> datetime:
    store = context.app.store
    with store.read() as connection:
        return datetime.fromtimestamp(store.now(connection), UTC)


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError("--payload must be a JSON object")
    return value


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--slot is {text!r}; give ISO 8601, such as 2026-01-14T06:00") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _table(found: list[ScheduleState]) -> Table:
    columns = ("name", "type", "cron", "zone", "state", "next slot", "last slot", "outcome", "job", "paused by")
    rows = [
        (
            one.name,
            one.job_type,
            one.cron,
            one.zone,
            one.state,
            one.next_slot,
            one.last_slot,
            one.last_outcome if one.last_reason is None else f"{one.last_outcome} ({one.last_reason})",
            one.last_job_id,
            one.paused_by,
        )
        for one in found
    ]
    return Table(columns, rows, empty="no schedules")
