"""`effects schedules`: list, add, pause, resume, run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click

from effects.app.firing import fire_now
from effects.cli.context import Context, actor
from effects.cli.options import limit_option, parse_object, parse_time, reason_option, status_option, type_option
from effects.cli.results import CommandResult, command, listed
from effects.cli.table import Table, cell
from effects.kit.moments import moment
from effects.model.schedules import CATCH_UP, CATCH_UP_MAX, OVERLAP, Schedule
from effects.operate.tables.schedule_states import STATES, ScheduleState, read_states
from effects.store import schedules as store_schedules


def name_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name")(command)


@click.group()
def schedules() -> None:
    """Manage scheduled (cron) jobs."""


@schedules.command("list")
@type_option
@status_option(STATES)
@limit_option
@command
def list_(context: Context, *, job_type: str | None, status: str | None, limit: int) -> CommandResult:
    """List schedules with their next and last slots."""
    states = [
        state
        for state in read_states(context.app.store)
        if job_type in (None, state.job_type) and status in (None, state.state)
    ]
    return listed(states, limit, _table)


@schedules.command()
@name_argument
@click.option("--type", "job_type", metavar="NAME", required=True, help="Job type, such as effects.prune.")
@click.option(
    "--cron", metavar="TEXT", required=True, help="Cron expression of five fields, such as '30 6 * * MON-FRI'."
)
@click.option("--zone", metavar="ZONE", default="UTC", show_default=True, help="IANA time zone.")
@click.option("--payload", metavar="JSON", default="{}", show_default=True,
              help="Payload, with {slot}, {slot_date}, {slot_month} filled in.")  # fmt: skip
@click.option("--key", metavar="TEMPLATE", help="Idempotency key, such as 'sales_report:{slot_date}'.")
@click.option("--catch-up", type=click.Choice(CATCH_UP), default="latest", show_default=True,
              help="How to handle slots missed while no worker ran.")  # fmt: skip
@click.option("--catch-up-max", type=click.IntRange(1, CATCH_UP_MAX), default=100, show_default=True,
              help="Maximum number of slots for --catch-up all.")  # fmt: skip
@click.option("--overlap", type=click.Choice(OVERLAP), default="skip", show_default=True,
              help="How to handle a slot while the previous job is still live.")  # fmt: skip
@click.option(
    "--max-attempts", type=click.IntRange(1, 1000), metavar="N", help="Maximum number of attempts of each job."
)
@reason_option
@command
def add(context: Context, /, *, payload: str, reason: str | None, **options: Any) -> CommandResult:
    """Add a schedule.

    Schedules that belong to the app are better declared in its code.
    """
    schedule = Schedule(payload=parse_object(payload, "--payload"), **options)
    with context.app.store.read() as connection:
        context.app.job_types.check_declared(schedule, connection)
    store_schedules.add(context.app.store, schedule, actor=actor(), reason=reason)
    following = next(schedule.times.after(_now(context)))
    text = f"schedule {schedule.name} added; next slot {cell(following)}"
    return CommandResult({"name": schedule.name, "result": "added", "next_slot": following}, text)


@schedules.command()
@name_argument
@reason_option
@command
def pause(context: Context, *, name: str, reason: str | None) -> CommandResult:
    """Pause a schedule. Skipped slots are not caught up.

    The pause lasts until `resume`, across deploys.
    """
    store_schedules.pause(context.app.store, name, actor=actor(), reason=reason)
    return CommandResult({"name": name, "result": "paused"}, f"schedule {name} paused")


@schedules.command()
@name_argument
@reason_option
@command
def resume(context: Context, *, name: str, reason: str | None) -> CommandResult:
    """Resume a schedule from its next slot."""
    store_schedules.resume(context.app.store, name, actor=actor(), reason=reason)
    return CommandResult({"name": name, "result": "active"}, f"schedule {name} resumed")


@schedules.command()
@name_argument
@click.option("--slot", type=parse_time, metavar="TIME",
              help="Slot time in ISO 8601, UTC unless it has a zone. Default: now.")  # fmt: skip
@reason_option
@command
def run(context: Context, *, name: str, slot: datetime | None, reason: str | None) -> CommandResult:
    """Run a schedule once, now or for a given slot.

    The same slot runs only once; a future slot is refused. A key derived from a slot is used only once too, whether
    the schedule or this command runs first.
    """
    fired = fire_now(context.app, name, actor=actor(), slot=slot, reason=reason)
    note = " (its key already exists: nothing new runs)" if fired.outcome == "existing" else ""
    text = f"schedule {name}, slot {cell(fired.slot)}: job {fired.job_id}{note}"
    return CommandResult(fired, text)


def _now(context: Context) -> datetime:
    store = context.app.store
    with store.read() as connection:
        return moment(store.now(connection))


def _table(states: Sequence[ScheduleState]) -> Table:
    columns = ("name", "type", "cron", "zone", "status", "next slot", "last slot", "outcome", "job", "paused by")
    rows = [
        (
            state.name,
            state.job_type,
            state.cron,
            state.zone,
            state.state,
            state.next_slot,
            state.last_slot,
            state.last_outcome if state.last_reason is None else f"{state.last_outcome} ({state.last_reason})",
            state.last_job_id,
            state.paused_by,
        )
        for state in states
    ]
    return Table(columns, rows, empty="no schedules")
