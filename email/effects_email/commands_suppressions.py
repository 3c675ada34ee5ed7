"""`effects email suppressions`: who is not written to, and changing that."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from effects.cli.context import Context, actor, json_option, pass_context
from effects.cli.output import Table, cell
from effects_email.errors import SuppressionInvalid
from effects_email.suppression import (
    Suppression,
    find_suppressions,
    list_suppressions,
    suppress,
    suppression_log,
    unsuppress,
)
from effects_email.suppression_rows import ALL, REASONS, Reason

EXIT_NONE = 1
_COLUMNS = ("address", "scope", "reason", "until", "source", "actor", "why", "created_at")
_LOG_COLUMNS = ("created_at", "action", "scope", "reason", "actor", "why")

category_option = click.option("--category", metavar="NAME", help="Of this category only.")
reason_option = click.option("--reason", type=click.Choice(REASONS), help="For this reason only.")
_why_option = click.option("--why", required=True, metavar="TEXT", help="Kept with your name.")


@click.group()
def suppressions() -> None:
    """Who is not written to: bounces, complaints, unsubscribes, and your word."""


@suppressions.command("list")
@category_option
@reason_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N")
@json_option
@pass_context
def list_(context: Context, *, category: str | None, reason: Reason | None, limit: int, as_json: bool) -> None:
    """What holds now, the last change first."""
    found = list_suppressions(category=category, reason=reason, limit=limit + 1, effects=context.app)
    context.echo(found[:limit] if as_json else _table(found[:limit]), as_json)
    if len(found) > limit:
        click.echo(f"There are more than {limit:,}: give --limit.", err=True)


@suppressions.command()
@click.argument("address")
@json_option
@pass_context
def show(context: Context, *, address: str, as_json: bool) -> int:
    """What holds for ADDRESS, and what was done about it. Exit code 1: nothing holds."""
    held = find_suppressions(address, effects=context.app)
    log = suppression_log(address, effects=context.app)
    if as_json:
        context.echo({"suppressions": held, "log": log}, as_json=True)
    else:
        context.echo(_table(held, "nothing holds: the address is written to"))
        rows = [tuple(getattr(line, name) for name in _LOG_COLUMNS) for line in log]
        if rows:
            click.echo()
            context.echo(Table(_LOG_COLUMNS, rows, title="What was done"))
    return 0 if held else EXIT_NONE


@suppressions.command()
@click.argument("address")
@click.option("--category", metavar="NAME", help="Mail of this category only. Default: all mail.")
@click.option("--reason", type=click.Choice(REASONS), default="manual", show_default=True)
@click.option("--until", metavar="TIME", help="Such as 2027-01-31 or 2027-01-31T12:00:00Z. Default: for ever.")
@_why_option
@json_option
@pass_context
def add(
    context: Context,
    *,
    address: str,
    category: str | None,
    reason: Reason,
    until: str | None,
    why: str,
    as_json: bool,
) -> None:
    """Write no more to ADDRESS."""
    suppress(
        address, category=category, reason=reason, until=_time(until), source="cli", actor=actor(), why=why,
        effects=context.app,
    )  # fmt: skip
    scope = category or ALL
    said = f"{cell(address)}: no more mail" + ("" if scope == ALL else f" of the category {cell(scope)}")
    context.echo({"address": address, "scope": scope, "reason": reason} if as_json else said, as_json)


@suppressions.command()
@click.argument("address")
@category_option
@reason_option
@_why_option
@json_option
@pass_context
def remove(
    context: Context, *, address: str, category: str | None, reason: Reason | None, why: str, as_json: bool
) -> int:
    """Write to ADDRESS again. Exit code 1: nothing held.

    The provider may have a list of its own, from which it must be removed there.
    """
    lifted = unsuppress(address, category=category, reason=reason, actor=actor(), why=why, effects=context.app)
    context.echo({"address": address, "removed": lifted} if as_json else f"{lifted} removed", as_json)
    return 0 if lifted else EXIT_NONE


def _table(found: list[Suppression], empty: str = "nobody is suppressed") -> Table:
    rows = [tuple(getattr(one, name) for name in _COLUMNS) for one in found]
    return Table(_COLUMNS, rows, empty=empty)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SuppressionInvalid("--until is no time; give one such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
