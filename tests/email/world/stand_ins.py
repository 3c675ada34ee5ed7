"""Providers on loopback: what their documents say, as far as a sender can tell."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from datetime import UTC, datetime
from email import policy
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

from effects_email.message.mime import build
from effects_email.message.source import Address, MessageSource
from effects_email.transport.base import OutgoingMessage
from tests.peers.http import Answer, Receiver, Request, Script

ANN, BEN, CAT = "ann@example.org", "ben@example.org", "cat@example.org"
TOKEN = "re_Secret1"
ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"  # of the published vectors
REGION = "eu-west-1"


class Postbox:
    """A provider: what it took stands in `messages`, each once.

    `faults` are met first, one a request: a status or an answer instead of the provider's own. With `lose` as many
    answers get lost after the message was taken.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.faults: list[Answer | int] = []
        self.lose = 0

    def serve(self, request: Request) -> Answer:
        if self.faults:
            fault = self.faults.pop(0)
            return Answer(fault) if isinstance(fault, int) else fault
        answer = self.take(request) if request.method == "POST" else self.find(request)
        if request.method == "POST" and self.lose:
            self.lose -= 1
            return Answer(reset=True)
        return answer

    def take(self, request: Request) -> Answer:
        raise NotImplementedError

    def find(self, request: Request) -> Answer:
        return Answer(404)


class ResendBox(Postbox):
    """Remembers keys: the same one again is the first answer again, with another content it is a conflict."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, tuple[bytes, Answer]] = {}

    def take(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return answer(401, name="missing_api_key", message="no")
        key = request.headers["idempotency-key"]
        if key in self.keys:
            body, first = self.keys[key]
            return first if body == request.body else answer(409, name="invalid_idempotent_request", message="other")
        self.messages.append(json.loads(request.body))
        self.keys[key] = (request.body, answer(200, id=str(uuid.uuid4())))
        return self.keys[key][1]


class PostmarkBox(Postbox):
    """Knows inactive addresses, and can be searched by metadata."""

    def __init__(self) -> None:
        super().__init__()
        self.inactive: set[str] = set()

    def take(self, request: Request) -> Answer:
        if request.headers.get("x-postmark-server-token") != TOKEN:
            return answer(401, ErrorCode=10, Message="no")
        message = json.loads(request.body)
        people = " ".join(message.get(name, "") for name in ("To", "Cc", "Bcc"))
        out = sorted(address for address in self.inactive if address in people)
        if out and people.count("@") == len(out):
            return answer(422, ErrorCode=406, Message=f"Found inactive addresses: {', '.join(out)}. They bounced.")
        self.messages.append(message)
        said = f"Message OK, but will not deliver to these inactive addresses: {', '.join(out)}." if out else "OK"
        return answer(200, ErrorCode=0, Message=said, MessageID=str(uuid.uuid4()))

    def find(self, request: Request) -> Answer:
        query = parse_qs(urlsplit(request.path).query)
        assert (query["count"], query["offset"]) == (["1"], ["0"])
        [searched] = query["metadata_effects-message"]
        matches = [message for message in self.messages if message["Metadata"]["effects-message"] == searched]
        return answer(200, TotalCount=len(matches), Messages=[])


class SendGridBox(Postbox):
    """Answers 202 without a body; its id is a header."""

    def take(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return answer(401, errors=[{"message": "The provided authorization grant is invalid", "field": None}])
        self.messages.append(json.loads(request.body))
        return Answer(202, b"", {"x-message-id": uuid.uuid4().hex[:22]})


class MailgunBox(Postbox):
    """Takes MIME in a form, and is searched by Message-ID."""

    def take(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Basic {base64.b64encode(f'api:{TOKEN}'.encode()).decode()}":
            return Answer(401, b"Forbidden")
        assert request.path == "/v3/mg.example.com/messages.mime"
        head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
        form = BytesParser(policy=policy.HTTP).parsebytes(head + request.body)
        message: dict[str, Any] = {"to": [], "o:tag": []}
        for part in form.iter_parts():
            name = part.get_param("name", header="content-disposition")
            if name == "message":
                message["data"] = request.body.partition(b"message/rfc822\r\n\r\n")[2].rpartition(b"\r\n--")[0]
            elif name in ("to", "o:tag"):
                message[name].append(part.get_content().strip())
            else:
                message[str(name)] = part.get_content().strip()
        message["id"] = str(BytesParser().parsebytes(message["data"])["Message-ID"]).strip("<>")
        self.messages.append(message)
        return answer(200, id=f"<{message['id']}>", message="Queued. Thank you.")

    def find(self, request: Request) -> Answer:
        split = urlsplit(request.path)
        assert split.path == "/v3/mg.example.com/events"
        [searched] = parse_qs(split.query)["message-id"]
        items = [{"event": "accepted"} for message in self.messages if message["id"] == searched]
        return answer(200, items=items, paging={})


def is_signed(request: Request, region: str = REGION) -> bool:
    """By the published algorithm, written once more."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    fields = dict(part.strip().split("=", 1) for part in text.split(",")) if scheme == "AWS4-HMAC-SHA256" else {}
    if not fields:
        return False
    moment = request.headers["x-amz-date"]
    scope = f"{moment[:8]}/{region}/ses/aws4_request"
    names = fields["SignedHeaders"].split(";")
    lines = "".join(f"{name}:{request.headers[name].strip()}\n" for name in names)
    payload = hashlib.sha256(request.body).hexdigest()
    canonical = f"{request.method}\n{request.path}\n\n{lines}\n{fields['SignedHeaders']}\n{payload}"
    to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
    return fields["Credential"] == f"{ACCESS}/{scope}" and hmac.compare_digest(signature, fields["Signature"])


class SesBox(Postbox):
    """Verifies each request, and takes raw messages."""

    def take(self, request: Request) -> Answer:
        if not is_signed(request):
            return answer(403, {"x-amzn-errortype": "InvalidSignatureException"}, message="no")
        assert request.path == "/v2/email/outbound-emails"
        self.messages.append(json.loads(request.body))
        return answer(200, MessageId=f"0102{uuid.uuid4().hex}-000000")


def ses_url(port: int, secret: str = "wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYEXAMPLEKEY", more: str = "") -> str:
    return f"ses://{ACCESS}:{secret}@?region={REGION}&origin=http://127.0.0.1:{port}{more}"


BOXES: dict[str, type[Postbox]] = {
    "resend": ResendBox, "postmark": PostmarkBox, "sendgrid": SendGridBox, "mailgun": MailgunBox,
    "ses": SesBox,
}  # fmt: skip
_OPTIONS = {"mailgun": "&domain=mg.example.com"}


def url_of(scheme: str, port: int) -> str:
    """Of the provider's transport, to a stand-in at this port."""
    if scheme == "ses":
        return ses_url(port)
    return f"{scheme}://{TOKEN}@?origin=http://127.0.0.1:{port}{_OPTIONS.get(scheme, '')}"


def answer(status: int, headers: dict[str, str] | None = None, **document: Any) -> Answer:
    return Answer(status, json.dumps(document).encode(), headers or {})


def receiver(script: Script) -> Receiver:
    return Receiver(script)


def outgoing_message(
    *recipients: str,
    message_id: str = "1@example.com",
    key: str = "signup:1",
    files: dict[str, bytes] | None = None,
    **parts: Any,
) -> OutgoingMessage:
    """A message to these (default: Ann), its bytes built as the package builds them."""
    to = recipients or (ANN,)
    fields: dict[str, Any] = {
        "sender": Address("shop", "example.com", "The Shop"),
        "to": tuple(Address(*recipient.rsplit("@", 1)) for recipient in to),
        "subject": "Hello",
        "text": "Hello, you.",
        "headers": (("X-Shop", "books"),),
        **parts,
    }
    source = MessageSource(message_id=message_id, date=datetime(2026, 11, 21, tzinfo=UTC), **fields)
    return OutgoingMessage(
        sender="bounces@example.com", recipients=to, data=build(source, files or {}), source=source,
        message_id=message_id, key=key,
    )  # fmt: skip
