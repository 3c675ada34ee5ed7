"""Header fields as bytes-to-be: encoded, folded, and with nothing in them that could begin another field.

RFC 5322 (form, folding at 76 characters), RFC 2047 (encoded words, UTF-8 and base64), RFC 2231 (file names), RFC 6532
(a local part beyond ASCII goes as UTF-8; the transport must offer SMTPUTF8).
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from effects.extend import described
from effects_email.errors import EmailInvalid
from effects_email.message.source import Address

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
# Fields with a syntax of their own: encoded words have no place in them.
_PLAIN = {"in-reply-to", "references", "feedback-id", "list-unsubscribe", "list-unsubscribe-post"}


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
