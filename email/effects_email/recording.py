"""The record of an attempt to send: what became of each recipient, failed addresses, the transport's answer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from sqlalchemy import Connection

from effects import Effects
from effects.extend import clean_text
from effects_email.classify import leading
from effects_email.evidence import reported_results
from effects_email.loading import Message
from effects_email.record import AddressFailure, RecipientResult, SendRecord
from effects_email.suppressions.bounces import note_failures
from effects_email.tables import refusals
from effects_email.transport.base import OutgoingMessage, SendResult
from effects_email.transport.replies.verdicts import reply_text


def recipient_results(message: Message, send_result: SendResult) -> list[RecipientResult]:
    """Of a message to a group: each recipient that is still open, and those that were left out."""
    if not message.group:
        return []
    results = []
    for number, address in message.open.items():
        verdict = send_result.recipients.get(address.spec)
        if verdict is not None and number not in message.suppressed:
            results.append(RecipientResult(message.key, number, verdict.kind, verdict.code))
    return results + left_out_results(message)


def left_out_results(message: Message) -> list[RecipientResult]:
    """Of a message to a group: the recipients who must not be written to, and those who have it according to events."""
    if not message.group:
        return []
    suppressed = [RecipientResult(message.key, number, "suppressed", "suppressed") for number in message.suppressed]
    return suppressed + reported_results(message.key, message.reported)


def failures_of(outgoing: OutgoingMessage, send_result: SendResult) -> list[AddressFailure]:
    """The addresses with a suppressing verdict."""
    verdicts = send_result.recipients or dict.fromkeys(outgoing.recipients, send_result.verdict)
    return [
        AddressFailure(address=address, kind=verdict.suppress, code=verdict.code)
        for address, verdict in verdicts.items()
        if verdict.suppress is not None
    ]


def record_of(
    record: SendRecord,
    send_result: SendResult,
    word: str,
    held_in: str | None,
    results: Sequence[RecipientResult],
    failures: Sequence[AddressFailure],
) -> SendRecord:
    """The attempt's record, with what the transport answered."""
    reply = leading(send_result).reply
    provider_id = send_result.provider_id
    return replace(
        record,
        outcome=word,
        took=word == "accepted" or any(verdict.kind == "accepted" for verdict in send_result.recipients.values()),
        reply_code=reply.code if reply is not None else None,
        reply=reply_text(reply) if reply is not None else None,
        provider_id=clean_text(provider_id) if provider_id is not None else None,
        held_in=held_in,
        results=results,
        failures=failures,
    )


def note(app: Effects, connection: Connection, records: Sequence[SendRecord], refusing: bool) -> None:
    """In the transaction that records these attempts: a transport that took a message has no refusals in a row, and the
    suppression list learns of those that are no one else's fault.

    Args:
        refusing: any transport refuses messages at present; else there is nothing to clear.
    """
    took = {record.transport for record in records if record.took}
    if took and refusing:
        refusals.clear(app.store, connection, took)
    by_transport: dict[str, list[AddressFailure]] = {}
    for record in records:
        if record.failures:
            by_transport.setdefault(record.transport, []).extend(record.failures)
    if not by_transport:
        return
    overruled = refusals.overruled(app.store, connection, by_transport)
    for transport, failures in by_transport.items():
        own = [failure for failure in failures if (transport, failure.code) not in overruled]
        note_failures(app, connection, own, source=transport)
