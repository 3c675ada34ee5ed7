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

A header field holds nothing that could begin another one: RFC 5322 (form, folding at 76 characters), RFC 2047 (encoded
words, UTF-8 and base64), RFC 2231 (file names), RFC 6532 (a local part beyond ASCII goes as UTF-8; the transport must
offer SMTPUTF8).
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import encodebytes
from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from email.utils import format_datetime
from urllib.parse import quote

import msgspec

from effects.extend.text import described
from effects_email.errors import EmailInvalid
from effects_email.message.attachments import is_invitation
from effects_email.message.source import Address, Attachment, MessageSource

LINE_CHARS = 76
LINE_CHARS_MAX = 990  # RFC 5322 allows 998
VALUE_CHARS_MAX = 4000
_WORD_BYTES = 45  # of text in one encoded word, which has 75 characters at most
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_WORDS = re.compile(r"[ \t]*[^ \t]+")  # each with the blanks before it, which may be many
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,75}")
# What a caller may set beside `X-…`. The rest is ours, or says how the body is encoded, or is written by servers.
_OWN = {
    "in-reply-to", "references", "importance", "priority", "precedence", "feedback-id", "organization", "keywords",
    "comments", "list-unsubscribe", "list-unsubscribe-post", "list-id", "list-help", "list-owner", "list-archive",
    "list-post", "list-subscribe", "sensitivity", "expires",
}  # fmt: skip
# Fields with their own syntax: encoded words have no place in them.
_PLAIN = {"in-reply-to", "references", "feedback-id", "list-unsubscribe", "list-unsubscribe-post"}
FOR_ALL = ("Auto-Submitted", "auto-generated")  # RFC 3834: no answer from holidays, please
LINE_BYTES_MAX = 990
_HIGH = bytes(range(128, 256))
_UNSAFE = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_FROM = re.compile(rb"^From (.*)", re.MULTILINE)  # begins a message in a mbox: relays and stores put a > before it
_QUOTED_FROM = rb"=46rom=\n \1"  # with a soft break, so that no line grows past 76 characters


def check_header(name: str, value: str) -> tuple[str, str]:
    """A header of the caller's own.

    Raises:
        EmailInvalid: the name is not one that a caller may set, or the value has line breaks or control characters.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise EmailInvalid("headers: a name has letters, digits and -, such as X-Campaign")
    lower = name.lower()
    if not lower.startswith("x-") and lower not in _OWN:
        raise EmailInvalid(
            f"headers: {name} is not for the caller to set; names that begin with X- are, and {', '.join(sorted(_OWN))}"
        )
    if not isinstance(value, str):
        raise EmailInvalid(f"headers: the value of {name} is {described(value)}; give a text")
    if _FORBIDDEN.search(value):
        raise EmailInvalid(f"headers: the value of {name} holds a line break or a control character")
    value = value.strip(" \t")
    if not value or len(value) > VALUE_CHARS_MAX:
        raise EmailInvalid(f"headers: the value of {name} has {len(value)} characters; give 1 to {VALUE_CHARS_MAX}")
    if lower in _PLAIN and (not value.isascii() or max(map(len, value.split())) > LINE_CHARS_MAX - len(name)):
        raise EmailInvalid(
            f"headers: the value of {name} must be ASCII, no word longer than {LINE_CHARS_MAX} characters"
        )
    return name, " ".join(value.split()) if lower in _PLAIN else value


def text_field(name: str, value: str) -> str:
    """`Subject: …` and what else is free text. `value` has no control characters."""
    start = len(name) + 2
    plain = value.isascii() and "=?" not in value
    if plain and start + len(value) <= LINE_CHARS:
        return f"{name}: {value}"
    words = _WORDS.findall(value)
    if name.lower() in _PLAIN or (plain and max(map(len, words)) <= LINE_CHARS_MAX - start):
        return f"{name}: {_fold(words, start)}"
    return f"{name}: {_fold(_encoded_words(value, start), start)}"


def address_field(name: str, addresses: Sequence[Address]) -> str:
    """`To: …`. What is not in an `Address` cannot come in."""
    tokens: list[str] = []
    start = len(name) + 2
    for number, address in enumerate(addresses, 1):
        comma = "," if number < len(addresses) else ""
        tokens += _phrase(address.name, start)
        tokens.append(f"<{address.spec}>{comma}" if address.name else f"{address.spec}{comma}")
    return f"{name}: {_fold(tokens, start)}"


def file_name(value: str) -> str:
    """The parameter of Content-Disposition that names a file."""
    if value.isascii():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'filename="{escaped}"'
    return f"filename*=utf-8''{quote(value, safe='')}"


def _phrase(name: str, start: int) -> list[str]:
    """A display name: as it is, quoted, or in encoded words."""
    if not name:
        return []
    if not name.isascii() or "=?" in name:
        return _encoded_words(name, start)
    if _ATOMS.fullmatch(name):
        return name.split(" ")
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return [f'"{escaped}"']


def _encoded_words(text: str, start: int) -> list[str]:
    """RFC 2047, cut between characters; the first word leaves room for the field's name."""
    words: list[str] = []
    room = min(_WORD_BYTES, max(9, (LINE_CHARS - start - 12) // 4 * 3))
    piece = bytearray()
    for outgoing in text:
        encoded = outgoing.encode()
        if len(piece) + len(encoded) > room:
            words.append(_encoded_word(piece))
            piece, room = bytearray(), _WORD_BYTES
        piece += encoded
    words.append(_encoded_word(piece))
    return words


def _encoded_word(piece: bytes | bytearray) -> str:
    return f"=?utf-8?b?{b2a_base64(piece, newline=False).decode()}?="


def _fold(tokens: Iterable[str], start: int) -> str:
    """The tokens with their blanks or one space between them; a line break goes before what would not fit its line."""
    out: list[str] = []
    column = start
    for token in tokens:
        text = token if not out or token[0] in " \t" else f" {token}"
        if out and column + len(text) > LINE_CHARS:
            out.append("\r\n")
            column = 0
        out.append(text)
        column += len(text)
    return "".join(out)


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
