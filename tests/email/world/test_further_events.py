"""Events of SendGrid and Mailgun: verified by signatures that others make, each kept once, and what follows from it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import secrets
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import pytest
import sqlalchemy
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from effects import Effects, StoreUnavailable
from effects_email import receiver
from effects_email.events import events_of
from effects_email.message.address import address_digest
from effects_email.suppression import find_suppressions
from effects_email.transport.http_api.fields import reference
from tests.support.manual_workers import rows

ANN, BEN = "ann@example.org", "ben@example.org"
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
    stamp, token = str(int(time.time() - age)), secrets.token_hex(25)
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


def test_a_token_of_mailgun_is_good_for_one_body(mail: Effects) -> None:
    """It signs no event: whoever sees a request, of an event that is kept or of another, could make up more."""
    for seen in (mailgun("delivered"), mailgun("opened"), mailgun("failed", severity="permanent", reason="bounce")):
        assert tell_mailgun(mail, seen) == 204
        forged = [
            {**seen, "event-data": {**seen["event-data"], "event": "complained", "id": f"f{number}", "recipient": BEN}}
            for number in range(10)
        ]
        assert {tell_mailgun(mail, document) for document in [*forged, {**seen, "more": 1}]} == {401}
        moved = {**seen["signature"], "timestamp": seen["signature"]["timestamp"] + seen["signature"]["token"][:1],
                 "token": seen["signature"]["token"][1:]}  # fmt: skip
        assert tell_mailgun(mail, {**forged[0], "signature": moved}) == 401
        assert tell_mailgun(mail, seen) == 204  # Mailgun repeats what it had no answer to
    assert find_suppressions(BEN, effects=mail) == []


def test_a_token_whose_events_could_not_be_kept_is_good_again(mail: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = mailgun("complained")
    with monkeypatch.context() as context:
        context.setattr(mail.store, "begin", _unavailable)
        assert tell_mailgun(mail, seen) == 503
    assert tell_mailgun(mail, seen) == 204
    assert [held.reason for held in find_suppressions(ANN, effects=mail)] == ["complaint"]


def _unavailable() -> NoReturn:
    raise StoreUnavailable("away")


NAMES = ("delivered", "bounce", "blocked", "blocked", "spamreport", "unsubscribe", "deferred")


def _stream(seed: int, count: int, people: int, place: str) -> Iterator[Document]:
    choose = random.Random(seed)
    for number in range(count):
        name, person = choose.choice(NAMES), choose.randrange(people)
        kind = {"type": "blocked"} if name == "blocked" else {}
        yield sendgrid("bounce" if kind else name, f"{place}{number}", email=f"p{person}@{place}.example", **kind)


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_does_what_its_events_do_one_by_one(mail: Effects, seed: int) -> None:
    assert tell_sendgrid(mail, *_stream(seed, 60, 6, "batch")) == 204
    assert {tell_sendgrid(mail, document) for document in _stream(seed, 60, 6, "single")} == {204}
    outcomes = []
    for place in ("batch", "single"):
        digests = [address_digest(mail, f"p{person}@{place}.example") for person in range(6)]
        outcomes.append((
            [sorted(row["failures"] for row in rows(mail, "email_soft_failures", "digest = :d", d=d)) for d in digests],
            [sorted((row["reason"], row["why"]) for row in rows(mail, "email_suppressions", "digest = :d", d=d))
             for d in digests],
        ))  # fmt: skip
    assert outcomes[0] == outcomes[1]


def test_a_request_of_many_events_is_one_transaction_of_few_statements(mail: Effects) -> None:
    counts = []
    for size in (10, 1000):
        seen: list[str] = []
        note = partial(_note, seen)
        sqlalchemy.event.listen(mail.engine, "before_cursor_execute", note)
        assert tell_sendgrid(mail, *_stream(size, size, size, f"of{size}")) == 204
        sqlalchemy.event.remove(mail.engine, "before_cursor_execute", note)
        counts.append(len(seen))
    assert counts[1] <= counts[0] + 8
    assert len(rows(mail, "email_events")) == 1010


def _note(seen: list[str], _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    seen.append(statement)
