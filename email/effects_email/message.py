"""From Parts to the bytes that leave: RFC 5322 and MIME, the same for the same Parts, always.

    mixed                      where there are attachments
    └─ related                 where there are inline images
       └─ alternative          where there is HTML
          ├─ text/plain
          └─ text/html

Nothing here asks the clock or draws a number: boundaries come from the Message-ID. Lines end with CRLF; no line is
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

from effects_email.headers import address_field, file_name, text_field
from effects_email.parts import Attachment, Parts

LINE_BYTES_MAX = 990
_LONG = re.compile(rb"[^\n]{%d}" % LINE_BYTES_MAX)
_HIGH = bytes(range(128, 256))
_UNSAFE = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")


class _Entity(msgspec.Struct, frozen=True):
    """A body and the header lines that say how it is encoded."""

    head: bytes
    body: bytes


def build(parts: Parts, files: Mapping[str, bytes]) -> bytes:
    """The message.

    Args:
        files: the bytes of each attachment by its sha256.
    """
    content = _content(parts, files)
    return b"\r\n".join((*_head(parts), content.head, b"", content.body))


def _head(parts: Parts) -> list[bytes]:
    lines = [
        address_field("From", [parts.sender]),
        address_field("To", parts.to) if parts.to else "To: undisclosed-recipients:;",
    ]
    if parts.cc:
        lines.append(address_field("Cc", parts.cc))
    if parts.reply_to:
        lines.append(address_field("Reply-To", parts.reply_to))
    lines += [
        text_field("Subject", parts.subject),
        f"Date: {format_datetime(parts.date)}",
        f"Message-ID: <{parts.message_id}>",
        "Auto-Submitted: auto-generated",  # RFC 3834: no answer from holidays, please
        "MIME-Version: 1.0",
    ]
    lines += [text_field(name, value) for name, value in parts.headers]
    return [line.encode() for line in lines]


def _content(parts: Parts, files: Mapping[str, bytes]) -> _Entity:
    seed = hashlib.sha256(parts.message_id.encode()).hexdigest()[:32]
    content = _text("plain", parts.text)
    if parts.html is not None:
        content = _multipart("alternative", seed, [content, _text("html", parts.html)])
    inline = [one for one in parts.attachments if one.content_id is not None]
    attached = [one for one in parts.attachments if one.content_id is None]
    if inline:
        content = _multipart("related", seed, [content, *(_file(one, files) for one in inline)])
    if attached:
        content = _multipart("mixed", seed, [content, *(_file(one, files) for one in attached)])
    return content


def _text(subtype: str, text: str) -> _Entity:
    """As it is where that is safe, else quoted-printable, or base64 where most of it would be quoted."""
    data = text.replace("\r\n", "\n").replace("\r", "\n").encode()
    if not data.endswith(b"\n"):
        data += b"\n"
    charset = "us-ascii" if data.isascii() else "utf-8"
    if charset == "us-ascii" and not _UNSAFE.search(data) and not _LONG.search(data):
        encoding, body = "7bit", data
    elif len(data.translate(None, _HIGH)) * 6 < len(data) * 5:
        encoding, body = "base64", encodebytes(data.replace(b"\n", b"\r\n"))
    else:
        encoding, body = "quoted-printable", binascii.b2a_qp(data)
    head = f"Content-Type: text/{subtype}; charset={charset}\r\nContent-Transfer-Encoding: {encoding}"
    return _Entity(head.encode(), body.replace(b"\n", b"\r\n"))


def _file(one: Attachment, files: Mapping[str, bytes]) -> _Entity:
    disposition = "attachment" if one.content_id is None else "inline"
    lines = [
        f"Content-Type: {one.content_type}",
        "Content-Transfer-Encoding: base64",
        f"Content-Disposition: {disposition};\r\n {file_name(one.filename)}",
    ]
    if one.content_id is not None:
        lines.append(f"Content-ID: <{one.content_id}>")
    return _Entity("\r\n".join(lines).encode(), encodebytes(files[one.sha256]).replace(b"\n", b"\r\n"))


def _multipart(subtype: str, seed: str, entities: list[_Entity]) -> _Entity:
    boundary = _boundary(subtype, seed, entities)
    cut = f"--{boundary}".encode()
    pieces: list[bytes] = []
    for one in entities:
        pieces += (cut, b"\r\n", one.head, b"\r\n\r\n", one.body, b"\r\n")
    pieces += (cut, b"--\r\n")
    head = f'Content-Type: multipart/{subtype};\r\n boundary="{boundary}"'
    return _Entity(head.encode(), b"".join(pieces))


def _boundary(subtype: str, seed: str, entities: list[_Entity]) -> str:
    """`=_` stands in no base64 and no quoted-printable text; a plain one that holds it gets another."""
    boundary = f"=_{subtype}_{seed}"
    while any(boundary.encode() in one.body for one in entities):
        boundary += "_"
    return boundary
