"""What holds jobs back: `effects queues` (list, pause, resume), `effects limits` (list, show, set, pause, resume)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from effects.cli.context import Context, actor
from effects.cli.options import for_option, limit_option, reason_option
from effects.cli.results import CommandResult, command, listed
from effects.cli.table import Table, cell
from effects.errors import ConfigurationError
from effects.kit.text.unsafe import whole_number
from effects.model.job import QUARANTINE_QUEUE
from effects.model.limits import parse_breaker, parse_rate
from effects.operate.tables import limit_status
from effects.operate.tables.limit_status import Limit
from effects.store.limits import key_limits as store_limits
from effects.store.limits import queue_pauses as store_queues
from effects.store.limits.key_limits import LimitOptions
from effects.store.limits.queue_pauses import QueueState


@click.group()
def queues() -> None:
    """Manage queues and their pauses."""


@queues.command("list")
@limit_option
@command
def list_queues(context: Context, *, limit: int) -> CommandResult:
    """List the queues with their live jobs and pauses."""
    app = context.app
    with app.store.read() as connection:
        states = store_queues.list_queues(app.store, connection, app.queues)
    return listed(states, limit, _queues_table)


@queues.command("pause")
@click.argument("name")
@for_option
@reason_option
@click.option("--create", is_flag=True, help="Allow a queue without jobs or job types.")
@command
def pause_queue(
    context: Context, *, name: str, seconds: float | None, reason: str | None, create: bool
) -> CommandResult:
    """Pause a queue. Running jobs finish.

    A worker finishes what it has claimed already, at most a second's work. The newest pause replaces the one before,
    even if it ends earlier. Paused time counts towards max_age: a job that exceeds it in the pause has one more
    attempt.
    """
    app = context.app
    with app.store.begin() as connection:
        pause = store_queues.pause(
            app.store,
            connection,
            name,
            actor=actor(),
            seconds=seconds,
            reason=reason,
            app_queues=app.queues,
            create=create,
        )
    return CommandResult({"queue": name, "result": "paused", "paused_until": pause.until}, str(pause))


@queues.command("resume")
@click.argument("name")
@reason_option
@command
def resume_queue(context: Context, *, name: str, reason: str | None) -> CommandResult:
    """Resume a queue."""
    app = context.app
    with app.store.begin() as connection:
        was_paused = store_queues.resume(
            app.store, connection, name, actor=actor(), reason=reason, app_queues=app.queues
        )
    app.notifier.send({name, QUARANTINE_QUEUE})  # jobs of this queue may wait in quarantine
    text = f"queue {name} resumed" if was_paused else f"queue {name} was not paused"
    return CommandResult({"queue": name, "result": "resumed", "was_paused": was_paused}, text)


def _queues_table(states: Sequence[QueueState]) -> Table:
    rows = [
        (state.queue, state.waiting, state.running, state.paused_until, state.paused_by, state.reason)
        for state in states
    ]  # fmt: skip
    columns = ("queue", "waiting", "running", "paused until", "paused by", "reason")
    return Table(columns, rows, empty="no queues")


NONE = "none"


def key_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("key")(command)


@click.group()
def limits() -> None:
    """Manage rate, concurrency, pause and breaker per key.

    Limits hold for all workers together.
    """


@limits.command("list")
@click.option("--paused", is_flag=True, help="Only paused keys.")
@limit_option
@command
def list_limits(context: Context, *, paused: bool, limit: int) -> CommandResult:
    """List keys with limits or a pause, by name."""
    with context.app.store.read() as connection:
        rows = limit_status.list_limits(context.app.store, connection, paused=paused, limit=limit + 1)
    return listed(rows, limit, _limits_table)


@limits.command()
@key_argument
@command
def show(context: Context, *, key: str) -> CommandResult:
    """Show the limits and the state of KEY."""
    with context.app.store.read() as connection:
        limit = limit_status.show(context.app.store, connection, key)
    [row] = _limits_table([limit]).rows
    facts = {"parent": limit.limits.parent, "tokens": limit.tokens, "failures in a row": limit.failures_in_a_row}
    return CommandResult(limit, {**dict(zip(_LIMIT_COLUMNS, row, strict=True)), **facts})


@limits.command("set")
@key_argument
@click.option(
    "--rate", metavar="N/TIME", help="Maximum starts per time, such as 50/1s or 1000/1h; 'none' removes the limit."
)
@click.option("--burst", type=click.IntRange(min=1), metavar="N",
              help="Maximum starts at once, with --rate. Default: a fifth of a second's, at least two.")  # fmt: skip
@click.option("--in-flight", metavar="N", help="Maximum concurrent jobs; 'none' removes the limit.")
@click.option("--parent", metavar="KEY", help="Key whose limits and pause also apply to this key's jobs; "
              "'none' removes it.")  # fmt: skip
@click.option("--breaker", metavar="N/TIME", help="Consecutive failures that open the breaker, and the time until a "
              "trial attempt, such as 5/60s; 'none' removes it.")  # fmt: skip
@reason_option
@click.option("--create", is_flag=True, help="Allow a KEY without limits or waiting jobs.")
@command
def set_(
    context: Context,
    *,
    key: str,
    rate: str | None,
    burst: int | None,
    in_flight: str | None,
    parent: str | None,
    breaker: str | None,
    reason: str | None,
    create: bool,
) -> CommandResult:
    """Set limits for KEY. Options you omit keep their current value.

    Workers apply a change at their next claim. An unknown KEY is an error unless --create is given.
    """
    if burst is not None and rate in (None, NONE):
        raise ConfigurationError("--burst belongs to a --rate: give both")
    app = context.app
    with app.store.begin() as connection:
        for name in () if create else filter(None, (key, parent if parent != NONE else None)):
            store_limits.refuse_unknown(app.store, connection, name)
        store_limits.set_limit(
            app.store, connection, key, actor=actor(), reason=reason,
            **_changes(rate=rate, burst=burst or 0, in_flight=in_flight, parent=parent, breaker=breaker),
        )  # fmt: skip
        details = limit_status.show(app.store, connection, key)
    return CommandResult(details, f"{key}: {details.limits.text() or 'no limits'}")


@limits.command("pause")
@key_argument
@for_option
@reason_option
@click.option("--create", is_flag=True, help="Allow a KEY without limits or waiting jobs.")
@command
def pause_limit(
    context: Context, *, key: str, seconds: float | None, reason: str | None, create: bool
) -> CommandResult:
    """Pause KEY. Running jobs finish.

    A pause that ends later is kept. An unknown KEY is an error unless --create is given. Paused time does not count
    towards max_age.
    """
    app = context.app
    with app.store.begin() as connection:
        until = store_limits.pause(
            app.store, connection, key, actor=actor(), seconds=seconds, reason=reason, create=create
        )
    text = f"{key} paused" if seconds is None else f"{key} paused until {cell(until)}"
    return CommandResult({"limit_key": key, "result": "paused", "paused_until": until}, text)


@limits.command("resume")
@key_argument
@reason_option
@command
def resume_limit(context: Context, *, key: str, reason: str | None) -> CommandResult:
    """End the pause of KEY and close its breaker.

    A pause of its parent key stays.
    """
    app = context.app
    with app.store.begin() as connection:
        was_paused = store_limits.resume(app.store, connection, key, actor=actor(), reason=reason)
    # The queues in which its jobs wait are not known here.
    app.notifier.send(app.queues)
    text = f"{key} resumed" if was_paused else f"{key} was not paused"
    return CommandResult({"limit_key": key, "result": "resumed", "was_paused": was_paused}, text)


def _changes(
    *, rate: str | None, burst: int, in_flight: str | None, parent: str | None, breaker: str | None
) -> LimitOptions:
    """What was given: the new value of each, or None to remove it."""
    changes: LimitOptions = {}
    if rate is not None:
        changes["rate"] = None if rate == NONE else parse_rate(rate, burst)
    if in_flight is not None:
        changes["max_in_flight"] = None if in_flight == NONE else _count(in_flight)
    if parent is not None:
        changes["parent"] = None if parent == NONE else parent
    if breaker is not None:
        changes["breaker"] = None if breaker == NONE else parse_breaker(breaker)
    return changes


def _count(text: str) -> int:
    count = whole_number(text)
    if count is None or not 1 <= count <= 1_000_000:
        raise ConfigurationError(f"--in-flight is {text!r}; give 1 to 1,000,000, or 'none'")
    return count


_LIMIT_COLUMNS = ("key", "limits", "running", "waiting", "paused until", "reason", "breaker")


def _limits_table(limits: Sequence[Limit]) -> Table:
    rows = [
        (limit.limit_key, limit.limits.text() or None, limit.running, limit.waiting, limit.paused_until,
         limit.pause_reason, limit.breaker_state)
        for limit in limits
    ]  # fmt: skip
    return Table(_LIMIT_COLUMNS, rows, empty="no limits")
