"""A report's MIME parts as text, and the form of everything that comes back, whoever wrote it.

Whatever came, reading parts raises nothing: what cannot be decoded is left out.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from datetime import datetime
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header
from email.message import Message as MimePart
from email.policy import Compat32
from typing import Literal, TypeAlias

import msgspec

BYTES_MAX = 1024 * 1024  # read of a report; what it returns of the message comes last
PARTS_MAX = 50
MULTIPARTS_MAX = 20  # the parser looks for the end of each in every line
_HEADER_CHARS_MAX = 8000
_PARAMETERS_CHARS_MAX = 1000  # of a Content-… header, whose parameters the parser reads in the square of their length
_CHARS_MAX = 256 * 1024  # of one part
_ADDRESS = re.compile(r"[^\s<>()\[\],;:\"'@]{1,64}@[A-Za-z0-9_.\u0080-\uffff-]{1,255}")
_REPEATED = ("original-rcpt-to", "removal-recipient")  # RFC 5965: once for each recipient
_MAIL_ADDRESS = re.compile(r"rfc[/ -]?822|utf-8|unknown|smtp", re.IGNORECASE)
# Encodings of Python's that no mail has, and that take their time: a mebibyte of punycode is a minute's work.
_NO_CHARSETS = ("idna", "punycode", "unicode-escape", "raw-unicode-escape")
_COMMENT = re.compile(r"\([^()]*\)")
Form: TypeAlias = Literal["dsn", "arf", "fbl"]  # `fbl`: a complaint in another form than ARF
# As RFC 3464 names them, and what a recipient says of the message by a complaint.
Action: TypeAlias = Literal["failed", "delayed", "delivered", "relayed", "expanded", "complained", "unsubscribed"]


class _Bounded(Compat32):
    """Cuts each header as the parser comes to it, so that it takes time in proportion to the message."""

    multiparts: list[str]

    def __init__(self) -> None:
        super().__init__()
        vars(self)["multiparts"] = []  # a policy refuses attributes of its own

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        if not name.lower().startswith("content-"):
            return name, value[:_HEADER_CHARS_MAX]
        if "multipart" in value.lower():
            self.multiparts.append(name)
            if len(self.multiparts) > MULTIPARTS_MAX:
                raise ValueError("more multiparts than a report has")
        return name, value[:_PARAMETERS_CHARS_MAX]


def parse(data: bytes) -> MimePart:
    """The message; its tree may be nonsense. Raises RecursionError where it is nested a thousand deep, ValueError where
    it has more multiparts than are read.
    """
    lines = data[:BYTES_MAX].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return message_from_bytes(lines, policy=_Bounded())


def walk(message: MimePart) -> Iterator[MimePart]:
    """The parts in their order, 50 at most. Those of the message that is returned are not among them."""
    waiting = [message]
    for _ in range(PARTS_MAX):
        if not waiting:
            return
        part = waiting.pop()
        yield part
        inner = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(inner, list):
            waiting += [child for child in reversed(inner) if isinstance(child, MimePart)]


def header(part: MimePart, name: str) -> str:
    """The first header of this name, in one line; empty without one."""
    value = part.get(name)
    return " ".join(str(value)[:_HEADER_CHARS_MAX].split()) if value is not None else ""


def subject(part: MimePart) -> str:
    """Its subject, decoded."""
    try:
        pieces = decode_header(header(part, "Subject"))
        return "".join(
            _decoded(piece, charset or "latin-1") if isinstance(piece, bytes) else piece for piece, charset in pieces
        )
    except (MessageError, ValueError):
        return header(part, "Subject")


def text(part: MimePart) -> str:
    """A part that holds no others, decoded."""
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return ""
    return _decoded(payload, part.get_content_charset() or "utf-8")[:_CHARS_MAX].replace("\r\n", "\n")


def _decoded(data: bytes, charset: str) -> str:
    """Without halves of surrogate pairs, which some encodings give and no database takes."""
    try:
        is_for_mail = codecs.lookup(charset).name.replace("_", "-") not in _NO_CHARSETS
        decoded = data.decode(charset, "replace") if is_for_mail else data.decode("latin-1")
    except (LookupError, ValueError):
        decoded = data.decode("latin-1")
    return decoded.encode("utf-8", "replace").decode()


def fields(part: MimePart) -> list[dict[str, str]]:
    """The groups of fields of a delivery status or a feedback report: names in lower case, one line a value.

    Also where the part is not labelled as such, or in base64, as servers write it that the standard does not foresee.
    """
    payload = part.get_payload()
    if isinstance(payload, list):
        groups = [block for block in payload if isinstance(block, MimePart)]
        source = "\n\n".join("\n".join(f"{name}: {value}" for name, value in block.items()) for block in groups)
        source += "\n\n" + "\n\n".join(text(block) for block in groups)
    else:
        source = text(part)
    return [group for block in re.split(r"\n[ \t]*\n", source) if (group := _group(block))]


def _group(block: str) -> dict[str, str]:
    group: dict[str, str] = {}
    for line in re.sub(r"\n[ \t]+", " ", block).split("\n"):
        name, colon, value = line.partition(":")
        if colon and re.fullmatch(r"[A-Za-z0-9-]{1,76}", name.strip()):
            field = name.strip().lower()
            if field in group and field in _REPEATED:
                group[field] += f", {value.strip()}"
            group.setdefault(field, value.strip())
    return group


def address(value: str) -> str | None:
    """The address in `rfc822; ann@example.com`, `<ann@example.com> (expanded from …)` and the like."""
    kind, semicolon, rest = value.partition(";")
    if not semicolon:
        rest = kind
    elif _MAIL_ADDRESS.fullmatch(kind.strip()) is None:
        return None
    return first_address(_COMMENT.sub(" ", rest) if "@" in _COMMENT.sub(" ", rest) else rest)


def first_address(value: str) -> str | None:
    """The first address in a text."""
    match = _ADDRESS.search(value)
    return match[0].rstrip(".") if match is not None else None


def addresses(value: str) -> list[str]:
    """Every address in a text, 100 at most."""
    return [match.rstrip(".") for match in _ADDRESS.findall(value)[:100]]


class RecipientReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the message for one recipient.

    `addresses`: of the recipient, the one that the sender used first; none if the report names none. `status`: an
    enhanced code such as 5.1.1. `diagnostic`: the last server's words, one line, which may be personal.
    """

    action: Action
    addresses: tuple[str, ...] = ()
    status: str | None = None
    diagnostic: str = ""

    def __repr__(self) -> str:
        return f"RecipientReport({self.action!r}, status={self.status!r})"


class ReturnedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One report that came back.

    `text`: where a token may stand: headers that name where it came to, and what it quotes of the message.
    `message_ids`: of the message that it speaks of, the likeliest first. `identity`: the same for the same report.
    """

    form: Form
    recipients: tuple[RecipientReport, ...]
    text: str
    message_ids: tuple[str, ...]
    identity: str
    at: datetime | None = None  # by its own Date

    def __repr__(self) -> str:
        return f"ReturnedReport({self.form!r}, {self.recipients!r})"
