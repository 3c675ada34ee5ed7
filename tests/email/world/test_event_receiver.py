"""What providers say afterwards: verified, taken once, and what follows from it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from effects import ConfigurationError, Effects
from effects_email import receiver
from effects_email.events import events_about, events_of
from effects_email.providers import signatures
from effects_email.providers.event_parsers import NotAnEvent, read_postmark, read_resend
from effects_email.suppression import Reason, find_suppressions, note_failures, suppressed, suppression_log
from effects_email.tables.ledger import AddressFailure
from effects_email.transport.http_api.fields import reference
from tests.support.basic_auth import PASSWORD, with_password
from tests.support.manual_workers import rows
from tests.support.web_clients import WebClient, asgi_client, gone, lifespan, wsgi_client

SECRET = "whsec_" + base64.b64encode(os.urandom(24)).decode()
ANN = "ann@example.org"
MESSAGE_ID = "m1@shop.example"

Document: TypeAlias = dict[str, Any]


def resend(kind: str, to: Any = (ANN,), **data: Any) -> Document:
    tags = {"effects_message": reference(MESSAGE_ID), "effects_recipients": "1"}
    return {
        "type": f"email.{kind}", "created_at": "2026-11-21T17:06:50.123Z",
        "data": {"email_id": "4ef9a417-02e9-4d39-ad75-9611e0fcc33c", "to": list(to), "tags": tags, **data},
    }  # fmt: skip


def postmark(record: str, kind: str | None = None, **further: Any) -> Document:
    document: Document = {
        "RecordType": record, "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483",
        "Metadata": {"effects-message": reference(MESSAGE_ID)},
    }  # fmt: skip
    if record in ("Bounce", "SpamComplaint"):
        document |= {"ID": 42, "Type": kind or record, "Email": ANN, "BouncedAt": "2026-11-21T13:28:10.2735393-04:00"}
    elif record == "SubscriptionChange":
        document |= {"Recipient": ANN, "ChangedAt": "2026-11-21T13:28:10Z", "SuppressSending": True}
    else:
        document |= {"Recipient": ANN, "DeliveredAt": "2026-11-21T13:28:10Z"}
    return document | further


def signed(body: bytes, event_id: str = "msg_1", *, age: float = 0, secret: str = SECRET) -> dict[str, str]:
    """As the provider signs: by another implementation than ours."""
    moment = datetime.fromtimestamp(int(time.time() - age), UTC)
    token = Webhook(secret).sign(event_id, moment, body.decode())
    return {"svix-id": event_id, "svix-timestamp": str(int(moment.timestamp())), "svix-signature": token}


Tell: TypeAlias = Callable[..., int]


def teller(app: Effects) -> Tell:
    """`tell(document, event_id)`: the status that a verified event is answered with."""
    takes = {
        "resend": receiver.EventReceiver("resend", secrets=SECRET, effects=app),
        "postmark": receiver.EventReceiver("postmark", secrets=PASSWORD, effects=app),
    }

    def tell(document: Document, event_id: str = "msg_1") -> int:
        body = json.dumps(document).encode()
        if "RecordType" in document:
            return takes["postmark"].take(with_password(), body)
        return takes["resend"].take(signed(body, event_id), body)

    return tell


@pytest.fixture
def tell(mail: Effects) -> Tell:
    return teller(mail)


def why(app: Effects, address: str = ANN) -> Reason | None:
    with app.store.read() as connection:
        return suppressed(app, connection, [(address, "news")])[0]


# -- what each event means -------------------------------------------------------------------------------------------

# event → its kind and code, and whether its recipient is suppressed then
_MEANINGS: list[tuple[Document, str, str, Reason | None]] = [
    (resend("sent"), "accepted", "email.sent", None),
    (resend("delivered"), "delivered", "email.delivered", None),
    (resend("delivery_delayed"), "delayed", "email.delivery_delayed", None),
    (resend("bounced"), "bounced_hard", "email.bounced", "hard_bounce"),
    (resend("bounced", bounce={"type": "Permanent", "subType": "General"}), "bounced_hard", "Permanent_General",
     "hard_bounce"),
    (resend("bounced", bounce={"type": "Transient", "subType": "MailboxFull"}), "bounced_soft",
     "Transient_MailboxFull", None),
    (resend("bounced", bounce={"type": "Transient", "subType": "ContentRejected"}), "failed",
     "Transient_ContentRejected", None),
    (resend("bounced", bounce={"type": "Undetermined"}), "bounced_soft", "Undetermined", None),
    (resend("bounced", to=["Ann <ANN@example.org>"]), "bounced_hard", "email.bounced", "hard_bounce"),
    (resend("bounced", to=[ANN, "ben@example.org"]), "bounced_hard", "email.bounced", None),
    (resend("bounced", tags=[{"name": "effects_recipients", "value": "2"}]), "bounced_hard", "email.bounced", None),
    (resend("complained"), "complained", "email.complained", "complaint"),
    (resend("suppressed"), "bounced_hard", "email.suppressed", "hard_bounce"),
    (resend("failed"), "failed", "email.failed", None),
    (postmark("Delivery"), "delivered", "Delivery", None),
    (postmark("Bounce", "HardBounce", Inactive=True), "bounced_hard", "HardBounce", "hard_bounce"),
    (postmark("Bounce", "BadEmailAddress"), "bounced_hard", "BadEmailAddress", "hard_bounce"),
    (postmark("Bounce", "SoftBounce"), "bounced_soft", "SoftBounce", None),
    (postmark("Bounce", "SoftBounce", Inactive=True), "bounced_hard", "SoftBounce", "hard_bounce"),
    (postmark("Bounce", "Transient"), "delayed", "Transient", None),
    (postmark("Bounce", "DnsError"), "delayed", "DnsError", None),
    (postmark("Bounce", "Blocked"), "failed", "Blocked", None),
    (postmark("Bounce", "SpamNotification"), "failed", "SpamNotification", None),
    (postmark("Bounce", "SpamComplaint", Inactive=True), "complained", "SpamComplaint", "complaint"),
    (postmark("Bounce", "Unsubscribe"), "unsubscribed", "Unsubscribe", "manual"),
    (postmark("SpamComplaint"), "complained", "SpamComplaint", "complaint"),
    (postmark("SubscriptionChange", SuppressionReason="ManualSuppression"), "unsubscribed", "ManualSuppression",
     "manual"),
    (postmark("SubscriptionChange", SuppressionReason="HardBounce"), "bounced_hard", "HardBounce", "hard_bounce"),
    (postmark("SubscriptionChange", SuppressionReason="SpamComplaint"), "complained", "SpamComplaint", "complaint"),
]  # fmt: skip


def test_each_event_has_the_meaning_in_the_table(mail: Effects, tell: Tell) -> None:
    """Each about another recipient, in one database."""
    for number, (document, kind, code, reason) in enumerate(_MEANINGS):
        recipient, provider = f"u{number}@example.org", "postmark" if "RecordType" in document else "resend"
        renamed = json.loads(json.dumps(document).replace("ann@", f"u{number}@").replace("ANN@", f"U{number}@"))
        assert tell({**renamed, **({"ID": number} if "ID" in renamed else {})}, f"msg_{number}") == 204
        row = rows(mail, "email_events")[-1]
        assert (row["provider"], row["kind"], row["code"]) == (provider, kind, code), document
        assert row["at"] is not None
        assert why(mail, recipient) == reason, document
        if reason is not None:
            [suppression] = find_suppressions(recipient, effects=mail)
            assert (suppression.source, suppression.actor, suppression.why) == (provider, provider, code)
    assert len(rows(mail, "email_events")) == len(_MEANINGS)


_IGNORED = [
    resend("opened"), resend("clicked"), {"type": "contact.created", "data": {}}, postmark("Open"),
    postmark("Click"), postmark("Bounce", "AutoResponder"), postmark("SubscriptionChange", SuppressSending=False),
]  # fmt: skip


def test_irrelevant_events_are_acknowledged_and_not_stored(mail: Effects, tell: Tell) -> None:
    assert [tell(document) for document in _IGNORED] == [204] * len(_IGNORED)
    assert rows(mail, "email_events") == []


_OTHER_FORMS = [b"", b"no json", b"[]", b"{}", b'{"type":1,"data":{}}', b"1", b"\xff", b"[" * 90_000]


def test_a_verified_body_in_another_form_is_refused(mail: Effects) -> None:
    signs, asks = (receiver.EventReceiver("resend", secrets=SECRET, effects=mail),
                   receiver.EventReceiver("postmark", secrets=PASSWORD, effects=mail))  # fmt: skip
    for body in _OTHER_FORMS:
        assert (signs.take(signed_raw(body), body), asks.take(with_password(), body)) == (400, 400), body[:20]
    assert rows(mail, "email_events") == []


def signed_raw(body: bytes) -> dict[str, str]:
    """Signed under the standard's own header names, whatever the body is."""
    stamp = str(int(time.time()))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    token = base64.b64encode(hmac.digest(key, f"msg_1.{stamp}.".encode() + body, hashlib.sha256)).decode()
    return {"webhook-id": "msg_1", "webhook-timestamp": stamp, "webhook-signature": f"v1,{token}"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(["type", "data", "to", "tags", "bounce", "RecordType", "Type", "Metadata", "Email", "ID"])


@pytest.mark.slow
@given(st.dictionaries(_FIELDS, _JSON), st.sampled_from(["email.bounced", "email.sent"]), _JSON)
def test_unexpected_field_values_break_nothing(document: Document, kind: str, data: Any) -> None:
    for variant in (document, {**document, "type": kind, "data": data}, {**document, "RecordType": "Bounce"}):
        for read in (read_resend, read_postmark):
            try:
                provider_event = read("id", variant)
            except NotAnEvent:
                continue
            assert provider_event is None or provider_event.provider in ("resend", "postmark")


# -- once ------------------------------------------------------------------------------------------------------------


def test_a_repeat_changes_nothing(mail: Effects, tell: Tell) -> None:
    soft = resend("bounced", bounce={"type": "Transient"})
    assert [tell(soft) for _ in range(6)] == [204] * 6
    assert [row["failures"] for row in rows(mail, "email_soft_failures")] == [1]
    assert tell(soft, "msg_2") == 204
    assert [row["failures"] for row in rows(mail, "email_soft_failures")] == [2]
    assert [tell(postmark("SpamComplaint")) for _ in range(3)] == [204] * 3
    assert len(suppression_log(ANN, effects=mail)) == 1
    assert len(rows(mail, "email_events")) == 3


def test_events_of_postmark_without_an_id_are_distinguished(mail: Effects, tell: Tell) -> None:
    for document in (
        postmark("Delivery"), postmark("Delivery"), postmark("Delivery", Recipient="ben@example.org"),
        postmark("Delivery", DeliveredAt="2026-11-21T14:00:00Z"), postmark("Delivery", MessageID="other"),
    ):  # fmt: skip
        assert tell(document) == 204
    assert len(rows(mail, "email_events")) == 4


def test_concurrent_repeats_are_stored_once(mail: Effects, tell: Tell) -> None:
    answers: list[int] = []
    soft = resend("bounced", bounce={"type": "Transient"})
    threads = [threading.Thread(target=lambda: answers.append(tell(soft))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [204] * 6
    assert [row["failures"] for row in rows(mail, "email_soft_failures")] == [1]


def test_soft_bounces_add_up_and_a_delivery_ends_it(mail: Effects, tell: Tell) -> None:
    for day in range(3):
        for number in range(2):
            tell(resend("bounced", bounce={"type": "Transient"}), f"msg_{day}_{number}")
        # the signature's time is this machine's, the days are the database's
        mail.store.shift_clock(86_400)
    assert why(mail) == "soft_repeat"
    tell(resend("delivered"), "msg_delivered")
    assert why(mail) is None


# -- whose it is -----------------------------------------------------------------------------------------------------


def test_events_tell_which_messages_the_provider_has(mail: Effects, tell: Tell) -> None:
    def seen_of(*names: str) -> set[str]:
        with mail.store.read() as connection:
            return set(events_about(mail, connection, names))

    assert seen_of(MESSAGE_ID) == set()
    tell(resend("failed"))
    assert seen_of(MESSAGE_ID) == set()  # it had the message, and did not send it
    tell(resend("sent"), "msg_2")
    tell(postmark("Delivery"))
    assert seen_of(MESSAGE_ID, "m2@shop.example") == {MESSAGE_ID}
    assert seen_of() == set()
    heard = events_of(f"{MESSAGE_ID}", effects=mail)
    assert [(event.provider, event.kind) for event in heard] == [
        ("resend", "failed"), ("resend", "accepted"), ("postmark", "delivered"),
    ]  # fmt: skip
    assert {row["provider_id"] for row in rows(mail, "email_events")} == {
        "4ef9a417-02e9-4d39-ad75-9611e0fcc33c", "883953f4-6105-42a2-a16a-77a8eac79483",
    }  # fmt: skip


def test_an_event_about_a_foreign_message_is_stored(mail: Effects, tell: Tell) -> None:
    tell(resend("bounced", tags=None))
    tell(postmark("Bounce", "HardBounce", Metadata=None, Email="ben@example.org"))
    assert [row["reference"] for row in rows(mail, "email_events")] == [None, None]
    assert (why(mail), why(mail, "ben@example.org")) == ("hard_bounce", "hard_bounce")


def test_an_invalid_address_is_stored_as_none(mail: Effects, tell: Tell) -> None:
    odd: list[Any] = [None, 7, [], "nobody", "a\x00@b.example", "a\n@b.example", "x" * 1000 + "@b.example"]
    for number, value in enumerate(odd):
        assert tell(resend("bounced", to=[value]), f"msg_{number}") == 204
        assert tell(postmark("Bounce", "HardBounce", Email=value, ID=number)) == 204
    assert {row["recipient"] for row in rows(mail, "email_events")} == {None}
    assert rows(mail, "email_suppressions") == []


def test_neither_address_nor_words_of_the_provider_are_stored_or_logged(
    mail: Effects, tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    long = "x" * 65
    tell(resend("bounced", bounce={"type": "Permanent", "subType": f"no {ANN}", "message": f"{ANN} is gone"}))
    tell(postmark("Bounce", long, Description=f"{ANN} is gone", Details=ANN, Subject="Your cancer test"))
    kept = str([rows(mail, name) for name in ("email_events", "email_suppressions", "email_suppression_log")])
    assert "ann@" not in kept + caplog.text
    assert "cancer" not in kept
    assert [row["code"] for row in rows(mail, "email_events")] == [None, None]
    assert all(row["recipient"].startswith("hmac:") for row in rows(mail, "email_events"))


# -- verification ----------------------------------------------------------------------------------------------------

BODY = json.dumps(resend("bounced")).encode()
_UNSIGNED: dict[str, Callable[[], Mapping[str, str]]] = {
    "none": dict,
    "too old": lambda: signed(BODY, age=400),
    "too early": lambda: signed(BODY, age=-400),
    "another secret": lambda: signed(BODY, secret="whsec_" + base64.b64encode(os.urandom(24)).decode()),
    "another body": lambda: signed(b"{}"),
    "another id": lambda: {**signed(BODY), "svix-id": "msg_other"},
    "another time": lambda: {**signed(BODY), "svix-timestamp": str(int(time.time()) + 1)},
    "an empty token": lambda: {**signed(BODY), "svix-signature": "v1,"},
    "digits of another script": lambda: {**signed(BODY), "svix-timestamp": "١٢٣"},
    "no ASCII": lambda: {**signed(BODY), "svix-signature": "v1,é"},
    "a password": with_password,
}


@pytest.fixture(params=["asgi", "wsgi"])
def resend_client(request: pytest.FixtureRequest, mail: Effects) -> Iterator[WebClient]:
    opening = {
        "asgi": lambda: asgi_client(receiver.asgi_app("resend", secrets=[SECRET], effects=mail)),
        "wsgi": lambda: wsgi_client(receiver.wsgi_app("resend", secrets=[SECRET], effects=mail)),
    }
    with opening[request.param]() as web_client:
        yield web_client


def test_a_signed_event_is_accepted(mail: Effects, resend_client: WebClient) -> None:
    for _ in range(2):
        answer = resend_client("POST", "/events", content=BODY, headers=signed(BODY))
        assert (answer.status_code, answer.content) == (204, b"")
    assert why(mail) == "hard_bounce"
    assert len(suppression_log(ANN, effects=mail)) == 1


def test_an_unsigned_event_is_refused(mail: Effects) -> None:
    event_receiver = receiver.EventReceiver("resend", secrets=SECRET, effects=mail)
    for name, headers in _UNSIGNED.items():
        assert event_receiver.take(headers(), BODY) == 401, name
    assert rows(mail, "email_events") == []


def test_the_endpoint_refuses_other_methods_and_long_bodies(mail: Effects, resend_client: WebClient) -> None:
    assert resend_client("GET", "/").status_code == 405
    assert resend_client("POST", "/", content=BODY).status_code == 401
    assert resend_client("POST", "/", content=b"x" * (1024 * 1024 + 1)).status_code == 413
    assert rows(mail, "email_events") == []


def test_both_secrets_are_taken_while_one_is_replaced(mail: Effects) -> None:
    new = "whsec_" + base64.b64encode(os.urandom(32)).decode()
    event_receiver = receiver.EventReceiver("resend", secrets=[new, SECRET], effects=mail)
    assert event_receiver.take(signed(BODY, secret=new), BODY) == 204
    assert event_receiver.take(signed(BODY), BODY) == 204
    two = signed(BODY)["svix-signature"] + " " + signed(BODY, secret=new)["svix-signature"]
    once = receiver.EventReceiver("resend", secrets=new, effects=mail)
    assert once.take({**signed(BODY), "svix-signature": f"v1a,xyz {two}"}, BODY) == 204


_UNKNOWN: dict[str, Mapping[str, str]] = {
    "none": {},
    "wrong": with_password("wrong horse battery staple"),
    "empty": with_password(""),
    "a prefix": with_password(PASSWORD[:-1]),
    "as the user": with_password("", PASSWORD),
    "another scheme": {"authorization": f"Bearer {PASSWORD}"},
    "no base64": {"authorization": f"Basic {PASSWORD}"},
}


def test_a_wrong_password_is_refused(mail: Effects) -> None:
    event_receiver = receiver.EventReceiver("postmark", secrets=["another long password", PASSWORD], effects=mail)
    body = json.dumps(postmark("SpamComplaint")).encode()
    for name, headers in _UNKNOWN.items():
        assert event_receiver.take(headers, body) == 401, name
    assert event_receiver.take(with_password(user="whoever"), body) == 204
    assert len(rows(mail, "email_events")) == 1


def test_postmarks_endpoint_requires_the_password(mail: Effects) -> None:
    with wsgi_client(receiver.wsgi_app("postmark", secrets=PASSWORD, effects=mail)) as web_client:
        refused = web_client("POST", "/", content=b"{}")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="events"')
        body = json.dumps(postmark("SpamComplaint")).encode()
        assert web_client("POST", "/", content=body, auth=("effects", PASSWORD)).status_code == 204
    assert why(mail) == "complaint"


@pytest.mark.parametrize(
    ("provider", "secrets", "says"),
    [
        ("resend", [], "at least one signing secret"),
        ("resend", ["whsec_short"], "base64 of at least 16"),
        ("resend", [SECRET.removeprefix("whsec_")], "whsec_"),
        ("postmark", [], "at least one password"),
        ("postmark", ["short"], "16 characters"),
        ("sendgrid", [], "at least one verification key"),
        ("sendgrid", [SECRET], "base64 of an ECDSA"),
        ("mailgun", [], "at least one HTTP webhook signing key"),
        ("mailgun", ["short"], "at least one HTTP webhook signing key"),
        ("sparkpost", [SECRET], "give one of resend, postmark, sendgrid, mailgun, ses"),
    ],
)
def test_an_invalid_secret_is_refused_at_the_start(provider: Any, secrets: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        receiver.asgi_app(provider, secrets=secrets)
    assert not any(secret in str(refused.value) for secret in secrets if len(secret) > 8)


def test_an_unavailable_database_makes_the_provider_repeat() -> None:
    away = Effects("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2", job_types=[])
    event_receiver = receiver.EventReceiver("resend", secrets=SECRET, effects=away)
    assert event_receiver.take(signed(BODY), BODY) == 503
    away.dispose()


def test_the_apps_run_alone(mail: Effects) -> None:
    app = receiver.asgi_app("resend", secrets=SECRET, effects=mail)
    assert lifespan(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert gone(app) == []


def test_our_normalization_agrees_with_other_implementations() -> None:
    keys = signatures.signing_keys([SECRET])
    assert signatures.signed_id(keys, signed(BODY), BODY) == "msg_1"
    assert signatures.signed_id(keys, signed(BODY), BODY, now=time.time() + 301) is None
    assert signatures.signed_id(keys, signed(BODY), BODY + b" ") is None


def test_failures_of_smtp_and_of_events_add_up_together(mail: Effects, tell: Tell) -> None:
    for number in range(3):
        with mail.store.begin() as connection:
            note_failures(
                mail, connection, [AddressFailure(address=ANN, kind="soft", code="smtp_552_5.2.2")], source="default"
            )
        tell(resend("bounced", bounce={"type": "Transient"}), f"msg_{number}")
        mail.store.shift_clock(86_400)
    assert why(mail) == "soft_repeat"
