"""Resend (resend.com): `POST /emails`, with idempotency keys.

A key holds for 24 hours; a repeat within them is answered as the first request was and sends nothing. The message gets
a tag `effects_message`, by which its events are recognised (`effects_email.receiver`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from effects_email.message.source import Address, labels
from effects_email.transport.base import OutgoingMessage
from effects_email.transport.http_api import fields
from effects_email.transport.http_api.transport import (
    CannotBeAsked,
    HttpRow,
    HttpTransport,
    ProviderRequest,
    Said,
    TakesAllOrNone,
    opened,
)
from effects_email.transport.url import TransportURL

_WORD = re.compile(r"[A-Za-z0-9_.-]{1,100}")
TAG, COUNT_TAG = "effects_message", "effects_recipients"

ROWS: tuple[HttpRow, ...] = (
    HttpRow("retry", "an earlier try with this key is under way", "409", "concurrent_idempotent_requests",
        after_seconds=15.0),
    # It proves that an earlier request reached Resend; to send with a fresh key could send twice.
    HttpRow("unknown", "this key came before with another content", "409", "invalid_idempotent_request",
        after_seconds=3600.0),
    HttpRow("config", "Resend does not send for this domain or account", "403", "validation_error invalid_permission"),
    HttpRow("config", "Resend does not accept the sender", codes="invalid_from_address"),
    HttpRow("config", "Resend does not accept the sender", "400 422", "validation_error", says=r"`from`"),
    HttpRow("refused_recipient", "Resend does not accept a recipient's address", "400 422",
        "validation_error invalid_parameter", says=r"`(to|cc|bcc)`"),
    HttpRow("throttle", "the day's quota is used up", "429", "daily_quota_exceeded", after_seconds=3600.0),
    HttpRow("throttle", "the month's quota is used up", "429", "monthly_quota_exceeded", after_seconds=6 * 3600.0),
    HttpRow("config", "Resend does not accept this method here", "405"),
)  # fmt: skip


class Resend(TakesAllOrNone, CannotBeAsked):
    """The facts of Resend's API. Its key makes the question needless."""

    scheme: ClassVar[str] = "resend"
    origin: str = "https://api.resend.com"
    token_variable: ClassVar[str] = "RESEND_API_KEY"  # noqa: S105 - a name
    key_lifetime_seconds: ClassVar[float | None] = 24 * 3600.0
    rate_per_second: ClassVar[int | None] = 2
    traceable: ClassVar[bool] = True
    blocks: ClassVar[bool] = False
    read_headers: ClassVar[Sequence[str]] = ()
    rows: ClassVar[Sequence[HttpRow]] = ROWS

    def request(self, outgoing: OutgoingMessage, token: str, recipients: Sequence[str]) -> ProviderRequest:
        people = fields.shown_groups(outgoing, recipients)
        document: dict[str, Any] = {
            "from": fields.unquoted(outgoing.source.sender),
            "to": _people(people.to),
            "subject": outgoing.source.subject,
            "text": outgoing.source.text,
            "headers": fields.headers(outgoing),
            "tags": [
                {"name": TAG, "value": fields.reference(outgoing.message_id)},
                {"name": COUNT_TAG, "value": str(len(recipients))},
                *({"name": name, "value": value} for name, value in labels(outgoing.source).items()),
            ],
        }
        optional = {
            "html": outgoing.source.html,
            "cc": _people(people.cc),
            "bcc": _people(people.bcc),
            "reply_to": _people(outgoing.source.reply_to),
            "attachments": [_file(file) for file in fields.files(outgoing)],
        }
        document.update({name: value for name, value in optional.items() if value})
        key = hashlib.sha256(f"{outgoing.message_id}\0{outgoing.key}".encode()).hexdigest()
        return ProviderRequest("/emails", {"authorization": f"Bearer {token}", "idempotency-key": key}, document)

    def said(self, document: Mapping[str, Any]) -> Said:
        return Said(_word(document.get("name")), str(document.get("message") or ""))

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        return _word(document.get("id")) or None


def open_url(url: TransportURL) -> HttpTransport:
    """For `open_transport`: `resend://API_KEY@`, or `resend:` with RESEND_API_KEY."""
    transport = opened(url, Resend())
    url.end("token_env", "origin")
    return transport


def _people(addresses: Sequence[Address]) -> list[str]:
    return [fields.unquoted(address) for address in addresses]


def _file(file: fields.AttachedFile) -> dict[str, str]:
    document = {
        "filename": file.attachment.filename,
        "content": file.content,
        "content_type": file.attachment.content_type,
    }
    return document if file.attachment.content_id is None else {**document, "content_id": file.attachment.content_id}


def _word(value: object) -> str:
    """A code or an id, if it looks like one."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""
