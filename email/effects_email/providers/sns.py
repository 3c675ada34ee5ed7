"""Amazon SNS over HTTP: whose message it is, by its signature, and confirming a subscription.

Whoever can reach the endpoint chooses every field of a request. So the certificate comes from one host and one form of
path only, a topic must be one that is expected, and a subscription is confirmed at an address that we make ourselves.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeAlias
from urllib.parse import urlencode, urlsplit

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA1, SHA256

from effects import ConfigurationError
from effects_email.transport.http_api.client import ProviderClient

FETCH_SECONDS = 10.0
CERTIFICATES_MAX = 20
_TOPIC = re.compile(r"arn:aws(?:-us-gov)?:sns:([a-z0-9-]{5,30}):\d{12}:[A-Za-z0-9_.-]{1,256}")
_CERTIFICATE = re.compile(r"https://sns\.([a-z0-9-]{5,30})\.amazonaws\.com/SimpleNotificationService-[0-9a-f]{32}\.pem")
_SIGNED = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_SIGNED_OF_SUBSCRIPTION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")

# The body of a GET, or None: an address is checked before it is asked for.
Fetch: TypeAlias = Callable[[str], bytes | None]


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


class SnsVerifier:
    """Checks requests; keeps certificates that it has fetched.

    Args:
        topics: the ARNs of the topics that are expected.
        fetch: such as `fetch_over_https`.

    Raises:
        ConfigurationError: no topic, or a text that is no topic's ARN.
    """

    def __init__(self, topics: Iterable[str], *, fetch: Fetch) -> None:
        self._topics = frozenset(topics)
        if not self._topics or not all(map(_TOPIC.fullmatch, self._topics)):
            raise ConfigurationError("give the ARN of each SNS topic, such as arn:aws:sns:eu-west-1:123456789012:mail")
        self._fetch = fetch
        self._certificates: dict[str, x509.Certificate] = {}
        self._lock = threading.Lock()

    def check(self, body: bytes) -> SnsMessage | None:
        """The message of a request that SNS signed for one of the topics, else None."""
        try:
            message = msgspec.json.decode(body, type=SnsMessage)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        region = _CERTIFICATE.fullmatch(message.certificate)
        topic = _TOPIC.fullmatch(message.topic)
        if message.topic not in self._topics or region is None or topic is None or region.group(1) != topic.group(1):
            return None
        certificate = self._certificate(message.certificate)
        return message if certificate is not None and _is_signed(certificate, message) else None

    def confirm(self, message: SnsMessage) -> bool:
        """Confirm a subscription, at the region's own address; the one in the message is not used."""
        topic = _TOPIC.fullmatch(message.topic)
        if topic is None or not message.token:
            return False
        host = urlsplit(message.certificate).netloc  # checked: sns.REGION.amazonaws.com
        query = urlencode({"Action": "ConfirmSubscription", "TopicArn": message.topic, "Token": message.token})
        return self._fetch(f"https://{host}/?{query}") is not None

    def _certificate(self, url: str) -> x509.Certificate | None:
        with self._lock:
            if url in self._certificates:
                return self._certificates[url]
        content = self._fetch(url)
        if content is None:
            return None
        try:
            certificate = x509.load_pem_x509_certificate(content)
        except ValueError:
            return None
        with self._lock:
            if len(self._certificates) >= CERTIFICATES_MAX:
                self._certificates.clear()
            self._certificates[url] = certificate
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
