"""What comes back, in the shapes of many systems, written after their published formats: the source heads each file.
What people really received is beside it in `received`.

`@TO@` is where the message's bounces go, `@ANN@` its recipient, `@MID@` its Message-ID; `@DSN:…@`, `@WORDS:…@` and
`@ARF@` begin a report, `@STATUS@` its fields, `@RETURNED@` and `@QUOTED@` are the message that comes back. Behind a
name stand the kinds of event that it may be read as and the code of the first, or `left_alone`.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "corpus"
_HEAD = "Return-Path: <>\nFrom: {sender}\nTo: @TO@\nSubject: {subject}\nMessage-ID: <{name}@mx.example>\n"
_IN_HEAD = "X-Failed-Recipients|Auto-Submitted|MIME-Version|Precedence|X-Loop|X-HmXmrOriginalRecipient"
_DATE = "Date: Sun, 01 Dec 2024 12:00:09 +0000\n"
_REPORT = (
    "MIME-Version: 1.0\nContent-Type: multipart/report; report-type={kind}; boundary=\"=_b\"\n\n"
    "--=_b\nContent-Type: text/plain; charset=utf-8\n\n"
)  # fmt: skip
_MACROS = {
    "@STATUS@": "--=_b\nContent-Type: message/delivery-status\n",
    "@RETURNED@": "\n--=_b\nContent-Type: message/rfc822\n\n@QUOTED@\n--=_b--\n",
    "@QUOTED@": "Return-Path: <@TO@>\nReceived: from app.shop.example by mail.shop.example; Sun, 1 Dec 2024\n"
    "From: Shop <hello@shop.example>\nTo: @ANN@\nSubject: Your order\nMessage-ID: <@MID@>\n\nIt is on its way.\n",
}


class Case(NamedTuple):
    """One report. `kinds`: what it may be read as; none if it is to be left alone."""

    name: str
    kinds: frozenset[str]
    code: str
    template: str

    def message(self, *, to: str, address: str, message_id: str) -> bytes:
        """Its bytes, with CRLF at every second one."""
        filled = self.template.replace("@TO@", to).replace("@ANN@", address).replace("@MID@", message_id)
        odd = hashlib.sha256(self.name.encode()).digest()[0] % 2
        return (filled.replace("\n", "\r\n") if odd else filled).encode()


def cases() -> list[Case]:
    return [case for file in sorted(FOLDER.glob("*.txt")) for case in _of(file)]


def systems() -> dict[str, int]:
    return {file.stem: len(_of(file)) for file in FOLDER.glob("*.txt")}


def _of(file: Path) -> list[Case]:
    pieces = re.split(r"^=== ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert pieces[0].startswith("# "), file
    return [_case(file.stem, piece) for piece in pieces[1:]]


def _case(system: str, piece: str) -> Case:
    title, _, body = piece.partition("\n")
    name, _, expected = (part.strip() for part in title.partition("|"))
    kinds, _, code = expected.partition(" ")
    own = f"{system}: {name}"
    return Case(own, frozenset() if kinds == "left_alone" else frozenset(kinds.split(",")), code, _expanded(own, body))


def _expanded(name: str, body: str) -> str:
    own = hashlib.sha256(name.encode()).hexdigest()[:12]

    def head(match: re.Match[str]) -> str:
        start = _HEAD.format(sender=match[2], subject=match[3], name=own) + _DATE
        return start + (_REPORT.format(kind="delivery-status") if match[1] == "DSN" else "")

    body = re.sub(r"^@(DSN|WORDS):(.*)\|(.*)@$", head, body, flags=re.MULTILINE)
    body = re.sub(rf"\n\n({_IN_HEAD}):", r"\n\1:", body, count=1)
    report = _HEAD.format(sender="complaints@example.org", subject="FW: Your order", name=own) + _DATE
    report += _REPORT.format(kind="feedback-report") + "\n--=_b\nContent-Type: message/feedback-report\n"
    body = body.replace("@ARF@", report)
    for macro, text in _MACROS.items():
        body = body.replace(macro, text)
    return body
