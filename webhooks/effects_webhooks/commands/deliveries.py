"""`effects webhooks deliveries`, `events`, `event-types`, `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from effects.cli import (
    CommandResult,
    Context,
    Table,
    before_key_option,
    before_option,
    command,
    limit_option,
    page_note,
    status_option,
)
from effects.extend.ledger import LEDGER_STATES
from effects_webhooks.admin.deliveries import (
    DeliverySummary,
    EventSummary,
    list_deliveries,
    list_events,
)
from effects_webhooks.admin.endpoints import get_endpoint
from effects_webhooks.classify import DeliveryExplanation, explain
from effects_webhooks.commands.endpoints import tenant_option
from effects_webhooks.retry_rules import PROFILES
from effects_webhooks.settings import state_of
from effects_webhooks.tables.delivery_rows import RETRYING
from effects_webhooks.tenants import Tenant


@click.command("deliveries")
@click.option("--endpoint", "endpoint_id", metavar="ID", help="Only deliveries to this endpoint, such as ep_123.")
@click.option("--event", "event_id", metavar="ID", help="Only deliveries of this event, such as msg_123.")
@status_option([*LEDGER_STATES, RETRYING])
@tenant_option
@before_option("deliveries", "JOB")
@limit_option
@command
def deliveries_(
    context: Context,
    *,
    endpoint_id: str | None,
    event_id: str | None,
    status: str | None,
    tenant: Tenant,
    before: int | None,
    limit: int,
) -> CommandResult:
    """List deliveries, newest first.

    By status, or by tenant alone, one page looks at a bounded number of jobs. A note then says how to see older ones.
    """
    page = list_deliveries(
        endpoint_id=endpoint_id, event_id=event_id, state=status, before=before, limit=limit, tenant=tenant,
        effects=context.app,
    )  # fmt: skip
    note = page_note("job", page.next_before, more=len(page.deliveries) == limit)
    return CommandResult(page.deliveries, _deliveries_table(page.deliveries), note=note)


@click.command("events")
@tenant_option
@before_key_option("events", "ID")
@limit_option
@command
def events_(context: Context, *, tenant: Tenant, before: str | None, limit: int) -> CommandResult:
    """List events, newest first, without their bodies."""
    events = list_events(before=before, limit=limit + 1, tenant=tenant, effects=context.app)
    more = len(events) > limit
    note = page_note("event", events[limit - 1].id if more else None, more=more)
    return CommandResult(events[:limit], _events_table(events[:limit]), note=note)


def _deliveries_table(deliveries: Sequence[DeliverySummary]) -> Table:
    rows = [
        (
            delivery.job_id,
            delivery.event_id,
            delivery.event_type,
            delivery.endpoint_id,
            f"{delivery.state} ({RETRYING})" if delivery.retrying else delivery.state,
            delivery.status_code,
            delivery.tries,
            delivery.created_at,
        )
        for delivery in deliveries
    ]
    columns = ("job", "event", "type", "endpoint", "status", "answer", "attempts", "created")
    return Table(columns, rows, empty="no deliveries")


def _events_table(events: Sequence[EventSummary]) -> Table:
    rows = [(event.id, event.type, event.tenant, event.key, event.created_at) for event in events]
    return Table(("id", "type", "tenant", "key", "created"), rows, empty="no events")


@click.command("event-types")
@command
def event_types_(context: Context) -> CommandResult:
    """List the event types that the app declares.

    With --json also their examples and schemas, as a page for partners needs them. The app that declares them is named
    by --app or EFFECTS_APP.
    """
    declared = list(state_of(context.app).event_types)
    data = [
        {
            "name": event_type.name,
            "description": event_type.description,
            "example": event_type.example_data(),
            "schema": event_type.schema,
        }
        for event_type in declared
    ]
    rows = [
        (event_type.name, event_type.description, "yes" if event_type.example is not None else "no")
        for event_type in declared
    ]
    return CommandResult(data, Table(("type", "description", "example"), rows, empty="no event types"))


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
