"""`effects reports link`."""

from __future__ import annotations

import click

from effects.cli import CommandResult, Context, actor, command, parse_age, reason_option
from effects_reports.admin import make_link
from effects_reports.delivery.link_tokens import USES_MAX


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--at", "base_url", metavar="URL", required=True, help="Where download_app is mounted.")
@click.option("--for", "seconds", type=parse_age, default="15m", show_default=True, metavar="AGE", help="Validity.")
@click.option("--uses", type=click.IntRange(1, USES_MAX), metavar="N", help="Maximum downloads. Default: any number.")
@click.option("--principal", metavar="PERSON", help="The only person it opens for. Default: whoever has it.")
@reason_option
@command
def link(
    context: Context,
    *,
    run_id: str,
    base_url: str,
    seconds: float,
    uses: int | None,
    principal: str | None,
    reason: str | None,
) -> CommandResult:
    """Make a new link to the file of a run.

    Earlier links stay as they are. The link itself is recorded nowhere.
    """
    url = make_link(
        run_id, base_url, seconds=seconds, uses=uses, principal=principal, actor=actor(), reason=reason,
        effects=context.app,
    )  # fmt: skip
    return CommandResult({"run_id": run_id, "url": url}, url)
