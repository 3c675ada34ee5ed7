"""What a claimed batch is to deliver, fetched in few statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection

from effects import Job
from effects.extend import Store
from effects_webhooks.retry_rules import Overrides, overrides_of
from effects_webhooks.tables import events as table

if TYPE_CHECKING:
    from effects import Effects


class Addressee(msgspec.Struct, frozen=True):
    """An endpoint as it is now. Its secrets, newest first, and its headers are still sealed."""

    tenant: str
    url: str
    active: bool
    secrets: Sequence[tuple[str, bytes]]
    profile: str
    overrides: Overrides
    headers: bytes | None
    failing: bool


class LoadedDelivery(msgspec.Struct, frozen=True):
    """What one delivery needs."""

    tenant: str  # the event's
    body: bytes
    addressee: Addressee
    earlier: Sequence[str]  # the codes of the tries before this one

    @property
    def url(self) -> str:
        """Where it goes; what tests of apps look at (`effects.testing`)."""
        return self.addressee.url


def load_deliveries(
    app: Effects, connection: Connection, jobs: Sequence[tuple[Job, str, str]]
) -> Mapping[int, LoadedDelivery]:
    """Load bodies, endpoints and secrets of the whole batch in three statements, and the codes of earlier attempts of
    those that had any in a fourth. A job whose rows are gone is left out.

    Args:
        jobs: each with the ids of its event and its endpoint.
    """
    store = app.store
    events = {row.id: row for row in table.bodies(store, connection, {event_id for _, event_id, _ in jobs})}
    addressees = _addressees(store, connection, {endpoint_id for _, _, endpoint_id in jobs})
    earlier = table.earlier_codes(store, connection, [job.id for job, _, _ in jobs if job.attempts > 1])
    loaded = {}
    for job, event_id, endpoint_id in jobs:
        event, addressee = events.get(event_id), addressees.get(endpoint_id)
        if event is not None and addressee is not None:
            loaded[job.id] = LoadedDelivery(event.tenant, bytes(event.body), addressee, earlier.get(job.id, ()))
    return loaded


def _addressees(store: Store, connection: Connection, endpoint_ids: set[str]) -> dict[str, Addressee]:
    secrets: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    for row in table.secrets(store, connection, endpoint_ids):
        secrets[row.endpoint_id].append((row.id, bytes(row.sealed)))
    return {
        row.id: Addressee(
            row.tenant, row.url, row.status == "active", secrets[row.id], row.profile,
            overrides_of(row.overrides), row.headers, bool(row.failing),
        )
        for row in table.addresses(store, connection, endpoint_ids)
    }  # fmt: skip
