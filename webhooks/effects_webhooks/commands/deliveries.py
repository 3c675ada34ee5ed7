"""`effects webhooks deliveries` and `effects webhooks events`: what was sent to whom."""

from __future__ import annotations

from collections.abc import Sequence

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
from effects.extend import LEDGER_STATES
from effects_webhooks.admin.deliveries import DeliverySummary, EventSummary, list_deliveries, list_events
from effects_webhooks.commands.options import tenant_option
from effects_webhooks.tables.delivery_lists import RETRYING
from effects_webhooks.tenants import Tenant


@click.command("deliveries")
@click.option("--endpoint", "endpoint_id", metavar="ID", help="Endpoint.")
@click.option("--event", "event_id", metavar="ID", help="Event.")
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
