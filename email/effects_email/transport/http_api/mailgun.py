"""Mailgun: `POST /v3/DOMAIN/messages.mime`, our own bytes. It knows no idempotency keys, and can be asked.

It keeps our Message-ID, by which its log finds the message; its events carry the variable `effects_message`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from effects_email.transport.base import OutgoingMessage
from effects_email.transport.http_api import fields
from effects_email.transport.http_api.transport import (
    HttpRow,
    HttpTransport,
    ProviderRequest,
    Said,
    TakesAllOrNone,
    opened,
)
from effects_email.transport.url import TransportURL

VARIABLE, COUNT_VARIABLE = "effects_message", "effects_recipients"
_DOMAIN = re.compile(r"[a-z0-9][a-z0-9.-]{2,250}")
_ORIGINS = {"us": "https://api.mailgun.net", "eu": "https://api.eu.mailgun.net"}

ROWS: tuple[HttpRow, ...] = (
    HttpRow("config", "Mailgun does not accept the sender", "400", says=r"'from'|\bfrom parameter"),
    HttpRow("refused_recipient", "Mailgun does not accept a recipient's address", "400",
        says=r"'to'|\bto parameter|not a valid address"),
    HttpRow("config", "the domain is a sandbox or may not send", "400", says=r"sandbox|not allowed to send|activate"),
    HttpRow("config", "Mailgun does not accept this method here", "405"),
)  # fmt: skip


class Mailgun(TakesAllOrNone):
    """The facts of Mailgun's API.

    Args:
        domain: the sending domain of the account.
    """

    scheme: ClassVar[str] = "mailgun"
    origin: str = _ORIGINS["us"]
    token_variable: ClassVar[str] = "MAILGUN_API_KEY"  # noqa: S105 - a name
    key_lifetime_seconds: ClassVar[float | None] = None
    rate_per_second: ClassVar[int | None] = None
    traceable: ClassVar[bool] = True
    blocks: ClassVar[bool] = False
    read_headers: ClassVar[Sequence[str]] = ()
    rows: ClassVar[Sequence[HttpRow]] = ROWS

    def __init__(self, domain: str) -> None:
        self._domain = quote(domain, safe="")

    def request(self, outgoing: OutgoingMessage, token: str, recipients: Sequence[str]) -> ProviderRequest:
        """The envelope's recipients beside the message's bytes; who is in Bcc is in no header of these."""
        form = [("to", recipient) for recipient in recipients]
        form += [
            (f"v:{VARIABLE}", fields.reference(outgoing.message_id)), (f"v:{COUNT_VARIABLE}", str(len(recipients))),
        ]  # fmt: skip
        form += [("o:tag", tag) for tag in outgoing.source.tags]
        form += [(f"v:{name}", value) for name, value in outgoing.source.metadata]
        boundary = hashlib.sha256(outgoing.data).hexdigest()
        headers = {**_credentials(token), "content-type": f"multipart/form-data; boundary={boundary}"}
        return ProviderRequest(
            f"/v3/{self._domain}/messages.mime", headers, {}, body=_multipart(boundary, form, outgoing.data)
        )

    def said(self, document: Mapping[str, Any]) -> Said:
        return Said("", str(document.get("message") or ""))

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        message_id = document.get("id")
        return message_id.strip("<>")[:200] or None if isinstance(message_id, str) else None

    def question(self, outgoing: OutgoingMessage, token: str) -> ProviderRequest | None:
        query = urlencode({"message-id": outgoing.message_id, "limit": 1})
        return ProviderRequest(f"/v3/{self._domain}/events?{query}", _credentials(token), {})

    def known(self, document: Mapping[str, Any]) -> bool | None:
        items = document.get("items")
        return bool(items) if isinstance(items, list) else None


def open_url(url: TransportURL) -> HttpTransport:
    """For `open_transport`: `mailgun://API_KEY@?domain=mg.shop.example`, or `mailgun:?domain=…` with MAILGUN_API_KEY.

    `&region=eu` is the EU's: `api.eu.mailgun.net`.
    """
    domain = url.option("domain", "") or ""
    if not _DOMAIN.fullmatch(domain):
        url.refuse("names no sending domain: add ?domain=mg.shop.example")
    region = url.option("region", "us", among=tuple(_ORIGINS)) or "us"
    transport = opened(url, Mailgun(domain), origin=_ORIGINS[region])
    url.end("token_env", "origin", "domain", "region")
    return transport


def _credentials(token: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'api:{token}'.encode()).decode()}"}


def _multipart(boundary: str, form: Sequence[tuple[str, str]], message: bytes) -> bytes:
    """RFC 7578. The boundary is a hash of the message, which cannot hold it."""
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in form
    ]
    head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="message"; filename="message.eml"\r\n'
        "content-type: message/rfc822\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), message, f"\r\n--{boundary}--\r\n".encode()])
