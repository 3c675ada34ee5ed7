"""What a try sends, and to whom: those that no earlier one has served, and who are not suppressed."""

from __future__ import annotations

from effects import Attempt, Cancelled, Done, Outcome
from effects_email.dkim.signing import DkimSigner
from effects_email.loading import Message
from effects_email.message.attachments import Files
from effects_email.message.envelope import EnvelopeSenders
from effects_email.message.mime import build
from effects_email.message.source import Address, MessageSource
from effects_email.message.staging import redirected
from effects_email.record import SendRecord
from effects_email.recording import left_out_results
from effects_email.transport.base import OutgoingMessage


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
