"""Endpoints, one or a list, and what would follow an answer of one."""

from __future__ import annotations

from collections.abc import Mapping

from effects.web import LIVE_SECONDS, PageAnswer, Visit, choice_of, notice, text_of
from effects_webhooks.admin.deliveries import list_deliveries
from effects_webhooks.admin.endpoints import Endpoint, get_endpoint, list_endpoints
from effects_webhooks.admin.rotation import list_secrets
from effects_webhooks.explanation import DeliveryExplanation
from effects_webhooks.explanation import explain as explain_answer
from effects_webhooks.retry_rules import FAULT_RULES
from effects_webhooks.routing import limit_key
from effects_webhooks.tenants import ANY_TENANT

ENDPOINTS_MAX = 500
RECENT = 60
STATES = ("active", "disabled", "failing")
WHAT_IF = ("404", "410", "429", "500", "503", "no_answer", "connect_failed")
ATTEMPTS = (1, 3, 6, 10)


def endpoints(visit: Visit) -> PageAnswer:
    """The endpoints, those that fail first."""
    tenant, status = text_of(visit.query, "tenant"), choice_of(visit.query, "status", STATES)
    every = visit.read("webhooks", LIVE_SECONDS, lambda: list_endpoints(tenant=ANY_TENANT, effects=visit.app))
    fitting = [endpoint for endpoint in every if tenant in (None, endpoint.tenant) and _has(endpoint, status)]
    fitting.sort(key=lambda endpoint: (endpoint.failing_since is None, endpoint.status != "active"))
    return visit.page(
        "webhooks/endpoints.html", endpoints=fitting[:ENDPOINTS_MAX], more=len(fitting) - ENDPOINTS_MAX, tenant=tenant,
        status=status, states=STATES, any_at_all=bool(every), notice=notice(visit),
    )  # fmt: skip


def _has(endpoint: Endpoint, status: str | None) -> bool:
    if status == "failing":
        return endpoint.status == "active" and endpoint.failing_since is not None
    return status in (None, endpoint.status)


def endpoint(visit: Visit) -> PageAnswer:
    """One endpoint: its health, its newest deliveries, and what answers would mean for it."""
    endpoint_id = visit.values["endpoint"]
    shown = get_endpoint(endpoint_id, tenant=ANY_TENANT, effects=visit.app)
    recent = list_deliveries(endpoint_id=endpoint_id, limit=RECENT, tenant=ANY_TENANT, effects=visit.app).deliveries
    return visit.page(
        "webhooks/endpoint.html", endpoint=shown, limit=visit.limit_of(limit_key(endpoint_id)),
        limit_key=limit_key(endpoint_id), secrets=list_secrets(endpoint_id, tenant=ANY_TENANT, effects=visit.app),
        recent=recent, what_if=[_explained(shown, what) for what in WHAT_IF],
        notice=notice(visit),
    )  # fmt: skip


def explain(visit: Visit) -> PageAnswer:
    """What follows an answer or a fault, attempt by attempt; of one endpoint, by its own rules."""
    endpoint_id, what = text_of(visit.query, "endpoint"), text_of(visit.query, "what") or "503"
    hint = text_of(visit.query, "retry_after")
    shown = None if endpoint_id is None else get_endpoint(endpoint_id, tenant=ANY_TENANT, effects=visit.app)
    explained = [(attempt, _explained(shown, what, hint=hint, attempt=attempt)) for attempt in ATTEMPTS]
    return visit.page(
        "webhooks/explain.html", endpoint=shown, what=what, hint=hint, explained=explained, faults=list(FAULT_RULES),
    )  # fmt: skip


def _explained(
    endpoint: Endpoint | None, what: str, *, hint: str | None = None, attempt: int = 1
) -> DeliveryExplanation:
    profile: str = "default" if endpoint is None else endpoint.profile
    overrides: Mapping[str, str] = {} if endpoint is None else endpoint.overrides
    return explain_answer(what, hint=hint, attempt=attempt, profile=profile, overrides=dict(overrides))
