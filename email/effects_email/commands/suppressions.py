"""`effects email suppressions`: list, show, add, remove."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from effects.cli import (
    CommandResult,
    Context,
    Table,
    actor,
    cell,
    command,
    limit_option,
    listed,
    parse_time,
    required_reason_option,
)
from effects.extend.process import ExitCode
from effects_email.suppression import (
    ALL,
    REASONS,
    Reason,
    Suppression,
    find_suppressions,
    list_suppressions,
    suppress,
    suppression_log,
    unsuppress,
)

_FIELDS = ("address", "scope", "reason", "until", "source", "actor", "why", "created_at")
_LOG_FIELDS = ("created_at", "action", "scope", "reason", "actor", "why")
_HEADERS = {"reason": "cause", "why": "reason", "created_at": "created"}  # where they differ from the fields'

category_option = click.option("--category", metavar="NAME", help="Only this category.")
cause_option = click.option("--cause", type=click.Choice(REASONS), help="Only this cause.")


@click.group()
def suppressions() -> None:
    """Manage the suppression list."""


@suppressions.command("list")
@category_option
@cause_option
@limit_option
@command
def list_(context: Context, *, category: str | None, cause: Reason | None, limit: int) -> CommandResult:
    """List suppressions, newest change first."""
    suppressions = list_suppressions(category=category, reason=cause, limit=limit + 1, effects=context.app)
    return listed(suppressions, limit, _table)


@suppressions.command()
@click.argument("address")
@command
def show(context: Context, *, address: str) -> CommandResult:
    """Show suppressions of ADDRESS and their history.

    Exit code 1 if there are none.
    """
    held = find_suppressions(address, effects=context.app)
    log = suppression_log(address, effects=context.app)
    blocks: list[Any] = [_table(held)]
    if log:
        rows = [tuple(getattr(line, name) for name in _LOG_FIELDS) for line in log]
        blocks.append(Table(_headers(_LOG_FIELDS), rows, title="history", empty="no history"))
    return CommandResult({"suppressions": held, "log": log}, blocks, exit_code=_code(held))


@suppressions.command()
@click.argument("address")
@click.option("--category", metavar="NAME", help="Category to suppress. Default: all mail.")
@click.option(
    "--cause",
    type=click.Choice(REASONS),
    default="manual",
    show_default=True,
    help="Cause of the suppression.",
)
@click.option(
    "--until",
    type=parse_time,
    metavar="TIME",
    help="End of the suppression, such as 2027-01-31 or 2027-01-31T12:00:00Z. Default: no expiry.",
)
@required_reason_option
@command
def add(
    context: Context, *, address: str, category: str | None, cause: Reason, until: datetime | None, reason: str
) -> CommandResult:
    """Suppress ADDRESS."""
    suppress(
        address, category=category, reason=cause, until=until, source="cli", actor=actor(), why=reason,
        effects=context.app,
    )  # fmt: skip
    scope = category or ALL
    text = f"{cell(address)}: no more mail" + ("" if scope == ALL else f" of the category {cell(scope)}")
    return CommandResult({"address": address, "scope": scope, "reason": cause}, text)


@suppressions.command()
@click.argument("address")
@category_option
@cause_option
@required_reason_option
@command
def remove(context: Context, *, address: str, category: str | None, cause: Reason | None, reason: str) -> CommandResult:
    """Remove ADDRESS from the list.

    Exit code 1 if it was not suppressed. The provider may have its own list: remove the address there as well.
    """
    lifted = unsuppress(address, category=category, reason=cause, actor=actor(), why=reason, effects=context.app)
    return CommandResult({"address": address, "removed": lifted}, f"{lifted} removed", exit_code=_code(lifted))


def _code(matches: Any) -> ExitCode:
    return ExitCode.DONE if matches else ExitCode.FINDINGS


def _headers(fields: Sequence[str]) -> list[str]:
    return [_HEADERS.get(name, name) for name in fields]


def _table(suppressions: Sequence[Suppression]) -> Table:
    rows = [tuple(getattr(suppression, name) for name in _FIELDS) for suppression in suppressions]
    return Table(_headers(_FIELDS), rows, empty="no suppressions")
