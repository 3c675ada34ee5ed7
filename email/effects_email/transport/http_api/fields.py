"""A message as the fields of a provider's JSON: who, what, further headers, and the attached files by their hashes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from email import policy
from email.parser import BytesParser
from typing import NamedTuple

import msgspec

from effects_email.message.mime import FOR_ALL
from effects_email.message.source import Address, Attachment
from effects_email.transport.base import OutgoingMessage

# Fields of their own in every API, or made by the provider.
_NOT_SENT = ("from", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id", "mime-version")
_QUOTED = '()<>[]:;@\\,."'


class AttachedFile(NamedTuple):
    """An attached file and its content in base64."""

    attachment: Attachment
    content: str


class OnlyHidden(Exception):
    """No one is left whom the headers may show."""


class Groups(NamedTuple):
    """Those of a message's recipients who are still to be served, by their header."""

    to: Sequence[Address]
    cc: Sequence[Address]
    bcc: Sequence[Address]


def groups(outgoing: OutgoingMessage, recipients: Sequence[str]) -> Groups:
    """Divide recipients into fields: the envelope decides who receives, the headers only in which field.

    Whoever is in no header (mail that is redirected in staging) stands in To; so does the first of the others where
    no one else would, because no API goes without.
    """
    source, left = outgoing.source, dict.fromkeys(recipients)
    chosen: list[list[Address]] = []
    for addresses in (source.to, source.cc, source.bcc):
        chosen.append([address for address in addresses if address.spec in left])
        for address in chosen[-1]:
            left.pop(address.spec, None)
    to, cc, bcc = chosen
    to += [Address(*spec.rsplit("@", 1)) for spec in left]
    for others in (cc, bcc):
        if not to and others:
            to = [others.pop(0)]
    return Groups(to, cc, bcc)


def shown_groups(outgoing: OutgoingMessage, recipients: Sequence[str]) -> Groups:
    """As `groups`, for an API that writes To and Cc by its fields.

    Raises:
        OnlyHidden: there are only recipients in Bcc, and several: the first would stand in To, for the others to read.
    """
    people = groups(outgoing, recipients)
    in_headers = {address.spec for address in (*outgoing.source.to, *outgoing.source.cc)}
    hidden = {address.spec for address in outgoing.source.bcc} - in_headers
    if people.bcc and any(address.spec in hidden for address in people.to):
        raise OnlyHidden
    return people


def unsendable(outgoing: OutgoingMessage) -> list[str]:
    """Recipients whose local part is not ASCII: no provider's API takes them."""
    return [recipient for recipient in outgoing.recipients if not recipient.rpartition("@")[0].isascii()]


def quoted(address: Address) -> str:
    """`"Name, of any kind" <a@b.example>`, the name in UTF-8, by RFC 5322 otherwise."""
    if not address.name:
        return address.spec
    escaped = address.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}" <{address.spec}>'


def unquoted(address: Address) -> str:
    """`Name <a@b.example>` without the characters that would need quotes: a name is an ornament, and is better bent
    than the message refused.
    """
    name = " ".join("".join(" " if char in _QUOTED else char for char in address.name).split())
    return f"{name} <{address.spec}>" if name else address.spec


def headers(outgoing: OutgoingMessage) -> dict[str, str]:
    """The headers that an API has no field for, such as List-Unsubscribe; the last one of a name.

    Of the source, as `message.mime` writes them: to read them from the bytes would take most of a millisecond.
    """
    further = dict((FOR_ALL, *outgoing.source.headers))
    return {name: " ".join(value.split()) for name, value in further.items() if name.lower() not in _NOT_SENT}


def files(outgoing: OutgoingMessage) -> list[AttachedFile]:
    """The attached files, found in the bytes by their hashes.

    Raises:
        LookupError: the bytes do not hold what the source names; nothing may be sent.
    """
    attachments = outgoing.source.attachments
    held = {hashlib.sha256(content).hexdigest(): content for content in _contents(outgoing)} if attachments else {}
    return [AttachedFile(attachment, base64.b64encode(held[attachment.sha256]).decode()) for attachment in attachments]


def _contents(outgoing: OutgoingMessage) -> Iterable[bytes]:
    for part in BytesParser(policy=policy.SMTP).parsebytes(outgoing.data).walk():
        if not part.is_multipart():
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                yield content


def reference(message_id: str) -> str:
    """By what a message is found again at a provider and in its events: the hash of its Message-ID, 32 characters of
    which every tag and every search takes all.
    """
    return hashlib.sha256(message_id.encode()).hexdigest()[:32]


def as_json(document: object) -> bytes:
    """The same bytes for the same fields, always: a key that is used again must come with the same content."""
    return msgspec.json.encode(document)
