"""The ledger of `email.send`: one row a message, whatever becomes of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection

from effects.settlement import Settlement, fold_sql
from effects.store.ledger import LedgerRow, TableLedger
from effects.store.sql import Sql
from effects.store.store import Statement, Store, as_json

FOUND_MAX = 100
_UNTRIED = ("", "cancelled", "snoozed", "paused")  # outcomes of attempts that sent nothing
# Words of `effects_sent_emails.outcome` where an attempt ended without a verdict of the transport's.
_BY_END = {"suppressed": "suppressed", "expired": "expired", "cancelled": "cancelled"}


class _Entry(msgspec.Struct, kw_only=True):
    job_id: int
    verdict: str | None
    ended: bool
    tried: int
    outcome: str | None
    reply_code: int | None
    reply: str | None
    provider_id: str | None


_ENTRY = {
    "job_id": "int", "verdict": "text", "ended": "bool", "tried": "int", "outcome": "text", "reply_code": "int",
    "reply": "text", "provider_id": "text",
}  # fmt: skip


class RecipientResult(msgspec.Struct, frozen=True):
    """What became of one recipient of a group message in one attempt."""

    key: str
    number: int
    outcome: str
    code: str


_RESULT = {"key": "text", "number": "int", "outcome": "text", "code": "text"}


class Memory(Protocol):
    """What this process knows of its attempts and no settlement carries."""

    def hash_of(self, job_id: int) -> str | None:
        """SHA-256 of the bytes that the attempt is about to send."""
        ...

    def results_of(self, job_id: int) -> Sequence[RecipientResult]:
        """What became of the recipients of a group message."""
        ...


class SentLedger(TableLedger):
    """`sent_emails`: beside the effect's state, the bytes' hash from the release on, and the peer's newest words.

    Args:
        memory: what the attempts of this process know.
        also: told of every batch, in its transaction.
    """

    def __init__(self, memory: Memory, also: Callable[[Connection, Sequence[Settlement]], None]) -> None:
        super().__init__("sent_emails")
        self._memory, self._also = memory, also

    def mark_released(self) -> Statement:
        return _mark_released

    def note(self, job_id: int) -> str | None:
        """The hash of its bytes."""
        return self._memory.hash_of(job_id)

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        store.write(connection, _record, rows=as_json([_entry(one) for one in settled]))
        results = [result for one in settled for result in self._memory.results_of(one.job.id)]
        if results:
            store.write(connection, _record_recipients, rows=as_json(results))
        self._also(connection, settled)

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The messages of this key, Message-ID or event id."""
        found = store.all(connection, _find, key=key, message_id=key.strip("<>"))
        return [LedgerRow(row.key, row.state, row.job_id) for row in found]


def _entry(one: Settlement) -> _Entry:
    detail: Any = one.detail or {}
    return _Entry(
        job_id=one.job.id,
        verdict=one.verdict,
        ended=one.ends,
        tried=int(one.outcome not in _UNTRIED),
        outcome=detail.get("outcome") or _BY_END.get(one.error_code or ""),
        reply_code=detail.get("reply_code"),
        reply=detail.get("reply"),
        provider_id=detail.get("provider_id"),
    )


def _mark_released(sql: Sql) -> str:
    name = sql.sent_emails
    return f"""
    UPDATE {name} SET released_at = {sql.now}, updated_at = {sql.now},
        first_released_at = COALESCE(first_released_at, {sql.now}), bytes_sha256 = COALESCE(bytes_sha256, m.note),
        state = CASE WHEN state IN ('intended', 'refused', 'abandoned') THEN 'released' ELSE state END
    FROM m WHERE {name}.job_id {sql.among("m")} AND {name}.job_id = m.id"""


def _record(sql: Sql) -> str:
    name = sql.sent_emails
    return f"""
    UPDATE {name} SET updated_at = {sql.now}, state = {fold_sql("state", "r.verdict", "r.ended")},
        tries = tries + r.tried, outcome = COALESCE(r.outcome, {name}.outcome),
        reply_code = COALESCE(r.reply_code, {name}.reply_code), reply = COALESCE(r.reply, {name}.reply),
        provider_id = COALESCE(r.provider_id, {name}.provider_id)
    FROM {sql.rows("rows", _ENTRY)} AS r WHERE {name}.job_id = r.job_id"""


def _record_recipients(sql: Sql) -> str:
    name = sql.email_recipients
    return f"""
    UPDATE {name} SET outcome = r.outcome, code = r.code, updated_at = {sql.now}
    FROM {sql.rows("rows", _RESULT)} AS r WHERE {name}.key = r.key AND {name}.number = r.number"""


def _find(sql: Sql) -> str:
    shown = f"SELECT key, state, job_id FROM {sql.sent_emails}"
    return f"""
    {shown} WHERE key = :key UNION {shown} WHERE message_id = :message_id UNION {shown} WHERE event_id = :key
    ORDER BY job_id LIMIT {FOUND_MAX}"""
