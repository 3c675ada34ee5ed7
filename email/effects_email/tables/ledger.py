"""The ledger of `email.send`: one row a message, which outlives its jobs; and the record of an attempt, kept there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from sqlalchemy import Connection

from effects.extend.jobs import Execution, Settlement
from effects.extend.ledger import LedgerRow, TableLedger, fold_sql
from effects.extend.sql import Sql, Statement, Store, as_json

MATCHES_MAX = 100
NEWEST = 10
_SHA256_CHARS = 64  # in hexadecimal
_UNTRIED = ("", "cancelled", "snoozed", "paused")  # outcomes of attempts that sent nothing
_BY_END = {"suppressed": "suppressed", "expired": "expired", "cancelled": "cancelled"}


class RecipientResult(msgspec.Struct, frozen=True):
    """What became of one recipient of a group message in one attempt."""

    key: str
    number: int
    outcome: str
    code: str


class AddressFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal that concerns the address, from a verdict with `suppress`."""

    address: str
    kind: Literal["hard", "soft"]
    code: str  # such as smtp_550_5.1.1; stored, so nothing personal

    def __repr__(self) -> str:
        return f"AddressFailure(kind={self.kind!r}, code={self.code!r})"


class SendRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: what it was about to send, and what became of that.

    `sha256`: of the message's bytes. `outcome`: as in `effects_sent_emails`. `took`: the transport took the message, or
    took it for some of its recipients. `held_in`: the run of refusals in which the message is held back.
    """

    sha256: str | None
    transport: str
    outcome: str | None = None
    took: bool = False
    reply_code: int | None = None
    reply: str | None = None
    provider_id: str | None = None
    held_in: str | None = None
    results: Sequence[RecipientResult] = ()
    failures: Sequence[AddressFailure] = ()


# Words of `effects_sent_emails.outcome` where an attempt ended without a verdict of the transport's.
_NOTHING = SendRecord(sha256=None, transport="")  # of an attempt that sent nothing, or was lost with its worker


class _SentEntry(msgspec.Struct, kw_only=True):
    job_id: int
    verdict: str | None
    ended: bool
    tried: int
    outcome: str | None
    reply_code: int | None
    reply: str | None
    provider_id: str | None
    held_in: str | None
    used_transport: str | None


class SentLedger(TableLedger):
    """`sent_emails`: beside the effect's state, the bytes' hash from the release on, and the peer's newest words.

    Args:
        on_recorded: called with the records of every batch, in its transaction, and whether any transport refuses
            messages at present.
        on_failed: called after it with the jobs that ended otherwise than by success.
        digests: every form under which an address may be stored.
    """

    def __init__(
        self,
        on_recorded: Callable[[Connection, Sequence[SendRecord], bool], None],
        on_failed: Callable[[Connection, Sequence[int]], None],
        digests: Callable[[str], Sequence[str]],
    ) -> None:
        super().__init__("sent_emails")
        self._on_recorded, self._on_failed, self._digests = on_recorded, on_failed, digests

    def mark_released(self) -> Statement:
        return _mark_released

    def release_data(self, execution: Execution) -> str | None:
        """The hash of its bytes, a space, and the transport that gets them."""
        record: SendRecord | None = execution.private
        return None if record is None else f"{record.sha256} {record.transport}"

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        rows = as_json([_entry(settlement) for settlement in settled])
        refusing = any(is_refusing for (is_refusing,) in store.tuples(connection, _record, rows=rows))
        records: list[SendRecord] = [settlement.private for settlement in settled if settlement.private is not None]
        record_recipients(store, connection, [result for record in records for result in record.results])
        self._on_recorded(connection, records, refusing)
        failed = [settlement.job.id for settlement in settled if settlement.ends and settlement.status != "succeeded"]
        if failed:
            self._on_failed(connection, failed)

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The messages of this key, Message-ID, event id, or template and event id; the newest ten to this address."""
        template, _, event_id = key.partition(":")
        names = {"message_id": key.strip("<>"), "template": template, "event_id": event_id}
        rows = store.all(connection, _find, key=key, **names)
        if not rows and "@" in key:
            rows = store.all(connection, _find_by_address, digests=as_json(self._digests(key)))
        return [LedgerRow(row.key, row.state, row.job_id) for row in rows]


def record_recipients(store: Store, connection: Connection, results: Sequence[RecipientResult]) -> None:
    """Write what became of these recipients of messages to groups."""
    if results:
        store.write(connection, _record_recipients, rows=as_json(results))


def _entry(settlement: Settlement) -> _SentEntry:
    record = settlement.private or _NOTHING
    return _SentEntry(
        job_id=settlement.job.id,
        verdict=settlement.verdict,
        ended=settlement.ends,
        tried=int(settlement.outcome not in _UNTRIED),
        outcome=record.outcome or _BY_END.get(settlement.error_code or ""),
        reply_code=record.reply_code,
        reply=record.reply,
        provider_id=record.provider_id,
        held_in=record.held_in,
        used_transport=record.transport or None,
    )


def _mark_released(sql: Sql) -> str:
    name = sql.sent_emails
    return f"""
    UPDATE {name} SET released_at = {sql.now}, updated_at = {sql.now},
        first_released_at = COALESCE(first_released_at, {sql.now}),
        bytes_sha256 = COALESCE(bytes_sha256, SUBSTR(m.data, 1, {_SHA256_CHARS})),
        used_transport = COALESCE(SUBSTR(m.data, {_SHA256_CHARS + 2}), used_transport),
        state = CASE WHEN state IN ('intended', 'refused', 'abandoned') THEN 'released' ELSE state END
    FROM m WHERE {name}.job_id {sql.among("m")} AND {name}.job_id = m.id"""


def _record(sql: Sql) -> str:
    name = sql.sent_emails
    return f"""
    UPDATE {name} SET updated_at = {sql.now}, state = {fold_sql("state", "r.verdict", "r.ended")},
        tries = tries + r.tried, outcome = COALESCE(r.outcome, {name}.outcome),
        reply_code = COALESCE(r.reply_code, {name}.reply_code), reply = COALESCE(r.reply, {name}.reply),
        provider_id = COALESCE(r.provider_id, {name}.provider_id), held_in = COALESCE(r.held_in, {name}.held_in),
        used_transport = COALESCE(r.used_transport, {name}.used_transport)
    FROM {sql.rows("rows", _SentEntry)} AS r WHERE {name}.job_id = r.job_id
    RETURNING EXISTS (SELECT 1 FROM {sql.email_refusals})"""


def _record_recipients(sql: Sql) -> str:
    name = sql.email_recipients
    return f"""
    UPDATE {name} SET outcome = r.outcome, code = r.code, updated_at = {sql.now}
    FROM {sql.rows("rows", RecipientResult)} AS r WHERE {name}.key = r.key AND {name}.number = r.number"""


def _find(sql: Sql) -> str:
    shown = f"SELECT key, state, job_id FROM {sql.sent_emails}"
    return f"""
    {shown} WHERE key = :key UNION {shown} WHERE message_id = :message_id UNION {shown} WHERE event_id = :key
    UNION {shown} WHERE event_id = :event_id AND template = :template
    ORDER BY job_id LIMIT {MATCHES_MAX}"""


def _find_by_address(sql: Sql) -> str:
    return f"""
    SELECT key, state, job_id FROM {sql.sent_emails} WHERE recipient {sql.any_of("digests")}
    ORDER BY created_at DESC, key DESC LIMIT {NEWEST}"""
