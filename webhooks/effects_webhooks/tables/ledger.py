"""The ledger of `webhook.deliver`: one row for each event and endpoint."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from effects.settlement import Settlement, fold_sql
from effects.store.ledger import LedgerRow, TableLedger
from effects.store.sql import Sql
from effects.store.store import Store, as_json


class _Entry(msgspec.Struct):
    job_id: int
    verdict: str | None
    ended: bool
    answer: int | None
    tried: int


_ENTRY = {"job_id": "int", "verdict": "text", "ended": "bool", "answer": "int", "tried": "int"}
FOUND_MAX = 100
_UNTRIED = ("", "cancelled")  # outcomes of attempts that sent nothing


def _record(sql: Sql) -> str:
    name = sql.delivered_webhooks
    return f"""
    UPDATE {name} SET updated_at = {sql.now}, state = {fold_sql("state", "r.verdict", "r.ended")},
        status_code = COALESCE(r.answer, status_code), tries = tries + r.tried
    FROM {sql.rows("rows", _ENTRY)} AS r WHERE {name}.job_id = r.job_id"""


def _find(sql: Sql) -> str:
    """By the event's id, or by its key in any tenant: a loose scan of the tenants, one probe each."""
    events, mine = sql.webhook_events, "d.event_id || ':' || d.endpoint_id"
    return f"""
    WITH RECURSIVE tenants(t) AS (
        SELECT min(tenant) FROM {events}
        UNION ALL
        SELECT (SELECT min(tenant) FROM {events} WHERE tenant > tenants.t) FROM tenants WHERE t IS NOT NULL
    ), meant(id) AS (
        SELECT id FROM {events} WHERE id = :event_id
        UNION
        SELECT e.id FROM tenants JOIN {events} AS e ON e.tenant = tenants.t AND e.key = :key
    )
    SELECT {mine} AS key, d.state, d.job_id FROM meant JOIN {sql.delivered_webhooks} AS d ON d.event_id = meant.id
    WHERE :endpoint_id = '' OR d.endpoint_id = :endpoint_id ORDER BY d.job_id LIMIT {FOUND_MAX}"""


class DeliveryLedger(TableLedger):
    """`delivered_webhooks`: beside the effect's state, the newest status code and the count of tries."""

    def __init__(self) -> None:
        super().__init__("delivered_webhooks")

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        store.write(connection, _record, rows=as_json([_entry(one) for one in settled]))

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The deliveries of an event, by its id or its caller's key; of one endpoint as `msg_…:ep_…`."""
        event_id, _, rest = key.partition(":")
        endpoint_id = rest if rest.startswith("ep_") else ""
        found = store.all(connection, _find, event_id=event_id, key=key, endpoint_id=endpoint_id)
        return [LedgerRow(row.key, row.state, row.job_id) for row in found]


def _entry(one: Settlement) -> _Entry:
    answer = (one.detail or {}).get("status")
    return _Entry(one.job.id, one.verdict, one.ends, answer, int(one.outcome not in _UNTRIED))
