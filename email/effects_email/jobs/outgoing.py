"""What an attempt sends, from whom, and to whom: those that no earlier one has served, and who are not suppressed.

And the record of it: what happened to each recipient, failed addresses, the transport's answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from sqlalchemy import Connection

from effects import Attempt, Cancelled, Done, Effects, Outcome
from effects.extend.text import clean_text
from effects_email.classify import leading, took_one
from effects_email.dkim.signing import DkimSigner
from effects_email.events import reported_results
from effects_email.loading import Message
from effects_email.message.attachments import Files
from effects_email.message.mime import build
from effects_email.message.source import Address, MessageSource
from effects_email.returned.token import bounce_address
from effects_email.settings import EmailSettings
from effects_email.suppression import note_failures
from effects_email.tables import transports
from effects_email.tables.ledger import AddressFailure, RecipientResult, SendRecord
from effects_email.transport.base import OutgoingMessage, SendResult
from effects_email.transport.replies.verdicts import reply_text


class EnvelopeSenders:
    """Decides by the message, then EFFECTS_EMAIL_BOUNCE_DOMAIN, EFFECTS_EMAIL_RETURN_PATH, and the message's From."""

    def __init__(self, app: Effects, settings: EmailSettings) -> None:
        self._app = app
        self._default, self._bounce_domain = settings.return_path, settings.email_bounce_domain

    def address(self, source: MessageSource) -> Address:
        """Where it is the same for every try and recipient."""
        return source.return_path or self._default or source.sender

    def of(self, message: Message, source: MessageSource, numbers: Sequence[int]) -> str:
        """
        Args:
            numbers: of the recipients that this try is for; none if it is redirected: what bounces then is not theirs.
        """
        if source.return_path is not None or not self._bounce_domain or not numbers:
            return self.address(source).spec
        return bounce_address(
            self._app, self._bounce_domain, job_id=message.job_id, message_id=source.message_id,
            number=numbers[0] if len(numbers) == 1 else None,
        )  # fmt: skip


def redirected(source: MessageSource, to: Address) -> MessageSource:
    """The same message to `to` alone. Its header `X-Original-To` names the original recipients."""
    meant = [address.spec for group in (source.to, source.cc, source.bcc) for address in group]
    shown = ", ".join(meant[:10]) + (f" and {len(meant) - 10} more" if len(meant) > 10 else "")
    return replace(source, to=(to,), cc=(), bcc=(), headers=(*source.headers, ("X-Original-To", shown)))


def outgoing_message(
    message: Message,
    source: MessageSource,
    files: Files,
    redirect: Address | None,
    signer: DkimSigner,
    envelope: EnvelopeSenders,
) -> OutgoingMessage:
    """The message for the wire, signed; with `redirect`, to that address alone.

    Raises:
        AttachmentMissing: a file cannot be read now.
        ContentChanged: a file is not what it was at the call.
    """
    numbers = [number for number in message.open if number not in message.suppressed]
    to = [message.open[number] for number in numbers]
    if redirect is not None:
        source, to, numbers = redirected(source, redirect), [redirect], []
    unsigned = build(source, files.read(source, message.key))
    data = signer.sign(unsigned, source.sender.domain, source.date, released_as=message.sha256)
    return OutgoingMessage(
        sender=envelope.of(message, source, numbers),
        recipients=tuple(dict.fromkeys(address.spec for address in to)),
        data=data,
        source=source,
        message_id=source.message_id,
        key=f"{message.key}:{source.message_id}"[-255:],
        utf8=any(not address.local.isascii() for address in (envelope.address(source), *to)) or not data.isascii(),
    )


def nobody_left(attempt: Attempt, message: Message) -> Outcome | None:
    """Where every recipient is settled or suppressed. A suppressed send is on record, and no failure."""
    if message.suppressed < message.open.keys():
        return None
    word = "accepted" if message.some_accepted else "suppressed"
    attempt.private = SendRecord(
        sha256=message.sha256, transport=message.last_transport, outcome=word, results=left_out_results(message)
    )
    if message.some_accepted:
        return Done(detail={"outcome": word})
    return Cancelled("its recipients are on the suppression list", code="suppressed")


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
        took=word == "accepted" or took_one(send_result),
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
        transports.clear_refusals(app.store, connection, took)
    by_transport: dict[str, list[AddressFailure]] = {}
    for record in records:
        if record.failures:
            by_transport.setdefault(record.transport, []).extend(record.failures)
    if not by_transport:
        return
    overruled = transports.overruled(app.store, connection, by_transport)
    for transport, failures in by_transport.items():
        own = [failure for failure in failures if (transport, failure.code) not in overruled]
        note_failures(app, connection, own, source=transport)
