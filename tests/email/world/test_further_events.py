"""Events of SendGrid and Mailgun: verified by signatures that others make, each kept once, and what follows from it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from effects import Effects
from effects_email import receiver
from effects_email.events import events_of
from effects_email.suppressions.suppression import find_suppressions
from effects_email.transport.http_api.fields import reference

ANN = "ann@example.org"
MESSAGE_ID = "m1@shop.example"
PRIVATE, STRANGER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
SIGNING_KEY = "key-0123456789abcdef"
Document = dict[str, Any]


def public(key: ec.EllipticCurvePrivateKey) -> str:
    """As SendGrid's page of the webhook shows it."""
    form, encoding = serialization.PublicFormat.SubjectPublicKeyInfo, serialization.Encoding.DER
    return base64.b64encode(key.public_key().public_bytes(encoding, form)).decode()


def sendgrid_headers(body: bytes, *, key: ec.EllipticCurvePrivateKey = PRIVATE, age: float = 0) -> dict[str, str]:
    stamp = str(int(time.time() - age))
    signature = key.sign(stamp.encode() + body, ec.ECDSA(hashes.SHA256()))
    prefix = "x-twilio-email-event-webhook"
    return {f"{prefix}-timestamp": stamp, f"{prefix}-signature": base64.b64encode(signature).decode()}


def sendgrid(name: str, event_id: str = "e1", **further: Any) -> Document:
    return {
        "email": ANN, "timestamp": 1_795_000_000, "event": name, "sg_event_id": event_id,
        "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        "effects_message": reference(MESSAGE_ID), **further,
    }  # fmt: skip


def mailgun(name: str, *, age: float = 0, key: str = SIGNING_KEY, event_id: str = "Ase7i2zsRYeDXztHGENqRA",
            **further: Any) -> Document:  # fmt: skip
    stamp, token = str(int(time.time() - age)), "c" * 50
    signature = hmac.new(key.encode(), f"{stamp}{token}".encode(), hashlib.sha256).hexdigest()
    event = {
        "event": name, "id": event_id, "timestamp": 1_795_000_000.25, "recipient": ANN,
        "message": {"headers": {"message-id": MESSAGE_ID}}, "user-variables": {}, **further,
    }  # fmt: skip
    return {"signature": {"timestamp": stamp, "token": token, "signature": signature}, "event-data": event}


def tell_sendgrid(app: Effects, *events: Document, **signing: Any) -> int:
    body = json.dumps(list(events)).encode()
    taker = receiver.EventReceiver("sendgrid", secrets=[public(STRANGER), public(PRIVATE)], effects=app)
    return taker.take(sendgrid_headers(body, **signing), body)


def tell_mailgun(app: Effects, document: Document) -> int:
    taker = receiver.EventReceiver("mailgun", secrets=SIGNING_KEY, effects=app)
    return taker.take({}, json.dumps(document).encode())


# Event → its kind and code, and the cause of a suppression.
SENDGRID: list[tuple[Document, str, str, str | None]] = [
    (sendgrid("processed"), "accepted", "processed", None),
    (sendgrid("delivered"), "delivered", "delivered", None),
    (sendgrid("deferred"), "delayed", "deferred", None),
    (sendgrid("bounce", type="bounce"), "bounced_hard", "bounce", "hard_bounce"),
    (sendgrid("bounce", type="blocked"), "bounced_soft", "blocked", None),
    (sendgrid("dropped", reason="Bounced Address"), "bounced_hard", "dropped_bounced", "hard_bounce"),
    (sendgrid("dropped", reason="Spam Reporting Address"), "complained", "dropped_spam", "complaint"),
    (sendgrid("dropped", reason="Unsubscribed Address"), "unsubscribed", "dropped_unsubscribed", "manual"),
    (sendgrid("dropped", reason=None), "failed", "dropped", None),
    (sendgrid("spamreport"), "complained", "spamreport", "complaint"),
    (sendgrid("unsubscribe"), "unsubscribed", "unsubscribe", "manual"),
]
MAILGUN: list[tuple[Document, str, str, str | None]] = [
    (mailgun("accepted"), "accepted", "accepted", None),
    (mailgun("delivered"), "delivered", "delivered", None),
    (mailgun("failed", severity="temporary", reason="generic"), "delayed", "temporary_generic", None),
    (mailgun("failed", severity="permanent", reason="bounce"), "bounced_hard", "permanent_bounce", "hard_bounce"),
    (mailgun("failed", severity="permanent", reason="suppress-bounce"), "bounced_hard", "permanent_suppress-bounce",
     "hard_bounce"),
    (mailgun("failed", severity="permanent", reason="suppress-complaint"), "complained",
     "permanent_suppress-complaint", "complaint"),
    (mailgun("failed", severity="permanent", reason="old"), "bounced_soft", "permanent_old", None),
    (mailgun("rejected"), "failed", "rejected", None),
    (mailgun("complained"), "complained", "complained", "complaint"),
    (mailgun("unsubscribed"), "unsubscribed", "unsubscribed", "manual"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "kind", "code", "cause"), [*SENDGRID, *MAILGUN], ids=lambda value: str(value)[:9])
def test_each_event_has_its_kind(mail: Effects, document: Document, kind: str, code: str, cause: str | None) -> None:
    tell = tell_mailgun if "event-data" in document else tell_sendgrid
    assert [tell(mail, document) for _ in range(3)] == [204] * 3  # kept once
    [event] = events_of(MESSAGE_ID, effects=mail)
    assert (event.kind, event.code, int(event.at.timestamp()) if event.at else None) == (kind, code, 1_795_000_000)
    assert [held.reason for held in find_suppressions(ANN, effects=mail)] == ([cause] if cause else [])


def test_a_request_of_sendgrid_holds_many_events(mail: Effects) -> None:
    events = [sendgrid("processed", "e1"), sendgrid("open", "e2"), sendgrid("delivered", "e3"), sendgrid("click", "e4")]
    assert tell_sendgrid(mail, *events) == 204
    assert sorted(event.kind for event in events_of(MESSAGE_ID, effects=mail)) == ["accepted", "delivered"]
    assert tell_sendgrid(mail) == 204


def test_an_event_without_an_id_that_is_usual_keeps_no_other_away(mail: Effects) -> None:
    """SendGrid's ids have up to 100 characters, and some events have none."""
    without = {name: value for name, value in sendgrid("delivered").items() if name != "sg_event_id"}
    events = [
        sendgrid("processed", "e" * 100),
        without,
        {**without, "email": "ben@example.org"},
        sendgrid("spamreport"),
    ]
    assert [tell_sendgrid(mail, *events) for _ in range(2)] == [204, 204]
    kinds = sorted(event.kind for event in events_of(MESSAGE_ID, effects=mail))
    assert kinds == ["accepted", "complained", "delivered", "delivered"]


def test_what_others_signed_or_long_ago_is_refused(mail: Effects) -> None:
    unknown_key = ec.generate_private_key(ec.SECP256R1())
    assert tell_sendgrid(mail, sendgrid("delivered"), key=unknown_key) == 401
    assert tell_sendgrid(mail, sendgrid("delivered"), age=2 * 86_400) == 401
    assert tell_sendgrid(mail, sendgrid("delivered"), age=-600) == 401
    assert tell_mailgun(mail, mailgun("delivered", key="key-of-somebody-else")) == 401
    assert tell_mailgun(mail, mailgun("delivered", age=2 * 86_400)) == 401
    assert tell_mailgun(mail, {"event-data": {}}) == 401
    body = json.dumps([sendgrid("delivered")]).encode()
    headers = sendgrid_headers(body)
    taker = receiver.EventReceiver("sendgrid", secrets=public(PRIVATE), effects=mail)
    assert taker.take(headers, body.replace(b"ann@", b"ben@")) == 401
    for name in headers:
        for value in ("", "x", "٣", "AAAA"):
            assert taker.take({**headers, name: value}, body) == 401
    assert taker.take({}, body) == 401
    assert events_of(MESSAGE_ID, effects=mail) == []


@pytest.mark.parametrize("events", [[1], [{"event": 1, "sg_event_id": "e"}], [[]]])
def test_another_form_is_400(mail: Effects, events: list[Any]) -> None:
    assert tell_sendgrid(mail, *events) == 400


@pytest.mark.parametrize("event", [None, [], {"event": "bounced"}, {"event": 1, "id": "x"}])
def test_another_form_of_mailgun_is_400(mail: Effects, event: Any) -> None:
    assert tell_mailgun(mail, {**mailgun("delivered"), "event-data": event}) == 400
