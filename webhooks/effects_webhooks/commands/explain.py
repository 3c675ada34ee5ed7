"""`effects webhooks explain`."""

from __future__ import annotations

from typing import Any

import click

from effects.cli import CommandResult, Context, command
from effects_webhooks.admin.endpoints import get_endpoint
from effects_webhooks.commands.options import tenant_option
from effects_webhooks.explanation import DeliveryExplanation, explain
from effects_webhooks.retry_rules import PROFILES
from effects_webhooks.tenants import Tenant


@click.command("explain")
@click.argument("what", metavar="STATUS_OR_FAULT")
@click.option("--retry-after", "hint", metavar="VALUE", help="Retry-After header of the response: seconds or a date.")
@click.option("--attempt", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N",
              help="Number of the attempt.")  # fmt: skip
@click.option("--profile", type=click.Choice(PROFILES), default="default", show_default=True, help="Retry profile.")
@click.option("--endpoint", "endpoint_id", metavar="EP", help="Endpoint whose profile and overrides apply.")
@tenant_option
@command
def explain_(
    context: Context,
    *,
    what: str,
    hint: str | None,
    attempt: int,
    profile: str,
    endpoint_id: str | None,
    tenant: Tenant,
) -> CommandResult:
    """Explain the retry after a status or a fault.

    STATUS_OR_FAULT is an HTTP status such as 429, or a fault such as connect_failed.
    """
    overrides: dict[str, str] = {}
    if endpoint_id is not None:
        endpoint = get_endpoint(endpoint_id, tenant=tenant, effects=context.app)
        profile, overrides = endpoint.profile, endpoint.overrides
    explanation = explain(what, hint=hint, attempt=attempt, profile=profile, overrides=overrides)
    return CommandResult(explanation, _facts(explanation))


def _facts(explanation: DeliveryExplanation) -> dict[str, Any]:
    rests, again = explanation.endpoint_rests_seconds, explanation.next_try_seconds
    return {
        "class": "success" if explanation.retry_class == "done" else explanation.retry_class,
        "next try": "none" if again is None else f"in {again:g} s (plus up to 20 % jitter)",
        "tries": explanation.tries,
        "endpoint": "not paused" if rests is None else f"paused for {rests:g} s",
        "why": explanation.why,
    }
