"""The entry point `effects.pages`: routes, navigation, and what the core's pages show of webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects.web import NavigationEntry, PageRoute, Pages, StandingLine, StoryLink, Visit
from effects_webhooks.admin.endpoints import Endpoint, list_endpoints
from effects_webhooks.dashboard import delivery_pages, endpoint_pages, secret_actions
from effects_webhooks.dashboard.endpoint_actions import ACTIONS
from effects_webhooks.errors import EndpointNotFound, EventNotFound
from effects_webhooks.tenants import ANY_TENANT
from effects_webhooks.writing import JOB_TYPE

_NAMED_MAX = 3


def _links(visit: Visit, evidence: Any) -> Sequence[StoryLink]:
    """Of the job of a delivery: the delivery, its event and its endpoint."""
    event_id, colon, endpoint_id = (evidence.key or "").partition(":")
    if evidence.job_type != JOB_TYPE or not colon:
        return ()
    return (
        StoryLink("The delivery", visit.url("webhooks_delivery", event=event_id, endpoint=endpoint_id)),
        StoryLink("Its event", visit.url("webhooks_event", event=event_id)),
        StoryLink("Its endpoint", visit.url("webhooks_endpoint", endpoint=endpoint_id)),
    )


def _standing(visit: Visit) -> Sequence[StandingLine]:
    """Endpoints that fail, and those that were disabled for it."""
    endpoints = list_endpoints(tenant=ANY_TENANT, effects=visit.app)
    failing = [endpoint for endpoint in endpoints if endpoint.status == "active" and endpoint.failing_since is not None]
    lines = [_line(visit, endpoint) for endpoint in failing[:_NAMED_MAX]]
    if len(failing) > _NAMED_MAX:
        more = f"{len(failing) - _NAMED_MAX:,} more endpoints"
        lines.append(StandingLine("failing", more, visit.url("webhooks", status="failing")))
    return lines


def _line(visit: Visit, endpoint: Endpoint) -> StandingLine:
    messages = (
        f"{endpoint.failed_messages:,} message{'' if endpoint.failed_messages == 1 else 's'} since its last success"
    )
    return StandingLine(
        "failing", f"{endpoint.address}: {messages}", visit.url("webhooks_endpoint", endpoint=endpoint.id)
    )


def _route(name: str, pattern: str, view: Any) -> PageRoute:
    return PageRoute(name, ("GET",), pattern, view, role="viewer", personal=False)


PAGES = Pages(
    name="webhooks",
    label="Webhooks",
    package="effects_webhooks.dashboard",
    navigation=(
        NavigationEntry("webhooks", "Endpoints", "e"),
        NavigationEntry("webhooks_deliveries", "Deliveries", "v"),
        NavigationEntry("webhooks_events", "Events", "t"),
    ),
    routes=(
        _route("webhooks", "/webhooks", endpoint_pages.endpoints),
        _route("webhooks_endpoint", "/webhooks/endpoints/{endpoint}", endpoint_pages.endpoint),
        _route("webhooks_explain", "/webhooks/explain", endpoint_pages.explain),
        _route("webhooks_deliveries", "/webhooks/deliveries", delivery_pages.deliveries),
        _route("webhooks_delivery", "/webhooks/deliveries/{event}/{endpoint}", delivery_pages.delivery),
        _route("webhooks_events", "/webhooks/events", delivery_pages.events),
        _route("webhooks_event", "/webhooks/events/{event}", delivery_pages.event),
        PageRoute("webhooks_reveal", ("POST",), "/webhooks/events/{event}/reveal", delivery_pages.reveal,
                  role="viewer", personal=True, acts=True),
    ),
    actions=(*ACTIONS, *secret_actions.ACTIONS),
    missing=(EndpointNotFound, EventNotFound),
    links=_links,
    standing=_standing,
)  # fmt: skip
