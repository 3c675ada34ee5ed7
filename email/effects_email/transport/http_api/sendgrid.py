"""SendGrid (Twilio): `POST /v3/mail/send`. It knows no idempotency keys, and cannot be asked.

The message carries the custom argument `effects_message`, by which its events are recognised.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from effects_email.message.attachments import is_invitation
from effects_email.message.source import Address
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

_METHOD = re.compile("method=[A-Z]+")
ARGUMENT, COUNT_ARGUMENT = "effects_message", "effects_recipients"
ID_HEADER = "x-message-id"

ROWS: tuple[HttpRow, ...] = (
    HttpRow("config", "SendGrid does not accept the sender", "400 403", says=r"\bfrom\b"),
    HttpRow("refused_recipient", "SendGrid does not accept a recipient's address", "400",
        says=r"personalizations\.\d+\.(to|cc|bcc)"),
    HttpRow("config", "SendGrid does not accept this method or form here", "405 406 415"),
)  # fmt: skip


class SendGrid(TakesAllOrNone, CannotBeAsked):
    """The facts of SendGrid's API. Its search is an addition that is paid for."""

    scheme: ClassVar[str] = "sendgrid"
    origin: str = "https://api.sendgrid.com"
    token_variable: ClassVar[str] = "SENDGRID_API_KEY"  # noqa: S105 - a name
    key_lifetime_seconds: ClassVar[float | None] = None
    rate_per_second: ClassVar[int | None] = None
    traceable: ClassVar[bool] = False
    blocks: ClassVar[bool] = False
    read_headers: ClassVar[Sequence[str]] = (ID_HEADER,)
    rows: ClassVar[Sequence[HttpRow]] = ROWS

    def request(self, outgoing: OutgoingMessage, token: str, recipients: Sequence[str]) -> ProviderRequest:
        source, people = outgoing.source, fields.shown_groups(outgoing, recipients)
        to = {"to": _people(people.to), "cc": _people(people.cc), "bcc": _people(people.bcc)}
        attached = fields.files(outgoing)
        texts = [("text/plain", source.text), ("text/html", source.html), *map(_calendar, filter(_invites, attached))]
        document: dict[str, Any] = {
            "personalizations": [{name: addresses for name, addresses in to.items() if addresses}],
            "from": _person(source.sender),
            "subject": source.subject,
            "content": [{"type": kind, "value": text} for kind, text in texts if text],
            "headers": fields.headers(outgoing),
            "custom_args": {
                ARGUMENT: fields.reference(outgoing.message_id), COUNT_ARGUMENT: str(len(recipients)),
                **dict(source.metadata),
            },
        }  # fmt: skip
        optional = {
            "reply_to_list": _people(source.reply_to),
            "categories": list(source.tags),
            "attachments": [_file(file) for file in attached],
        }
        document.update({name: value for name, value in optional.items() if value})
        return ProviderRequest("/v3/mail/send", {"authorization": f"Bearer {token}"}, document)

    def said(self, document: Mapping[str, Any]) -> Said:
        """Of its errors, which have no codes: the first one's field and message."""
        errors = document.get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], Mapping) else {}
        words = [str(first[name]) for name in ("field", "message") if first.get(name)]
        return Said("", ": ".join(words))

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        message_id = document.get(ID_HEADER)
        return message_id[:100] if isinstance(message_id, str) and message_id else None


def open_url(url: TransportURL) -> HttpTransport:
    """For `open_transport`: `sendgrid://API_KEY@`, or `sendgrid:` with SENDGRID_API_KEY.

    `?region=eu` is the EU's: `api.eu.sendgrid.com`.
    """
    region = url.option("region", "global", among=("global", "eu"))
    transport = opened(url, SendGrid(), origin="https://api.eu.sendgrid.com" if region == "eu" else None)
    url.end("token_env", "origin", "region")
    return transport


def _people(addresses: Sequence[Address]) -> list[dict[str, str]]:
    return [_person(address) for address in addresses]


def _person(address: Address) -> dict[str, str]:
    return {"email": address.spec, "name": address.name} if address.name else {"email": address.spec}


def _invites(file: fields.AttachedFile) -> bool:
    return is_invitation(file.attachment)


def _calendar(file: fields.AttachedFile) -> tuple[str, str]:
    """An invitation as a part of the body, where a mail program looks for the buttons to accept it."""
    method = next(
        filter(_METHOD.fullmatch, file.attachment.content_type.split("; ")), ""
    )  # it takes no other parameter
    kind = f"text/calendar; {method}" if method else "text/calendar"
    return kind, base64.b64decode(file.content).decode()


def _file(file: fields.AttachedFile) -> dict[str, str]:
    attachment = file.attachment
    kind = "application/ics" if _invites(file) else attachment.content_type  # as `message.mime` attaches it
    document = {"content": file.content, "filename": attachment.filename, "type": kind}
    if attachment.content_id is None:
        return {**document, "disposition": "attachment"}
    return {**document, "disposition": "inline", "content_id": attachment.content_id}
