"""`effects webhooks explain`: what would follow."""

from __future__ import annotations

from typing import Any

import click

from effects.cli.context import Context, json_option, pass_context
from effects_webhooks.budgets import PROFILES
from effects_webhooks.endpoints import get_endpoint
from effects_webhooks.explanation import Explanation, explain


@click.command("explain")
@click.argument("what", metavar="STATUS_OR_FAULT")
@click.option("--retry-after", "hint", metavar="VALUE", help="The answer's header: seconds, or a date.")
@click.option("--attempt", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N")
@click.option("--profile", type=click.Choice(PROFILES), default="default", show_default=True)
@click.option("--endpoint", "endpoint_id", metavar="EP", help="By this endpoint's profile and overrides.")
@json_option
@pass_context
def explain_(
    context: Context,
    *,
    what: str,
    hint: str | None,
    attempt: int,
    profile: str,
    endpoint_id: str | None,
    as_json: bool,
) -> None:
    """What follows a status (429) or a fault (connect_failed): class, delay and why."""
    overrides: dict[str, str] = {}
    if endpoint_id is not None:
        endpoint = get_endpoint(endpoint_id, effects=context.app)
        profile, overrides = endpoint.profile, endpoint.overrides
    found = explain(what, hint=hint, attempt=attempt, profile=profile, overrides=overrides)
    context.echo(found if as_json else _facts(found), as_json)


def _facts(found: Explanation) -> dict[str, Any]:
    rests, again = found.endpoint_rests_seconds, found.next_try_seconds
    return {
        "class": "success" if found.budget == "done" else found.budget,
        "next try": "none" if again is None else f"in {again:g} s, and up to 20 % more",
        "tries": found.tries,
        "endpoint": "goes on" if rests is None else f"rests for {rests:g} s",
        "why": found.why,
    }
