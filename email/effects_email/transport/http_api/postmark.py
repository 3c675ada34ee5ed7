"""Postmark (postmarkapp.com): `POST /email`. It knows no idempotency keys, and can be asked.

The message carries the metadata `effects-message`, by which Postmark's search finds it and its events are recognised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from effects_email.message.address import normal_form
from effects_email.message.source import Address, labels
from effects_email.transport.base import OutgoingMessage, Reply, Verdict
from effects_email.transport.http_api import fields
from effects_email.transport.http_api.transport import HttpRow, HttpTransport, ProviderRequest, Said, opened
from effects_email.transport.url import TransportURL

METADATA = "effects-message"
INACTIVE = "406"
_INACTIVE_REASON = "Postmark has the address as inactive: it bounced, complained or was suppressed there"
_ADDRESS = re.compile(r"[^\s,;:<>()\[\]\"']{1,64}@[^\s,;:<>()\[\]\"']{1,255}")

ROWS: tuple[HttpRow, ...] = (
    HttpRow("config", "Postmark does not accept the server token", codes="10"),
    HttpRow("retry", "Postmark is under maintenance", codes="100", after_seconds=300.0),
    HttpRow("config", "Postmark does not accept the sender's address", codes="300", says=r"'from'"),
    HttpRow("refused_recipient", "Postmark does not accept a recipient's address", codes="300",
        says=r"'(to|cc|bcc)'|illegal email address"),
    HttpRow("config", "the sender's signature is not known to Postmark, or not confirmed", codes="400 401"),
    HttpRow("refused_message", "Postmark cannot read the request", codes="402 403 409"),
    HttpRow("config", "the account has no credits left, or may not send", codes="405 412 413"),
    HttpRow("refused_recipient", _INACTIVE_REASON, codes=INACTIVE, suppress="hard"),
    HttpRow("refused_message", "Postmark does not take files of this type", codes="411"),
    HttpRow("config", "the message stream is not there, or not for this", codes="1221 1226 1235"),
)  # fmt: skip


class Postmark:
    """The facts of Postmark's API.

    Args:
        stream: the message stream. Default that of transactional mail, `outbound`.
    """

    scheme: ClassVar[str] = "postmark"
    origin: str = "https://api.postmarkapp.com"
    token_variable: ClassVar[str] = "POSTMARK_SERVER_TOKEN"  # noqa: S105 - a name
    key_lifetime_seconds: ClassVar[float | None] = None
    rate_per_second: ClassVar[int | None] = None
    traceable: ClassVar[bool] = True
    blocks: ClassVar[bool] = False
    read_headers: ClassVar[Sequence[str]] = ()
    rows: ClassVar[Sequence[HttpRow]] = ROWS

    def __init__(self, stream: str = "outbound") -> None:
        self._stream = stream

    def request(self, outgoing: OutgoingMessage, token: str, recipients: Sequence[str]) -> ProviderRequest:
        people = fields.shown_groups(outgoing, recipients)
        further_labels = labels(outgoing.source)
        tag = further_labels.pop("tag", None)
        # The id that the recipient sees stays ours; without the second header Postmark makes its own.
        further = {
            **fields.headers(outgoing), "Message-ID": f"<{outgoing.message_id}>", "X-PM-KeepID": "true",
        }  # fmt: skip
        document: dict[str, Any] = {
            "From": fields.quoted(outgoing.source.sender),
            "To": _people(people.to),
            "Subject": outgoing.source.subject,
            "TextBody": outgoing.source.text,
            "MessageStream": self._stream,
            "Headers": [{"Name": name, "Value": value} for name, value in further.items()],
            "Metadata": {METADATA: fields.reference(outgoing.message_id), **further_labels},
        }
        optional = {
            "Tag": tag,
            "HtmlBody": outgoing.source.html,
            "Cc": _people(people.cc),
            "Bcc": _people(people.bcc),
            "ReplyTo": _people(outgoing.source.reply_to),
            "Attachments": [_file(file) for file in fields.files(outgoing)],
        }
        document.update({name: value for name, value in optional.items() if value})
        return ProviderRequest("/email", _credentials(token), document)

    def said(self, document: Mapping[str, Any]) -> Said:
        code = document.get("ErrorCode")
        return Said(str(code) if isinstance(code, int) and code else "", str(document.get("Message") or ""))

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        message_id = document.get("MessageID")
        return message_id[:100] if isinstance(message_id, str) and message_id else None

    def refused(self, document: Mapping[str, Any], recipients: Sequence[str]) -> Mapping[str, Verdict]:
        """Those whom the answer calls inactive: beside a success, they are left out of it."""
        said = self.said(document)
        if "inactive" not in said.message.lower() or said.code not in ("", INACTIVE):
            return {}
        named = {normal_form(address.rstrip(".")) for address in _ADDRESS.findall(said.message)}
        verdict = Verdict(
            kind="refused_recipient",
            code=f"postmark_{INACTIVE}",
            reason=_INACTIVE_REASON,
            reply=Reply(stage="request"),
            suppress="hard",
        )
        return {recipient: verdict for recipient in recipients if normal_form(recipient) in named}

    def question(self, outgoing: OutgoingMessage, token: str) -> ProviderRequest | None:
        query = {"count": 1, "offset": 0, f"metadata_{METADATA}": fields.reference(outgoing.message_id)}
        return ProviderRequest(f"/messages/outbound?{urlencode(query)}", _credentials(token), {})

    def known(self, document: Mapping[str, Any]) -> bool | None:
        count = document.get("TotalCount")
        return count > 0 if isinstance(count, int) else None


def open_url(url: TransportURL) -> HttpTransport:
    """For `open_transport`: `postmark://SERVER_TOKEN@?stream=outbound`, or `postmark:` with POSTMARK_SERVER_TOKEN."""
    transport = opened(url, Postmark(url.option("stream", "outbound") or "outbound"))
    url.end("token_env", "origin", "stream")
    return transport


def _credentials(token: str) -> dict[str, str]:
    return {"x-postmark-server-token": token}


def _people(addresses: Sequence[Address]) -> str:
    return ", ".join(fields.quoted(address) for address in addresses)


def _file(file: fields.AttachedFile) -> dict[str, str]:
    document = {"Name": file.attachment.filename, "Content": file.content, "ContentType": file.attachment.content_type}
    return (
        document
        if file.attachment.content_id is None
        else {**document, "ContentID": f"cid:{file.attachment.content_id}"}
    )
