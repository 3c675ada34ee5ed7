"""Which endpoints want an event, in which order they take it, and the limit key of each."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects
from effects_webhooks.request import matches, patterns_of
from effects_webhooks.tables import events as table
from effects_webhooks.tables.events import EventRow

_LIMIT = "webhook:"


def limit_key(endpoint_id: str) -> str:
    """The key under which an endpoint's deliveries share their cap and their pauses."""
    return f"{_LIMIT}{endpoint_id}"


def endpoint_of(limit_key: str) -> str | None:
    """The endpoint of a limit key; None for a key of something else."""
    return limit_key.removeprefix(_LIMIT) if limit_key.startswith(_LIMIT) else None


class Route(msgspec.Struct, frozen=True):
    """An endpoint that wants an event, and the order in which it takes them."""

    endpoint_id: str
    ordering: str = "none"

    def group_key(self, ordering_key: str | None) -> str | None:
        """The group whose deliveries run one after the other, or None."""
        if self.ordering == "endpoint":
            return f"webhook:{self.endpoint_id}"
        return f"webhook:{self.endpoint_id}:{ordering_key}" if self.ordering == "key" and ordering_key else None


class Target:
    """An active endpoint, from its row: id, ordering, patterns."""

    def __init__(self, row: Row[Any]) -> None:
        self.route = Route(row.id, row.ordering)
        self._patterns = patterns_of(row.patterns)

    def wants(self, event_type: str) -> bool:
        return any(matches(pattern, event_type) for pattern in self._patterns)


class Routes:
    """The active endpoints of some tenants, read once."""

    def __init__(self, app: Effects, connection: Connection, tenants: set[str]) -> None:
        self._by_tenant: dict[str, list[Target]] = defaultdict(list)
        for row in table.active_endpoints(app.store, connection, tenants):
            self._by_tenant[row.tenant].append(Target(row))

    def of(self, event: EventRow) -> list[Route]:
        """The endpoints that want this event."""
        return [target.route for target in self._by_tenant.get(event.tenant, ()) if target.wants(event.type)]
