"""Resend (resend.com): `POST /emails`, with idempotency keys.

A key holds for 24 hours; a repeat within them is answered as the first request was and sends nothing. The message gets
a tag `effects_message`, by which its events are recognised (`effects_email.intake`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from effects_email.parts import Address
from effects_email.transport import fields
from effects_email.transport.base import Letter, Verdict
from effects_email.transport.http import HttpTransport, Request, opened
from effects_email.transport.http_table import Row, Said
from effects_email.transport.url import TransportURL

_WORD = re.compile(r"[A-Za-z0-9_.-]{1,100}")
TAG, COUNT_TAG = "effects_message", "effects_recipients"

ROWS: tuple[Row, ...] = (
    Row("retry", "an earlier try with this key is under way", "409", "concurrent_idempotent_requests",
        after_seconds=15.0),
    # It proves that an earlier request reached Resend; to send with a fresh key could send twice.
    Row("unknown", "this key came before with another content", "409", "invalid_idempotent_request",
        after_seconds=3600.0),
    Row("config", "Resend does not send for this domain or account", "403", "validation_error invalid_permission"),
    Row("config", "Resend does not accept the sender", codes="invalid_from_address"),
    Row("config", "Resend does not accept the sender", "400 422", "validation_error", says=r"`from`"),
    Row("refused_recipient", "Resend does not accept a recipient's address", "400 422",
        "validation_error invalid_parameter", says=r"`(to|cc|bcc)`"),
    Row("throttle", "the day's quota is used up", "429", "daily_quota_exceeded", after_seconds=3600.0),
    Row("throttle", "the month's quota is used up", "429", "monthly_quota_exceeded", after_seconds=6 * 3600.0),
    Row("config", "Resend does not accept this method here", "405"),
)  # fmt: skip


class Resend:
    """The facts of Resend's API."""

    scheme: ClassVar[str] = "resend"
    origin: ClassVar[str] = "https://api.resend.com"
    token_variable: ClassVar[str] = "RESEND_API_KEY"  # noqa: S105 - a name
    key_lifetime_seconds: ClassVar[float | None] = 24 * 3600.0
    rate_per_second: ClassVar[int | None] = 2
    rows: ClassVar[Sequence[Row]] = ROWS

    def request(self, letter: Letter, token: str, wanted: Sequence[str]) -> Request:
        message = fields.parsed(letter)
        people = fields.groups(letter, wanted)
        document: dict[str, Any] = {
            "from": fields.unquoted(letter.parts.sender),
            "to": _people(people.to),
            "subject": letter.parts.subject,
            "text": letter.parts.text,
            "headers": fields.headers(message),
            "tags": [
                {"name": TAG, "value": fields.reference(letter.message_id)},
                {"name": COUNT_TAG, "value": str(len(wanted))},
            ],
        }
        optional = {
            "html": letter.parts.html,
            "cc": _people(people.cc),
            "bcc": _people(people.bcc),
            "reply_to": _people(letter.parts.reply_to),
            "attachments": [_file(one) for one in fields.files(letter, message)],
        }
        document.update({name: value for name, value in optional.items() if value})
        key = hashlib.sha256(f"{letter.message_id}\0{letter.key}".encode()).hexdigest()
        return Request("/emails", {"authorization": f"Bearer {token}", "idempotency-key": key}, document)

    def said(self, document: Mapping[str, Any]) -> Said:
        return Said(_word(document.get("name")), str(document.get("message") or ""))

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        return _word(document.get("id")) or None

    def refused(self, document: Mapping[str, Any], wanted: Sequence[str]) -> Mapping[str, Verdict]:
        """Resend takes a message for all of its recipients or for none."""
        return {}

    def question(self, letter: Letter, token: str) -> Request | None:
        """Resend cannot be searched by tag; the key makes the question needless."""
        return None

    def known(self, document: Mapping[str, Any]) -> bool | None:
        return None


def open_url(url: TransportURL) -> HttpTransport:
    """For `open_transport`: `resend://API_KEY@`, or `resend:` with RESEND_API_KEY."""
    transport = opened(url, Resend())
    url.end("token_env", "origin")
    return transport


def _people(some: Sequence[Address]) -> list[str]:
    return [fields.unquoted(one) for one in some]


def _file(file: fields.File) -> dict[str, str]:
    made = {
        "filename": file.attachment.filename,
        "content": file.content,
        "content_type": file.attachment.content_type,
    }
    return made if file.attachment.content_id is None else {**made, "content_id": file.attachment.content_id}


def _word(value: object) -> str:
    """A code or an id, if it looks like one."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""
