"""From a MessageSource to the bytes that leave: RFC 5322 and MIME, always the same for the same source.

    mixed                      where there are attachments
    └─ related                 where there are inline images
       └─ alternative          where there is HTML, or an invitation
          ├─ text/plain
          ├─ text/html
          └─ text/calendar        of an invitation, which is attached as well

No clock and no randomness here: boundaries come from the Message-ID. Lines end with CRLF; no line is
longer than 998 bytes; nothing but ASCII goes into a body, so that no relay needs 8BITMIME. `EmailMessage` of the
standard library takes a millisecond a message; this takes some hundredths of that, and the tests read it back with
the standard library's parser.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import encodebytes
from collections.abc import Mapping
from email.utils import format_datetime

import msgspec

from effects_email.message.attachments import is_invitation
from effects_email.message.headers import address_field, file_name, text_field
from effects_email.message.source import Attachment, MessageSource

FOR_ALL = ("Auto-Submitted", "auto-generated")  # RFC 3834: no answer from holidays, please
LINE_BYTES_MAX = 990
_HIGH = bytes(range(128, 256))
_UNSAFE = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_FROM = re.compile(rb"^From (.*)", re.MULTILINE)  # begins a message in a mbox: relays and stores put a > before it
_QUOTED_FROM = rb"=46rom=\n \1"  # with a soft break, so that no line grows past 76 characters


class _Entity(msgspec.Struct, frozen=True):
    """A body and its encoding headers."""

    head: bytes
    body: bytes


def build(source: MessageSource, files: Mapping[str, bytes]) -> bytes:
    """The message.

    Args:
        files: the bytes of each attachment by its sha256.
    """
    content = _content(source, files)
    return b"\r\n".join((*_head(source), content.head, b"", content.body))


def _head(source: MessageSource) -> list[bytes]:
    lines = [
        address_field("From", [source.sender]),
        address_field("To", source.to) if source.to else "To: undisclosed-recipients:;",
    ]
    if source.cc:
        lines.append(address_field("Cc", source.cc))
    if source.reply_to:
        lines.append(address_field("Reply-To", source.reply_to))
    lines += [
        text_field("Subject", source.subject),
        f"Date: {format_datetime(source.date)}",
        f"Message-ID: <{source.message_id}>",
        ": ".join(FOR_ALL),
        "MIME-Version: 1.0",
    ]
    lines += [text_field(name, value) for name, value in source.headers]
    return [line.encode() for line in lines]


def _content(source: MessageSource, files: Mapping[str, bytes]) -> _Entity:
    seed = hashlib.sha256(source.message_id.encode()).hexdigest()[:32]
    content = _text("plain", source.text)
    others = [] if source.html is None else [_text("html", source.html)]
    others += [_calendar(attachment, files) for attachment in source.attachments if is_invitation(attachment)]
    if others:
        content = _multipart("alternative", seed, [content, *others])
    inline = [attachment for attachment in source.attachments if attachment.content_id is not None]
    attached = [attachment for attachment in source.attachments if attachment.content_id is None]
    if inline:
        content = _multipart("related", seed, [content, *(_file(attachment, files) for attachment in inline)])
    if attached:
        content = _multipart("mixed", seed, [content, *(_file(attachment, files) for attachment in attached)])
    return content


def _text(subtype: str, text: str) -> _Entity:
    """As it is where that is safe, else quoted-printable, or base64 where most of it would be quoted."""
    data = text.replace("\r\n", "\n").replace("\r", "\n").encode()
    if not data.endswith(b"\n"):
        data += b"\n"
    charset = "us-ascii" if data.isascii() else "utf-8"
    if charset == "us-ascii" and _is_plain(data):
        encoding, body = "7bit", data
    elif len(data.translate(None, _HIGH)) * 6 < len(data) * 5:
        encoding, body = "base64", encodebytes(data.replace(b"\n", b"\r\n"))
    else:
        encoding, body = "quoted-printable", _without_from(binascii.b2a_qp(data))
    head = f"Content-Type: text/{subtype}; charset={charset}\r\nContent-Transfer-Encoding: {encoding}"
    return _Entity(head.encode(), body.replace(b"\n", b"\r\n"))


def _is_plain(data: bytes) -> bool:
    """Whether ASCII passes every relay as it is."""
    if _has_from(data) or len(data.translate(None, _UNSAFE)) < len(data):
        return False
    return max(map(len, data.split(b"\n"))) < LINE_BYTES_MAX


def _has_from(data: bytes) -> bool:
    return data.startswith(b"From ") or b"\nFrom " in data


def _without_from(data: bytes) -> bytes:
    return _FROM.sub(_QUOTED_FROM, data) if _has_from(data) else data


def _calendar(attachment: Attachment, files: Mapping[str, bytes]) -> _Entity:
    head = f"Content-Type: {attachment.content_type}\r\nContent-Transfer-Encoding: base64"
    return _Entity(head.encode(), encodebytes(files[attachment.sha256]).replace(b"\n", b"\r\n"))


def _file(attachment: Attachment, files: Mapping[str, bytes]) -> _Entity:
    disposition = "attachment" if attachment.content_id is None else "inline"
    lines = [
        f"Content-Type: {'application/ics' if is_invitation(attachment) else attachment.content_type}",
        "Content-Transfer-Encoding: base64",
        f"Content-Disposition: {disposition};\r\n {file_name(attachment.filename)}",
    ]
    if attachment.content_id is not None:
        lines.append(f"Content-ID: <{attachment.content_id}>")
    return _Entity("\r\n".join(lines).encode(), encodebytes(files[attachment.sha256]).replace(b"\n", b"\r\n"))


def _multipart(subtype: str, seed: str, entities: list[_Entity]) -> _Entity:
    boundary = _boundary(subtype, seed, entities)
    cut = f"--{boundary}".encode()
    pieces: list[bytes] = []
    for entity in entities:
        pieces += (cut, b"\r\n", entity.head, b"\r\n\r\n", entity.body, b"\r\n")
    pieces += (cut, b"--\r\n")
    head = f'Content-Type: multipart/{subtype};\r\n boundary="{boundary}"'
    return _Entity(head.encode(), b"".join(pieces))


def _boundary(subtype: str, seed: str, entities: list[_Entity]) -> str:
    """`=_` stands in no base64 and no quoted-printable text; a plain one that holds it gets another."""
    boundary = f"=_{subtype}_{seed}"
    while any(boundary.encode() in entity.body for entity in entities):
        boundary += "_"
    return boundary
