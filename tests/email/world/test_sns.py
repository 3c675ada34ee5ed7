"""Events of Amazon SES by SNS: signatures by a test authority, and what must not be fetched or believed."""

from __future__ import annotations

import base64
import json
import socket
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from effects import ConfigurationError, Effects
from effects_email import receiver
from effects_email.events import events_of
from effects_email.providers import ses
from effects_email.providers.ses import fetch_over_https
from effects_email.suppression import find_suppressions
from effects_email.transport.http_api.fields import reference

ANN, BEN = "ann@example.org", "ben@example.org"
MESSAGE_ID = "m1@shop.example"
HOST = "https://sns.eu-west-1.amazonaws.com"
CERTIFICATE = f"{HOST}/SimpleNotificationService-{'0af1' * 8}.pem"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:mail-events"
ISSUED = trustme.CA(key_type=trustme.KeyType.RSA).issue_cert("sns.amazonaws.com", key_type=trustme.KeyType.RSA)
NOW = datetime.now(UTC)
STRANGER = rsa.generate_private_key(65537, 2048)
Document = dict[str, Any]


class Sns:
    """What SNS publishes: certificates at their addresses, and confirmations that it was asked for."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.answers: dict[str, bytes] = {CERTIFICATE: ISSUED.cert_chain_pems[0].bytes()}
        self.confirms = True

    def fetch(self, url: str) -> bytes | None:
        self.fetched.append(url)
        if "Action=ConfirmSubscription" in url:
            return b"<ok/>" if self.confirms else None
        return self.answers.get(url)


@pytest.fixture
def sns() -> Sns:
    return Sns()


def sign(document: Document, key: Any = None) -> Document:
    """By the layout that AWS publishes: names and values on lines of their own, in byte order of the names."""
    key = key or load_pem_private_key(ISSUED.private_key_pem.bytes(), None)
    names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    if document["Type"] != "Notification":
        names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    data = "".join(f"{name}\n{document[name]}\n" for name in names if name in document).encode()
    algorithm = hashes.SHA1() if document["SignatureVersion"] == "1" else hashes.SHA256()
    return {**document, "Signature": base64.b64encode(key.sign(data, padding.PKCS1v15(), algorithm)).decode()}


def stamp(age: timedelta = timedelta()) -> str:
    """As SNS writes a time."""
    return f"{NOW - age:%Y-%m-%dT%H:%M:%S}.123Z"


def notification(event: Document, *, version: str = "2", number: int = 1, **further: Any) -> Document:
    return {
        "Type": "Notification", "MessageId": f"22b80b92-fdea-4c2c-8f9d-{number:012}", "TopicArn": TOPIC,
        "Message": json.dumps(event), "Timestamp": stamp(), "SignatureVersion": version,
        "SigningCertURL": CERTIFICATE, "UnsubscribeURL": f"{HOST}/?Action=Unsubscribe", **further,
    }  # fmt: skip


def event(name: str, *, word: str = "eventType", **about: Any) -> Document:
    mail = {"messageId": "0102018-abc-000000", "timestamp": "2026-11-21T11:59:00.000Z",
            "tags": {"effects_message": [reference(MESSAGE_ID)]}}  # fmt: skip
    return {word: name, "mail": mail, **about}


def bounce(kind: str, *people: str, subtype: str = "General") -> Document:
    about = {"bounceType": kind, "bounceSubType": subtype, "timestamp": "2026-11-21T12:00:00.000Z"}
    return event("Bounce", bounce={**about, "bouncedRecipients": [{"emailAddress": person} for person in people]})


def complaint(*people: str) -> Document:
    return event("Complaint", complaint={"complainedRecipients": [{"emailAddress": person} for person in people]})


def tell(app: Effects, sns: Sns, document: Document) -> int:
    taker = receiver.EventReceiver("ses", secrets=TOPIC, effects=app, fetch=sns.fetch)
    return taker.take({}, json.dumps(document).encode())


# The event → kinds, and who is suppressed.
TABLE: list[tuple[Document, list[str], list[str]]] = [
    (event("Send"), ["accepted"], []),
    (event("Delivery", delivery={"recipients": [ANN], "timestamp": "2026-11-21T12:00:00.000Z"}), ["delivered"], []),
    (event("Delivery", word="notificationType", delivery={"recipients": [ANN]}), ["delivered"], []),
    (event("DeliveryDelay", deliveryDelay={"delayedRecipients": [{"emailAddress": ANN}]}), ["delayed"], []),
    (bounce("Permanent", ANN, BEN), ["bounced_hard", "bounced_hard"], [ANN, BEN]),
    (bounce("Transient", ANN), ["bounced_soft"], []),
    (bounce("Transient", ANN, subtype="MessageTooLarge"), ["failed"], []),
    (complaint(ANN), ["complained"], [ANN]),
    (complaint(ANN, BEN), ["complained"], []),
    (event("Reject", reject={"reason": "Bad content"}), ["failed"], []),
    (event("Rendering Failure"), ["failed"], []),
    (event("Open"), [], []),
]


@pytest.mark.parametrize(("document", "kinds", "held"), TABLE, ids=[f"{n}" for n in range(len(TABLE))])
@pytest.mark.parametrize("version", ["1", "2"])
def test_each_event_has_its_kind(
    mail: Effects, sns: Sns, version: str, document: Document, kinds: list[str], held: list[str]
) -> None:
    signed = sign(notification(document, version=version, Subject="Amazon SES"))
    assert [tell(mail, sns, signed) for _ in range(3)] == [204] * 3  # kept once
    assert [kept.kind for kept in events_of(MESSAGE_ID, effects=mail)] == kinds
    assert [address for address in (ANN, BEN) if find_suppressions(address, effects=mail)] == held


def test_a_certificate_is_fetched_once(mail: Effects, sns: Sns) -> None:
    taker = receiver.EventReceiver("ses", secrets=[TOPIC], effects=mail, fetch=sns.fetch)
    for number in range(5):
        body = json.dumps(sign(notification(event("Send"), number=number))).encode()
        assert taker.take({}, body) == 204
    assert sns.fetched == [CERTIFICATE]


@pytest.mark.parametrize(
    "url",
    [
        CERTIFICATE.replace("https:", "http:"),
        CERTIFICATE.replace("sns.eu-west-1.amazonaws.com", "sns.eu-west-1.amazonaws.com.evil.example"),
        CERTIFICATE.replace("sns.eu-west-1.amazonaws.com", "evil.example"),
        CERTIFICATE.replace("sns.eu-west-1.amazonaws.com", "sns.eu-west-1.amazonaws.com:8443"),
        CERTIFICATE.replace("sns.eu-west-1.amazonaws.com", "u@sns.eu-west-1.amazonaws.com"),
        CERTIFICATE.replace("sns.eu-west-1.amazonaws.com", "evil.example#.sns.eu-west-1.amazonaws.com"),
        CERTIFICATE.replace("eu-west-1", "us-east-1"),  # not the topic's region
        CERTIFICATE.replace("/Simple", "/bucket/Simple"),
        CERTIFICATE.replace("Simple", "../Simple"),
        CERTIFICATE + "?x=1",
        CERTIFICATE + "\n",
        CERTIFICATE.upper(),
        "https://s3.amazonaws.com/mine/SimpleNotificationService-" + "0af1" * 8 + ".pem",
        "",
    ],
)
def test_no_other_address_is_fetched(mail: Effects, sns: Sns, url: str) -> None:
    sns.answers[url] = sns.answers[CERTIFICATE]
    assert tell(mail, sns, sign(notification(event("Send"), SigningCertURL=url))) == 401
    assert (sns.fetched, events_of(MESSAGE_ID, effects=mail)) == ([], [])


def test_what_sns_did_not_sign_is_refused(mail: Effects, sns: Sns) -> None:
    signed = sign(notification(event("Send"), Subject="Hello"))
    assert tell(mail, sns, sign(notification(event("Send")), STRANGER)) == 401
    for name in ("Message", "MessageId", "Timestamp", "Subject", "Signature"):
        assert tell(mail, sns, {**signed, name: "QQ=="}) == 401, name
        assert tell(mail, sns, {**signed, name: 7}) == 401, name
    assert tell(mail, sns, {**signed, "SignatureVersion": "1"}) == 401
    assert tell(mail, sns, {**signed, "SignatureVersion": "3"}) == 401
    assert tell(mail, sns, {}) == 401
    for topic in (TOPIC.replace("mail-events", "theirs"), TOPIC.replace("123456789012", "210987654321")):
        assert tell(mail, sns, sign(notification(event("Send"), TopicArn=topic))) == 401
    for content in (b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        sns.answers[CERTIFICATE] = content
        assert tell(mail, sns, signed) == 503  # SNS repeats it; after a 401 it would give the event up
    del sns.answers[CERTIFICATE]
    assert tell(mail, sns, signed) == 503
    assert events_of(MESSAGE_ID, effects=mail) == []


@pytest.mark.parametrize(("age", "status"), [
    (timedelta(hours=-1), 401), (timedelta(minutes=-4), 204), (timedelta(hours=35), 204), (timedelta(hours=37), 401),
])  # fmt: skip
def test_a_request_is_taken_for_36_hours(mail: Effects, sns: Sns, age: timedelta, status: int) -> None:
    assert tell(mail, sns, sign(notification(event("Send"), Timestamp=stamp(age)))) == status
    assert sns.fetched == ([CERTIFICATE] if status == 204 else [])  # what is old makes us ask for nothing


def _moved(signed: Document, name: str, *fields: str) -> Document:
    """The same signed lines, read as another message: a field takes the fields after it into its value."""
    lines = "".join(f"\n{field}\n{signed[field]}" for field in fields)
    return {**{key: value for key, value in signed.items() if key not in fields}, name: signed[name] + lines}


def test_signed_lines_have_one_reading(mail: Effects, sns: Sns) -> None:
    """Or the signature of one event would be good for a second one, under another id."""
    sent = sign(notification(event("Send"), Subject="Amazon SES"))
    forged = [_moved(sent, "MessageId", "Subject"), _moved(sent, "Subject", "Timestamp")]
    forged.append({**sent, "Message": f"{sent['Message']}\nMessageId\n{sent['MessageId']}"})
    confirm = sign(subscription())
    forged += [_moved(confirm, "MessageId", "SubscribeURL"), {**confirm, "Type": "SubscriptionConfirmation\n"}]
    short = sign(notification(event("Send"), MessageId="22b80b92-fdea-4c2c-8f9d-1\n"))
    assert [tell(mail, sns, document) for document in [*forged, short, sign(subscription("Other"))]] == [401] * 7
    assert sns.fetched == []
    assert tell(mail, sns, sent) == 204


def test_requests_that_no_one_signed_make_us_ask_little(
    mail: Effects, sns: Sns, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = receiver.EventReceiver("ses", secrets=[TOPIC], effects=mail, fetch=sns.fetch)

    def told(document: Document) -> int:
        return taker.take({}, json.dumps(document).encode())

    assert told(sign(notification(event("Send")))) == 204
    urls = [CERTIFICATE.replace("0af1" * 8, f"{number:032x}") for number in range(40)]
    nonsense = [{**notification(event("Send"), SigningCertURL=url), "Signature": "QQ=="} for url in urls]
    assert {told(document) for document in nonsense + nonsense} == {503}
    assert sns.fetched == [CERTIFICATE, *urls[:5]]
    assert told(sign(notification(event("Send"), number=2))) == 204  # one that is known needs no asking
    monkeypatch.setattr(ses, "FAILED_SECONDS", 0.0)
    sns.answers[urls[7]] = sns.answers[CERTIFICATE]
    assert told(sign(notification(event("Send"), number=3, SigningCertURL=urls[7]))) == 204
    assert sns.fetched[6:] == [urls[7]]


def subscription(kind: str = "SubscriptionConfirmation", **further: Any) -> Document:
    return {
        "Type": kind, "MessageId": f"165545c9-2a5c-472c-8df2-{7:012}", "Token": "2336412f37", "TopicArn": TOPIC,
        "Message": "You have chosen\nto subscribe", "Timestamp": stamp(),
        "SubscribeURL": "https://evil.example/?Action=ConfirmSubscription",
        "SignatureVersion": "1", "SigningCertURL": CERTIFICATE, **further,
    }  # fmt: skip


def test_a_subscription_is_confirmed_at_the_regions_own_address(mail: Effects, sns: Sns) -> None:
    assert tell(mail, sns, sign(subscription())) == 204
    certificate, confirmation = sns.fetched
    assert certificate == CERTIFICATE
    assert confirmation.startswith(f"{HOST}/?")
    assert parse_qs(urlsplit(confirmation).query) == {
        "Action": ["ConfirmSubscription"], "TopicArn": [TOPIC], "Token": ["2336412f37"],
    }  # fmt: skip
    sns.confirms = False
    assert tell(mail, sns, sign(subscription())) == 500  # SNS asks again
    before = len(sns.fetched)
    assert tell(mail, sns, sign(subscription(), STRANGER)) == 401
    assert tell(mail, sns, sign(subscription(TopicArn=TOPIC.replace("mail-events", "theirs")))) == 401
    assert tell(mail, sns, sign(subscription("UnsubscribeConfirmation"))) == 204
    assert [url for url in sns.fetched[before:] if "Confirm" in url] == []


@pytest.mark.parametrize("message", ["", "Successfully validated SNS topic", "[]", "{}"])
def test_a_message_that_is_no_event_is_400(mail: Effects, sns: Sns, message: str) -> None:
    assert tell(mail, sns, sign({**notification({}), "Message": message})) == 400


@pytest.mark.parametrize("topics", [[], ["mail-events"], [TOPIC, "arn:aws:sqs:eu-west-1:123456789012:q"]])
def test_a_topic_that_is_none_is_refused(topics: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="ARN of each SNS topic"):
        receiver.EventReceiver("ses", secrets=topics)


def test_a_host_that_cannot_be_verified_gives_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert fetch_over_https(f"https://127.0.0.1:{port}/x.pem") is None
