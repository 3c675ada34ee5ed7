"""Postmark (postmarkapp.com): `POST /email`. It knows no idempotency keys, and can be asked.

The message carries the metadata `effects-message`, by which Postmark's search finds it and its events are recognised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from effects_email.mailbox import normal_form
from effects_email.parts import Address
from effects_email.transport import fields
from effects_email.transport.base import Letter, Reply, Verdict
from effects_email.transport.http import HttpTransport, Request, opened
from effects_email.transport.http_table import Row, Said
from effects_email.transport.url import TransportURL

METADATA = "effects-message"
INACTIVE = "406"
_INACTIVE_REASON = "Postmark has the address as inactive: it bounced, complained or was suppressed there"
_ADDRESS = re.compile(r"[^\s,;:<>()\[\]\"']+@[^\s,;:<>()\[\]\"']+")

ROWS: tuple[Row, ...] = (
    Row("config", "Postmark does not accept the server token", codes="10"),
    Row("retry", "Postmark is under maintenance", codes="100", after_seconds=300.0),
    Row("config", "Postmark does not accept the sender's address", codes="300", says=r"'from'"),
    Row("refused_recipient", "Postmark does not accept a recipient's address", codes="300",
        says=r"'(to|cc|bcc)'|illegal email address"),
    Row("config", "the sender's signature is not known to Postmark, or not confirmed", codes="400 401"),
    Row("refused_message", "Postmark cannot read the request", codes="402 403 409"),
    Row("config", "the account has no credits left, or may not send", codes="405 412 413"),
    Row("refused_recipient", _INACTIVE_REASON, codes=INACTIVE, suppress="hard"),
    Row("refused_message", "Postmark does not take files of this type", codes="411"),
    Row("config", "the message stream is not there, or not for this", codes="1221 1226 1235"),
)  # fmt: skip


class Postmark:
    """The facts of Postmark's API.

    Args:
        stream: the message stream. Default that of transactional mail, `outbound`.
    """

    scheme: ClassVar[str] = "postmark"
    origin: ClassVar[str] = "https://api.postmarkapp.com"
    token_variable: ClassVar[str] = "POSTMARK_SERVER_TOKEN"  # noqa: S105 - a name
    key_lifetime_seconds: ClassVar[float | None] = None
    rate_per_second: ClassVar[int | None] = None
    rows: ClassVar[Sequence[Row]] = ROWS

    def __init__(self, stream: str = "outbound") -> None:
        self._stream = stream

    def request(self, letter: Letter, token: str, wanted: Sequence[str]) -> Request:
        message = fields.parsed(letter)
        people = fields.groups(letter, wanted)
        # The id that the recipient sees stays ours; without the second header Postmark makes its own.
        further = {
            **fields.headers(message), "Message-ID": f"<{letter.message_id}>", "X-PM-KeepID": "true",
        }  # fmt: skip
        document: dict[str, Any] = {
            "From": fields.quoted(letter.parts.sender),
            "To": _people(people.to),
            "Subject": letter.parts.subject,
            "TextBody": letter.parts.text,
            "MessageStream": self._stream,
            "Headers": [{"Name": name, "Value": value} for name, value in further.items()],
            "Metadata": {METADATA: fields.reference(letter.message_id)},
        }
        optional = {
            "HtmlBody": letter.parts.html,
            "Cc": _people(people.cc),
            "Bcc": _people(people.bcc),
            "ReplyTo": _people(letter.parts.reply_to),
            "Attachments": [_file(one) for one in fields.files(letter, message)],
        }
        document.update({name: value for name, value in optional.items() if value})
        return Request("/email", _credentials(token), document)

    def said(self, document: Mapping[str, Any]) -> Said:
        code = document.get("ErrorCode")
        return Said(str(code) if isinstance(code, int) and code else "", str(document.get("Message") or ""))

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        found = document.get("MessageID")
        return found[:100] if isinstance(found, str) and found else None

    def refused(self, document: Mapping[str, Any], wanted: Sequence[str]) -> Mapping[str, Verdict]:
        """Those whom the answer calls inactive: beside a success, they are left out of it."""
        said = self.said(document)
        if "inactive" not in said.message.lower() or said.code not in ("", INACTIVE):
            return {}
        named = {normal_form(one.rstrip(".")) for one in _ADDRESS.findall(said.message)}
        verdict = Verdict(
            kind="refused_recipient",
            code=f"postmark_{INACTIVE}",
            reason=_INACTIVE_REASON,
            reply=Reply(stage="request"),
            suppress="hard",
        )
        return {one: verdict for one in wanted if normal_form(one) in named}

    def question(self, letter: Letter, token: str) -> Request | None:
        query = {"count": 1, "offset": 0, f"metadata_{METADATA}": fields.reference(letter.message_id)}
        return Request(f"/messages/outbound?{urlencode(query)}", _credentials(token), {})

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


def _people(some: Sequence[Address]) -> str:
    return ", ".join(fields.quoted(one) for one in some)


def _file(file: fields.File) -> dict[str, str]:
    made = {"Name": file.attachment.filename, "Content": file.content, "ContentType": file.attachment.content_type}
    return made if file.attachment.content_id is None else {**made, "ContentID": f"cid:{file.attachment.content_id}"}
