"""Who sent an event: the signatures of providers, and the password of a URL where a provider signs nothing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from effects import ConfigurationError
from effects.extend.secrets import SecretInvalid, SignatureInvalid, signing
from effects.extend.text import whole_number

# The providers repeat an event for a day at most. What is older is a replay.
AGE_SECONDS_MAX = 36 * 3600.0
AHEAD_SECONDS_MAX = 300.0
_SENDGRID = "x-twilio-email-event-webhook-"
_KEY_CHARS_MIN = 16
SECRET_BYTES_MIN = 16
PASSWORD_CHARS_MIN = 16
_HEADER_PREFIXES = ("svix", signing.HEADER_PREFIX)


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
    """What was signed of a request by the holder of one of the keys, 36 hours ago at most, else None.

    Mailgun signs a timestamp and a token, not the event: whoever sees one request could forge others for that long. So
    what is signed is to be taken with one body alone.
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
    return data.decode() if any(matches) else None


class _Signature(msgspec.Struct):
    timestamp: str
    token: str
    signature: str


class _Signed(msgspec.Struct):
    signature: _Signature


def _is_fresh(stamp: str, now: float) -> bool:
    signed_at = whole_number(stamp, 11)
    return signed_at is not None and -AHEAD_SECONDS_MAX <= now - signed_at <= AGE_SECONDS_MAX


def signing_keys(secrets: Iterable[str]) -> list[bytes]:
    """The keys of `whsec_…` secrets.

    Raises:
        ConfigurationError: missing or malformed; the message never quotes it.
    """
    keys = [_key(secret) for secret in secrets]
    if not keys:
        raise ConfigurationError("give at least one signing secret, whsec_… from the provider's page of the webhook")
    return keys


def _key(secret: str) -> bytes:
    try:
        key = signing.decode_secret(secret)
    except SecretInvalid:
        key = b""
    if len(key) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"a signing secret is {signing.SECRET_PREFIX} and base64 of at least {SECRET_BYTES_MIN} bytes"
        )
    return key


def signed_id(
    keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now: float | None = None
) -> str | None:
    """The id of a request that the holder of one of the keys signed within the last 5 minutes, else None.

    Standard Webhooks 1.0.0, under its own header names or those of before the standard.
    """
    for prefix in _HEADER_PREFIXES:
        with suppress(SignatureInvalid):
            return signing.verify_with(keys, headers, body, prefix=prefix, now=now)
    return None


def passwords(secrets: Iterable[str]) -> list[bytes]:
    """The passwords that a URL may carry, as their hashes.

    Raises:
        ConfigurationError: missing, or shorter than 16 characters.
    """
    candidates = list(secrets)
    if not candidates or any(len(password) < PASSWORD_CHARS_MIN for password in candidates):
        raise ConfigurationError(
            f"give at least one password of {PASSWORD_CHARS_MIN} characters or more; it is part of the webhook's URL,  "
            "https://effects:PASSWORD@…"
        )
    return [_hash(password.encode()) for password in candidates]


def knows_password(hashes: Sequence[bytes], headers: Mapping[str, str]) -> bool:
    """Whether a request's `Authorization: Basic` has one of the passwords, with any user. Constant time."""
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    try:
        pair = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        pair = b""
    password_hash = _hash(pair.partition(b":")[2])
    matches = [hmac.compare_digest(expected, password_hash) for expected in hashes]
    return scheme.lower() == "basic" and any(matches)


def _hash(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()
