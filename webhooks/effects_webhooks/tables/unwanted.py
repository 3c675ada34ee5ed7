"""Why an event has no delivery, by the endpoints that there are now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store
from effects_webhooks.request import matches, patterns_of

_ENDPOINTS_MAX = 1000
_NAMED = 3


def why_unwanted(store: Store, connection: Connection, event_type: str, tenant: str) -> str:
    """One clause: which endpoints of the event's tenant there are, and what they take."""
    endpoints = store.all(connection, _active)
    own = [endpoint for endpoint in endpoints if endpoint.tenant == tenant]
    whose = f" of tenant {tenant!r}" if tenant else " without a tenant" if len(own) < len(endpoints) else ""
    if not endpoints:
        return "there is no active endpoint (see `effects webhooks endpoints add`)"
    if not own:
        return f"there is no active endpoint{whose}; an event goes to those of its own tenant"
    if any(matches(pattern, event_type) for endpoint in own for pattern in patterns_of(endpoint.patterns)):
        return (
            "the endpoint that takes it today was added or enabled later, or the job for its deliveries has yet to run"
        )
    there = f"none of the {len(own)} active endpoints" if len(own) > 1 else "the only active endpoint"
    return f"{there}{whose} {'takes' if len(own) > 1 else 'does not take'} {event_type}: {_named(own)}"


def _named(endpoints: Sequence[Row[Any]]) -> str:
    named = [f"{endpoint.id} takes {', '.join(patterns_of(endpoint.patterns))}" for endpoint in endpoints[:_NAMED]]
    return "; ".join([*named, *(["…"] if len(endpoints) > _NAMED else [])])


def _active(sql: Sql) -> str:
    return f"""
    SELECT id, tenant, {sql.json_text("patterns")} AS patterns FROM {sql.webhook_endpoints}
    WHERE status = 'active' ORDER BY id LIMIT {_ENDPOINTS_MAX}"""
