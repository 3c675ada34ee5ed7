"""Who sent an event, by the providers' own signatures: SendGrid's ECDSA and Mailgun's HMAC."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from effects import ConfigurationError
from effects.extend import whole_number

# The providers repeat an event for a day at most. What is older is a replay.
AGE_SECONDS_MAX = 36 * 3600.0
_AHEAD_SECONDS_MAX = 300.0
_SENDGRID = "x-twilio-email-event-webhook-"
_KEY_CHARS_MIN = 16


def public_keys(texts: Iterable[str]) -> list[ec.EllipticCurvePublicKey]:
    """SendGrid's verification keys: base64 of an ECDSA key in DER, as its page of the webhook shows it.

    Raises:
        ConfigurationError: missing or malformed.
    """
    keys = [_public_key(text) for text in texts]
    if not keys:
        raise ConfigurationError("give at least one verification key, from SendGrid's page of the event webhook")
    return keys


def _public_key(text: str) -> ec.EllipticCurvePublicKey:
    try:
        key = load_der_public_key(base64.b64decode(text, validate=True))
    except (ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigurationError("a verification key of SendGrid is the base64 of an ECDSA public key")
    return key


def check_sendgrid(
    keys: Sequence[ec.EllipticCurvePublicKey],
    headers: Mapping[str, str],
    body: bytes,
    *,
    clock: Callable[[], float] = time.time,
) -> str | None:
    """ "" for a request that the holder of one of the keys signed within 36 hours, else None: each event has its id."""
    stamp = headers.get(f"{_SENDGRID}timestamp", "")
    try:
        signature = base64.b64decode(headers.get(f"{_SENDGRID}signature", ""), validate=True)
    except (ValueError, binascii.Error):
        return None
    if not _is_fresh(stamp, clock()):
        return None
    return "" if any(_is_signed(key, signature, stamp.encode() + body) for key in keys) else None


def _is_signed(key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    try:
        key.verify(signature, data, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def hmac_keys(texts: Iterable[str]) -> list[bytes]:
    """Mailgun's HTTP webhook signing keys.

    Raises:
        ConfigurationError: missing, or shorter than 16 characters.
    """
    keys = [text.encode() for text in texts]
    if not keys or any(len(key) < _KEY_CHARS_MIN for key in keys):
        raise ConfigurationError("give at least one HTTP webhook signing key, from Mailgun's page of the account")
    return keys


def check_mailgun(
    keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, clock: Callable[[], float] = time.time
) -> str | None:
    """ "" for a request with a signature of one of the keys, 36 hours old at most, else None.

    Mailgun signs a timestamp and a token, not the event: whoever saw one request could forge others for that long.
    """
    try:
        signed = msgspec.convert(msgspec.json.decode(body), _Signed).signature
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not _is_fresh(signed.timestamp, clock()):
        return None
    data = f"{signed.timestamp}{signed.token}".encode()
    matches = [
        hmac.compare_digest(hmac.digest(key, data, hashlib.sha256).hex().encode(), signed.signature.encode())
        for key in keys
    ]
    return "" if any(matches) else None


class _Signature(msgspec.Struct):
    timestamp: str
    token: str
    signature: str


class _Signed(msgspec.Struct):
    signature: _Signature


def _is_fresh(stamp: str, now: float) -> bool:
    signed_at = whole_number(stamp, 11)
    return signed_at is not None and -_AHEAD_SECONDS_MAX <= now - signed_at <= AGE_SECONDS_MAX
