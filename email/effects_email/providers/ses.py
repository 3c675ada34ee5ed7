"""Events of Amazon SES, which come by SNS: whose message it is, by its signature, and confirming a subscription.

Whoever can reach the endpoint chooses every field of a request. So the certificate comes from one host and one form of
path only, a topic must be one that is expected, and a subscription is confirmed at an address that we make ourselves.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import urlencode, urlsplit

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA1, SHA256

from effects import ConfigurationError
from effects.extend.text import is_printable
from effects_email.events import EventKind, IncomingEvent
from effects_email.providers.event_parsers import OF_MESSAGE, NotAnEvent, address, keyword, mapping, reference, time_of
from effects_email.providers.signatures import AGE_SECONDS_MAX, AHEAD_SECONDS_MAX
from effects_email.transport.http_api.client import ProviderClient
from effects_email.transport.http_api.ses import TAG

FETCH_SECONDS = 10.0
CERTIFICATES_MAX = 20
FAILURES_MAX, FAILED_SECONDS = 5, 60.0  # certificates that cannot be had: so many within such a time end the asking
_TYPES = ("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation")
_MESSAGE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOPIC = re.compile(r"arn:aws(?:-us-gov)?:sns:([a-z0-9-]{5,30}):\d{12}:[A-Za-z0-9_.-]{1,256}")
_CERTIFICATE = re.compile(r"https://sns\.([a-z0-9-]{5,30})\.amazonaws\.com/SimpleNotificationService-[0-9a-f]{32}\.pem")
_SIGNED = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_SIGNED_OF_SUBSCRIPTION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")

# The body of a GET, or None: an address is checked before it is asked for.
Fetch: TypeAlias = Callable[[str], bytes | None]
_KINDS: Mapping[str, EventKind] = {
    "Send": "accepted",
    "Delivery": "delivered",
    "DeliveryDelay": "delayed",
    "Bounce": "bounced_soft",
    "Complaint": "complained",
    "Reject": "failed",
    "Rendering Failure": "failed",
}
# Of each kind, the object that has its time and its recipients, and the name of these.
_PLACES = {
    "Delivery": ("delivery", "recipients"),
    "DeliveryDelay": ("deliveryDelay", "delayedRecipients"),
    "Bounce": ("bounce", "bouncedRecipients"),
    "Complaint": ("complaint", "complainedRecipients"),
}


class SnsMessage(msgspec.Struct, frozen=True):
    """The fields of a request of SNS that count."""

    type: str = msgspec.field(name="Type")
    message_id: str = msgspec.field(name="MessageId")
    topic: str = msgspec.field(name="TopicArn")
    message: str = msgspec.field(name="Message")
    timestamp: str = msgspec.field(name="Timestamp")
    version: str = msgspec.field(name="SignatureVersion")
    signature: str = msgspec.field(name="Signature")
    certificate: str = msgspec.field(name="SigningCertURL")
    subject: str | None = msgspec.field(default=None, name="Subject")
    token: str | None = msgspec.field(default=None, name="Token")
    subscribe: str | None = msgspec.field(default=None, name="SubscribeURL")


def string_to_sign(message: SnsMessage) -> bytes:
    """What SNS signs: names and values, one a line, in the order of the names."""
    values = {
        "Message": message.message, "MessageId": message.message_id, "Subject": message.subject,
        "SubscribeURL": message.subscribe, "Timestamp": message.timestamp, "Token": message.token,
        "TopicArn": message.topic, "Type": message.type,
    }  # fmt: skip
    names = _SIGNED if message.type == "Notification" else _SIGNED_OF_SUBSCRIPTION
    return "".join(f"{name}\n{values[name]}\n" for name in names if values[name] is not None).encode()


class CertificateUnavailable(Exception):
    """The certificate that a request names cannot be had now."""


def _is_unambiguous(message: SnsMessage) -> bool:
    """Whether what is signed can be read in one way: lines are signed, so that a value with lines could be two."""
    single = (message.message_id, message.timestamp, message.topic, message.subject, message.token, message.subscribe)
    return (
        message.type in _TYPES
        and _MESSAGE_ID.fullmatch(message.message_id) is not None
        and all(is_printable(value) for value in single if value is not None)
        and "\nMessageId\n" not in message.message
    )


def _is_fresh(timestamp: str, now: float) -> bool:
    """SNS repeats a request for an hour, with the time of the first."""
    signed_at = time_of(timestamp)
    return signed_at is not None and -AHEAD_SECONDS_MAX <= now - signed_at.timestamp() <= AGE_SECONDS_MAX


class SnsVerifier:
    """Checks requests; keeps certificates that it has fetched.

    Args:
        topics: the ARNs of the topics that are expected.
        fetch: such as `fetch_over_https`.

    Raises:
        ConfigurationError: no topic, or a text that is no topic's ARN.
    """

    def __init__(self, topics: Iterable[str], *, fetch: Fetch, clock: Callable[[], float] = time.time) -> None:
        self._topics = frozenset(topics)
        if not self._topics or not all(map(_TOPIC.fullmatch, self._topics)):
            raise ConfigurationError("give the ARN of each SNS topic, such as arn:aws:sns:eu-west-1:123456789012:mail")
        self._fetch, self._clock = fetch, clock
        self._certificates = _Certificates(fetch, time.monotonic)

    def check(self, body: bytes) -> SnsMessage | None:
        """The message of a request that SNS signed for one of the topics within 36 hours, else None.

        Raises:
            CertificateUnavailable: the certificate cannot be had now, so that SNS should repeat the request.
        """
        try:
            message = msgspec.json.decode(body, type=SnsMessage)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        region = _CERTIFICATE.fullmatch(message.certificate)
        topic = _TOPIC.fullmatch(message.topic)
        if message.topic not in self._topics or region is None or topic is None or region.group(1) != topic.group(1):
            return None
        if not _is_unambiguous(message) or not _is_fresh(message.timestamp, self._clock()):
            return None
        return message if _is_signed(self._certificates.get(message.certificate), message) else None

    def confirm(self, message: SnsMessage) -> bool:
        """Confirm a subscription, at the region's own address; the one in the message is not used."""
        topic = _TOPIC.fullmatch(message.topic)
        if topic is None or not message.token:
            return False
        host = urlsplit(message.certificate).netloc  # checked: sns.REGION.amazonaws.com
        query = urlencode({"Action": "ConfirmSubscription", "TopicArn": message.topic, "Token": message.token})
        return self._fetch(f"https://{host}/?{query}") is not None


class _Certificates:
    """Those that were fetched. Whoever reaches the endpoint can name one: what cannot be had is not asked for again
    soon, nor anything else after several failures.
    """

    def __init__(self, fetch: Fetch, clock: Callable[[], float]) -> None:
        self._fetch, self._clock = fetch, clock
        self._certificates: dict[str, x509.Certificate] = {}
        self._failures: dict[str, float] = {}  # address → when
        self._lock = threading.Lock()

    def get(self, url: str) -> x509.Certificate:
        """
        Raises:
            CertificateUnavailable: it cannot be had now.
        """
        certificate = self._certificates.get(url)
        if certificate is not None:
            return certificate
        with self._lock:  # one is fetched at a time
            if url not in self._certificates:
                self._certificates[url] = self._fetched(url)
            return self._certificates[url]

    def _fetched(self, url: str) -> x509.Certificate:
        now = self._clock()
        self._failures = {name: at for name, at in self._failures.items() if now - at < FAILED_SECONDS}
        if url in self._failures or len(self._failures) >= FAILURES_MAX:
            raise CertificateUnavailable
        content = self._fetch(url)
        try:
            certificate = x509.load_pem_x509_certificate(content or b"")
        except ValueError:
            self._failures[url] = now
            raise CertificateUnavailable from None
        if len(self._certificates) >= CERTIFICATES_MAX:
            self._certificates.clear()
        return certificate


def _is_signed(certificate: x509.Certificate, message: SnsMessage) -> bool:
    key, now = certificate.public_key(), datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return False
    algorithm = {"1": SHA1(), "2": SHA256()}.get(message.version)  # noqa: S303 - version 1 is what SNS has by default
    if algorithm is None or not isinstance(key, rsa.RSAPublicKey):
        return False
    with suppress(InvalidSignature, ValueError, binascii.Error):
        signature = base64.b64decode(message.signature, validate=True)
        key.verify(signature, string_to_sign(message), padding.PKCS1v15(), algorithm)
        return True
    return False


def fetch_over_https(url: str) -> bytes | None:
    """The body of a GET, at most 64 KiB of it within ten seconds; None where it is not answered 200."""
    parts = urlsplit(url)
    client = ProviderClient(f"https://{parts.netloc}")
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    with asyncio.Runner() as runner:
        exchange = runner.run(
            client.request("GET", target, {"user-agent": "effects"}, b"", release=_nothing, seconds=FETCH_SECONDS)
        )
    return bytes(exchange.body) if exchange.status == 200 else None


async def _nothing() -> None:
    """A GET releases nothing."""


def read_ses(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
    """The events of one notification, one for each recipient that it names.

    A complaint may name everybody at a domain: where it names several, none is held to have complained.

    Args:
        provider_event_id: SNS's id of the message.

    Raises:
        NotAnEvent: it has another form.
    """
    name = mapping(document).get("eventType") or mapping(document).get("notificationType")
    if not isinstance(name, str):
        raise NotAnEvent
    kind = _KINDS.get(name)
    if kind is None:
        return []
    place, names = _PLACES.get(name, ("", ""))
    about = mapping(mapping(document).get(place))
    code = name.replace(" ", "_")
    if name == "Bounce":
        if about.get("bounceType") == "Permanent":
            kind = "bounced_hard"
        elif about.get("bounceSubType") in OF_MESSAGE:
            kind = "failed"
        code = f"{about.get('bounceType')}_{about.get('bounceSubType')}"
    recipients = [_recipient(each) for each in _list(about.get(names))]
    if not recipients or (name == "Complaint" and len(recipients) > 1):
        recipients = [None]
    return [
        _event(mapping(document), f"{provider_event_id}:{number}", kind, code, recipient, about.get("timestamp"))
        for number, recipient in enumerate(recipients)
    ]


def _event(
    document: Mapping[str, Any], event_id: str, kind: EventKind, code: str, recipient: str | None, at: object
) -> IncomingEvent:
    mail = mapping(document.get("mail"))
    tags = _list(mapping(mail.get("tags")).get(TAG))
    return IncomingEvent(
        provider="ses",
        provider_event_id=event_id,
        kind=kind,
        code=keyword(code),
        reference=reference(tags[0]) if tags else None,
        provider_id=keyword(mail.get("messageId")),
        recipient=recipient,
        at=time_of(at) or time_of(mail.get("timestamp")),
    )


def _recipient(value: object) -> str | None:
    return address(value if isinstance(value, str) else mapping(value).get("emailAddress"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def document_of(text: str) -> object:
    """The notification in a message of SNS.

    Raises:
        NotAnEvent: it is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotAnEvent from None
