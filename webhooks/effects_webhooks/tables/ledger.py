"""The ledger of `webhook.deliver`: one row for each event and endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.jobs import Settlement
from effects.extend.ledger import LedgerRow, TableLedger, fold_sql
from effects.extend.sql import Sql, Store, as_json
from effects_webhooks.echoes import shortened
from effects_webhooks.request import matches, patterns_of

_ENDPOINTS_MAX = 1000
_NAMED = 3


def _why_unwanted(store: Store, connection: Connection, event_type: str, tenant: str) -> str:
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
    return f"{there}{whose} {'takes' if len(own) > 1 else 'does not take'} {event_type}: {_named_endpoints(own)}"


def _named_endpoints(endpoints: Sequence[Row[Any]]) -> str:
    named = [f"{endpoint.id} takes {', '.join(patterns_of(endpoint.patterns))}" for endpoint in endpoints[:_NAMED]]
    return "; ".join([*named, *(["…"] if len(endpoints) > _NAMED else [])])


def _active(sql: Sql) -> str:
    return f"""
    SELECT id, tenant, {sql.json_text("patterns")} AS patterns FROM {sql.webhook_endpoints}
    WHERE status = 'active' ORDER BY id LIMIT {_ENDPOINTS_MAX}"""


class DeliveryRecord(msgspec.Struct, frozen=True):
    """What an attempt leaves for the ledger (`Attempt.private`), once it has tried the endpoint.

    `status`: the answer's. `disable_requested`: it asked for no further requests. `was_failing`: as it was loaded.
    """

    event_id: str
    endpoint_id: str
    status: int | None = None
    disable_requested: bool = False
    was_failing: bool = False


class _DeliveryEntry(msgspec.Struct):
    job_id: int
    verdict: str | None
    ended: bool
    answer: int | None
    tried: int


MATCHES_MAX = 100
NEWEST = 10
_UNTRIED = ("", "cancelled", "snoozed", "paused")  # outcomes of attempts that sent nothing


def _record(sql: Sql) -> str:
    name = sql.delivered_webhooks
    return f"""
    UPDATE {name} SET updated_at = {sql.now}, state = {fold_sql("state", "r.verdict", "r.ended")},
        status_code = COALESCE(r.answer, status_code), tries = tries + r.tried
    FROM {sql.rows("rows", _DeliveryEntry)} AS r WHERE {name}.job_id = r.job_id"""


def _find(sql: Sql) -> str:
    return f"""
    SELECT d.event_id, d.endpoint_id, d.state, d.job_id
    FROM {sql.webhook_events} AS e JOIN {sql.delivered_webhooks} AS d ON d.event_id = e.id
    WHERE e.key = :key OR e.id = :key OR (e.id = :event_id AND d.endpoint_id = :endpoint_id)
    ORDER BY d.job_id LIMIT {MATCHES_MAX}"""


def _of_event(sql: Sql) -> str:
    return f"""
    SELECT d.event_id, d.endpoint_id, d.state, d.job_id
    FROM {sql.webhook_events} AS e JOIN {sql.delivered_webhooks} AS d ON d.event_id = e.id
    WHERE e.key = :key OR e.id = :key ORDER BY d.job_id"""


def _named(sql: Sql) -> str:
    return f"SELECT id FROM {sql.webhook_endpoints} WHERE id = :key OR url = :key LIMIT {MATCHES_MAX}"


def _newest_of(sql: Sql) -> str:
    return f"""
    SELECT d.event_id, d.endpoint_id, d.state, d.job_id FROM {sql.delivered_webhooks} AS d
    WHERE d.endpoint_id = :endpoint_id ORDER BY d.job_id DESC LIMIT {NEWEST}"""


def _endpoint(sql: Sql) -> str:
    return f"SELECT url, status FROM {sql.webhook_endpoints} WHERE id = :endpoint_id"


def _held(sql: Sql) -> str:
    return f"""
    SELECT state, job_id FROM {sql.delivered_webhooks} WHERE event_id = :event_id AND endpoint_id = :endpoint_id"""


def _newest_by_endpoint(store: Store, connection: Connection, key: str) -> Sequence[Row[Any]]:
    """Asked one by one, each by its index: for all of them PostgreSQL may walk down all deliveries."""
    rows = [
        row
        for endpoint in store.all(connection, _named, key=key)
        for row in store.all(connection, _newest_of, endpoint_id=endpoint.id)
    ]
    return sorted(rows, key=lambda row: row.job_id, reverse=True)[:NEWEST]


class DeliveryLedger(TableLedger):
    """`delivered_webhooks`: beside the effect's state, the newest status code and the count of tries."""

    def __init__(self, on_recorded: Callable[[Connection, Sequence[Settlement]], None] = lambda *nothing: None) -> None:
        super().__init__("delivered_webhooks")
        self._on_recorded = on_recorded  # called with every batch, in its transaction

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        store.write(connection, _record, rows=as_json([_entry(settlement) for settlement in settled]))
        self._on_recorded(connection, settled)

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The deliveries of an event, by its caller's key or its id; of one endpoint as `msg_…:ep_…`; the newest ten to
        an endpoint, by its id or URL.
        """
        event_id, _, endpoint_id = key.partition(":")
        rows = store.all(connection, _find, key=key, event_id=event_id, endpoint_id=endpoint_id)
        rows = rows or _newest_by_endpoint(store, connection, key)
        return [LedgerRow(f"{row.event_id}:{row.endpoint_id}", row.state, row.job_id) for row in rows]

    def parts(self, store: Store, connection: Connection, name: str) -> Sequence[LedgerRow]:
        """All deliveries of an event, by its caller's key or its id."""
        rows = store.all(connection, _of_event, key=name)
        return [LedgerRow(f"{row.event_id}:{row.endpoint_id}", row.state, row.job_id) for row in rows]

    def limit_keys(self, store: Store, connection: Connection, name: str) -> Sequence[str]:
        """That of an endpoint, by its id; of each that has this URL."""
        return [f"webhook:{row.id}" for row in store.all(connection, _named, key=name)]

    def about(self, store: Store, connection: Connection, key: str) -> Mapping[str, str]:
        """The endpoint's URL without what may be a token, and its state where it is no longer active."""
        row = store.row(connection, _endpoint, endpoint_id=key.partition(":")[2])
        if row is None:
            return {}
        url = shortened(row.url)
        return {"endpoint": url if row.status == "active" else f"{url} ({row.status})"}

    def holders(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The delivery of this name, `msg_…:ep_…`."""
        event_id, _, endpoint_id = key.partition(":")
        rows = store.all(connection, _held, event_id=event_id, endpoint_id=endpoint_id)
        return [LedgerRow(key, row.state, row.job_id) for row in rows]

    def why_none(self, store: Store, connection: Connection, key: str) -> str | None:
        """An event that is stored, and that no endpoint wanted."""
        row = store.row(connection, _event, key=key)
        if row is None:
            endpoint = store.row(connection, _endpoint_named, key=key)
            return (
                None
                if endpoint is None
                else f"endpoint {endpoint.id} ({shortened(endpoint.url)}) has had no delivery yet"
            )
        reason = _why_unwanted(store, connection, row.type, row.tenant)
        return f"event {row.id} ({row.type}) is stored and has no delivery: {reason}"


def _endpoint_named(sql: Sql) -> str:
    return f"SELECT id, url FROM {sql.webhook_endpoints} WHERE id = :key OR url = :key LIMIT 1"


def _event(sql: Sql) -> str:
    return f"SELECT id, type, tenant FROM {sql.webhook_events} WHERE key = :key OR id = :key LIMIT 1"


def _entry(settlement: Settlement) -> _DeliveryEntry:
    record: DeliveryRecord | None = settlement.private
    answer = None if record is None else record.status
    return _DeliveryEntry(
        settlement.job.id, settlement.verdict, settlement.ends, answer, int(settlement.outcome not in _UNTRIED)
    )
