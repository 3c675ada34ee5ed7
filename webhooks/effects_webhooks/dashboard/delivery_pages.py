"""Deliveries and events, one or a list: what was sent, and what was answered."""

from __future__ import annotations

import msgspec

from effects.extend import LEDGER_STATES, AuditAction
from effects.web import (
    PAGE_ROWS,
    PageAnswer,
    Visit,
    before_of,
    choice_of,
    chosen_of,
    filters_of,
    notice,
    page_of,
    story_values,
    text_of,
)
from effects_webhooks.admin.deliveries import get_delivery, get_event, list_deliveries, list_events
from effects_webhooks.admin.endpoints import get_endpoint
from effects_webhooks.errors import EndpointNotFound
from effects_webhooks.tables.delivery_lists import RETRYING
from effects_webhooks.tenants import ANY_TENANT, Tenant

REVEAL = AuditAction("event", "reveal")
BODY_CHARS_MAX = 64 * 1024
STATES = (RETRYING, *LEDGER_STATES)


def deliveries(visit: Visit) -> PageAnswer:
    """Deliveries by endpoint, event and state, newest first."""
    chosen = filters_of(visit.query, ("endpoint_id", "event_id"))
    state, before = choice_of(visit.query, "state", STATES), before_of(visit)
    tenant = text_of(visit.query, "tenant")
    page = list_deliveries(
        **chosen, state=state, before=before, limit=PAGE_ROWS, tenant=_tenant(tenant), effects=visit.app
    )
    return visit.page(
        "webhooks/deliveries.html", page=page, chosen=chosen_of({**chosen, "tenant": tenant}), state=state,
        states=STATES, first=before is None, notice=notice(visit),
    )  # fmt: skip


def delivery(visit: Visit) -> PageAnswer:
    """One delivery: its request, and each try with its answer."""
    event_id, endpoint_id = visit.values["event"], visit.values["endpoint"]
    shown = get_delivery(event_id, endpoint_id, tenant=ANY_TENANT, effects=visit.app)
    try:
        endpoint = get_endpoint(endpoint_id, tenant=ANY_TENANT, effects=visit.app)
    except EndpointNotFound:  # deleted since
        endpoint = None
    return visit.page(
        "webhooks/delivery.html", **{**story_values(visit, visit.evidence(shown.job_id)), "links": ()},
        delivery=shown, endpoint=endpoint,
    )  # fmt: skip


def events(visit: Visit) -> PageAnswer:
    """Events without their bodies, newest first."""
    before, tenant = text_of(visit.query, "before"), text_of(visit.query, "tenant")
    rows, older = page_of(list_events(before=before, limit=PAGE_ROWS + 1, tenant=_tenant(tenant), effects=visit.app))
    return visit.page(
        "webhooks/events.html", events=rows, older=older, first=before is None, tenant=tenant,
        notice=notice(visit),
    )  # fmt: skip


def event(visit: Visit) -> PageAnswer:
    """One event and its deliveries, without its body."""
    return _event(visit)


def reveal(visit: Visit) -> PageAnswer:
    """The same with the body, noted in the audit log first."""
    visit.note_look(REVEAL, visit.values["event"])
    return _event(visit, revealed=True)


def _event(visit: Visit, *, revealed: bool = False) -> PageAnswer:
    shown = get_event(visit.values["event"], tenant=ANY_TENANT, effects=visit.app)
    page = list_deliveries(event_id=shown.id, limit=PAGE_ROWS, tenant=ANY_TENANT, effects=visit.app)
    return visit.page(
        "webhooks/event.html", revealed=revealed, event=shown, size=len(shown.body), page=page,
        body=_pretty(shown.body) if revealed else None, notice=notice(visit),
    )  # fmt: skip


def _tenant(name: str | None) -> Tenant:
    return ANY_TENANT if name is None else name


def _pretty(body: bytes) -> str:
    """The JSON with its lines; otherwise the bytes as text."""
    try:
        text = msgspec.json.format(body, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body.decode("utf-8", errors="backslashreplace")
    return text if len(text) <= BODY_CHARS_MAX else f"{text[:BODY_CHARS_MAX]}\n…"
