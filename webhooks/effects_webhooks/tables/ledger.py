"""The ledger of `webhook.deliver`: one row for each event and endpoint."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from effects.settlement import Settlement, fold_sql
from effects.store.ledger import TableLedger
from effects.store.sql import Sql
from effects.store.store import Store, as_json


class _Entry(msgspec.Struct):
    job_id: int
    verdict: str | None
    ended: bool
    answer: int | None
    tried: int


_ENTRY = {"job_id": "int", "verdict": "text", "ended": "bool", "answer": "int", "tried": "int"}
_UNTRIED = ("", "cancelled")  # outcomes of attempts that sent nothing


def _record(sql: Sql) -> str:
    name = sql.delivered_webhooks
    return f"""
    UPDATE {name} SET updated_at = {sql.now}, state = {fold_sql("state", "r.verdict", "r.ended")},
        status_code = COALESCE(r.answer, status_code), tries = tries + r.tried
    FROM {sql.rows("rows", _ENTRY)} AS r WHERE {name}.job_id = r.job_id"""


class DeliveryLedger(TableLedger):
    """`delivered_webhooks`: beside the effect's state, the newest status code and the count of tries."""

    def __init__(self) -> None:
        super().__init__("delivered_webhooks")

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        store.write(connection, _record, rows=as_json([_entry(one) for one in settled]))


def _entry(one: Settlement) -> _Entry:
    answer = (one.detail or {}).get("status")
    return _Entry(one.job.id, one.verdict, one.ends, answer, int(one.outcome not in _UNTRIED))
