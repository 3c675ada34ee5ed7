"""`effects limits`: list, show, set, pause, resume."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from effects.cli.context import Context, actor, json_option, pass_context
from effects.cli.output import Table, cell
from effects.errors import ConfigurationError
from effects.limits import FOREVER_SECONDS, parse_breaker, parse_rate
from effects.store import limit_states
from effects.store import limits as store_limits
from effects.store.limit_states import Limit
from effects.store.limits import KEEP

T = TypeVar("T")
NONE = "none"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def key_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("key")(command)


def _length(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """`90s`, `15m`, `6h`, `3d` → seconds."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([smhd])", value)
    if found is None or not (seconds := float(int(found[1]) * _UNITS[found[2]])) or seconds > FOREVER_SECONDS:
        raise click.BadParameter(f"{value!r} is no length of time; give a number and s, m, h or d, such as 15m")
    return seconds


@click.group()
def limits() -> None:
    """Limit keys: a rate, most in flight, a pause, a breaker, for all workers together."""


@limits.command("list")
@click.option("--paused", is_flag=True, help="Only keys that are paused now.")
@json_option
@pass_context
def list_(context: Context, paused: bool, as_json: bool) -> None:
    """Every key that has limits or is paused, by name; at most 1,000."""
    with context.app.store.read() as connection:
        found = limit_states.list_limits(context.app.store, connection, paused=paused)
    context.echo(found if as_json else _table(found), as_json)


@limits.command()
@key_argument
@json_option
@pass_context
def show(context: Context, key: str, as_json: bool) -> None:
    """One key: what it may, how it stands, and who changed it last."""
    with context.app.store.read() as connection:
        context.echo(limit_states.show(context.app.store, connection, key), as_json)


@limits.command("set")
@key_argument
@click.option("--rate", metavar="N/TIME", help="Starts in a time, such as 50/1s or 1000/1h; 'none' for no rate.")
@click.option("--burst", type=click.IntRange(min=1), metavar="N",
              help="With --rate: most at once. Default: a fifth of a second's, at least two.")  # fmt: skip
@click.option("--in-flight", metavar="N", help="Most at a time; 'none' for no cap.")
@click.option("--parent", metavar="KEY", help="A key that must be open too, and whose limits count this one's jobs; "
              "'none' for no parent.")  # fmt: skip
@click.option("--breaker", metavar="N/TIME", help="Opens after N failures in a row, such as 5/60s; after the time one "
              "attempt probes. 'none' for no breaker.")  # fmt: skip
@json_option
@pass_context
def set_(
    context: Context,
    key: str,
    rate: str | None,
    burst: int | None,
    in_flight: str | None,
    parent: str | None,
    breaker: str | None,
    as_json: bool,
) -> None:
    """Change what KEY may. What is not named stays as it is; workers follow at their next claim."""
    if burst is not None and rate in (None, NONE):
        raise ConfigurationError("--burst belongs to a --rate: give both")
    app = context.app
    with app.store.begin() as connection:
        store_limits.set_limit(
            app.store,
            connection,
            key,
            actor=actor(),
            rate=_given(rate, lambda text: parse_rate(text, burst or 0)),
            max_in_flight=_given(in_flight, _count),
            parent=_given(parent, str),
            breaker=_given(breaker, parse_breaker),
        )
        found = limit_states.show(app.store, connection, key)
    context.echo(found if as_json else f"{key}: {_may(found) or 'no limits'}", as_json)


@limits.command()
@key_argument
@click.option("--for", "seconds", metavar="TIME", callback=_length, help="Such as 15m; without it until `resume`.")
@click.option("--reason", metavar="TEXT", help="Why; shown in the list and by `effects status` and `why`.")
@json_option
@pass_context
def pause(context: Context, key: str, seconds: float | None, reason: str | None, as_json: bool) -> None:
    """Let no job of KEY start for a while; what runs goes on. A pause that ends later stays.

    The time does not count towards the greatest age of the jobs that wait.
    """
    app = context.app
    with app.store.begin() as connection:
        until = store_limits.pause(app.store, connection, key, actor=actor(), seconds=seconds, reason=reason)
    text = f"{key} is paused" if seconds is None else f"{key} is paused until {cell(until)}"
    context.echo({"limit_key": key, "result": "paused", "paused_until": until} if as_json else text, as_json)


@limits.command()
@key_argument
@json_option
@pass_context
def resume(context: Context, key: str, as_json: bool) -> None:
    """End the pause of KEY and close its breaker. A parent's pause is its own."""
    app = context.app
    with app.store.begin() as connection:
        was_paused = store_limits.resume(app.store, connection, key, actor=actor())
    app.hints.send({one.queue for one in app.job_types})  # in which lanes its jobs wait is not known here
    text = f"{key} is open" if was_paused else f"{key} was open already"
    context.echo({"limit_key": key, "result": "open", "was_paused": was_paused} if as_json else text, as_json)


def _given(text: str | None, parse: Callable[[str], T]) -> Any:
    """What `set_limit` takes: leave as it is, take away, or the new value."""
    if text is None:
        return KEEP
    return None if text == NONE else parse(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise ConfigurationError(f"--in-flight is {text!r}; give 1 to 1,000,000, or 'none'")
    return int(text)


def _may(limit: Limit) -> str:
    parts = [f"{limit.max_in_flight} in flight"] if limit.max_in_flight is not None else []
    if limit.rate_tokens is not None and limit.rate_period_seconds is not None:
        parts.append(f"{limit.rate_tokens} per {limit.rate_period_seconds:g} s (burst {limit.rate_burst})")
    if limit.breaker_failures is not None:
        parts.append(f"breaker {limit.breaker_failures} failures, {limit.breaker_seconds:g} s")
    if limit.parent is not None:
        parts.append(f"under {limit.parent}")
    return ", ".join(parts)


def _table(found: Any) -> Table:
    rows = [
        (one.limit_key, _may(one) or None, one.running, one.waiting, one.paused_until, one.pause_reason,
         one.breaker_state, one.last_action and f"{one.last_action} by {one.last_actor}")
        for one in found
    ]  # fmt: skip
    columns = ("key", "limits", "running", "waiting", "paused until", "reason", "breaker", "last action")
    return Table(columns, rows, empty="no key has limits")
