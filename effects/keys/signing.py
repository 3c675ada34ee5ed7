"""Standard Webhooks 1.0.0: signing what is sent, verifying what is received.

The signed content is `id.timestamp.body`, byte for byte; the key is the decoded secret; the signature is
`v1,` and the base64 text of HMAC-SHA256. A header may hold several of them, parted by one space: one for each
secret while a secret is replaced.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from effects.errors import SecretInvalid, SignatureInvalid

HEADER_PREFIX = "webhook"
ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"

SECRET_PREFIX = "whsec_"  # noqa: S105 - the public prefix of the format, no secret
SECRET_BYTES = 32
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 24, 64
TOLERANCE_SECONDS = 300
PIECE_BYTES = 1_984  # 31 blocks of SHA-256, below the 2,048 bytes from which hashlib lets the GIL go
LONG_BYTES = 65_536  # a body of more is worth it

_ID = re.compile(r"[!-\-/-~]{1,256}")  # visible ASCII without the dot, which parts the signed fields
_TIMESTAMP = re.compile(r"[0-9]{1,12}")  # not \d: int() would take digits of every script


def generate_secret() -> str:
    """A fresh secret of 32 random bytes."""
    return SECRET_PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()


def parse_secret(secret: str) -> bytes:
    """Decode a secret to its key.

    Strict: padded standard base64 of 24 to 64 bytes.

    Raises:
        SecretInvalid: the secret is malformed; the message never quotes it.
    """
    key = decode_secret(secret)
    if not _SECRET_BYTES_MIN <= len(key) <= _SECRET_BYTES_MAX:
        raise SecretInvalid(f"the secret has {len(key)} bytes; give {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX}")
    return key


def decode_secret(secret: str) -> bytes:
    """`parse_secret` of any length: a secret that others chose is as long as they like.

    Lenient decoders drop the characters they do not know, so that a URL-safe secret would silently become another,
    shorter key; this one does not.

    Raises:
        SecretInvalid: the secret is malformed; the message never quotes it.
    """
    if not isinstance(secret, str) or not secret.startswith(SECRET_PREFIX):
        raise SecretInvalid(f"the secret does not begin with {SECRET_PREFIX}")
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise SecretInvalid("the secret is not padded base64 in the standard alphabet (+ and /)") from None


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature of one request: `v1,` and 44 characters.

    Args:
        secret: `whsec_…`.
        message_id: value of `webhook-id`; the same on every try.
        timestamp: value of `webhook-timestamp`: whole seconds since 1970 of this try. An integer, because a
            datetime in another zone is signed wrongly by more than one library.
        body: the very bytes that are sent.

    Raises:
        SecretInvalid: the secret is malformed.
        SignatureInvalid: the id holds a dot, or anything but visible ASCII.
    """
    return sign_with(parse_secret(secret), message_id, timestamp, body)


def sign_with(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """`sign` with the decoded key."""
    if not _ID.fullmatch(message_id):
        raise SignatureInvalid("the message id must be visible ASCII without a dot")
    return "v1," + base64.b64encode(_digest(key, f"{message_id}.{timestamp}.".encode(), body)).decode()


def _digest(key: bytes, prefix: bytes, body: bytes) -> bytes:
    """HMAC-SHA256 of both. Of more than 2,047 bytes at once hashlib lets the GIL go, and in a busy process to get it
    back takes longer than to hash a usual body; so that one is fed in pieces.
    """
    if len(body) > LONG_BYTES:
        return hmac.digest(key, prefix + body, hashlib.sha256)
    mac, view = hmac.new(key, prefix, hashlib.sha256), memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        mac.update(view[start : start + PIECE_BYTES])
    return mac.digest()


def verify(
    secrets: Iterable[str] | str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> str:
    """Check that a received request is what the holder of one of the secrets signed, and fresh.

    Args:
        secrets: one secret, or several while one is being replaced.
        headers: the request's; names in any case.
        body: the received bytes, before any parsing.
        tolerance_seconds: how far `webhook-timestamp` may be from now, before or after. Default 300.
        now: seconds since 1970; default this machine's clock.

    Returns:
        The message id. It is the same on every repeat: store it, and skip what you have seen.

    Raises:
        SignatureInvalid: a header is missing, malformed, stale or forged. No other error results from what a
            third party sent. Its subclass SecretInvalid means that one of your secrets is malformed.
        TypeError: the body is a text.
    """
    if isinstance(body, str):
        raise TypeError("body is a str; give the bytes as they were received, which are what is signed")
    keys = [parse_secret(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise SecretInvalid("verify needs at least one secret")
    return verify_with(keys, headers, body, tolerance_seconds=tolerance_seconds, now=now)


def verify_with(
    keys: Sequence[bytes],
    headers: Mapping[str, str],
    body: bytes,
    *,
    prefix: str = HEADER_PREFIX,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> str:
    """`verify` with the decoded keys, of headers that may begin with another word than the standard's `webhook`.

    Raises:
        SignatureInvalid: as `verify`.
    """
    message_id, timestamp, signatures = _fields(headers, prefix)
    age = (time.time() if now is None else now) - timestamp
    if abs(age) > tolerance_seconds:
        raise SignatureInvalid(f"{prefix}-timestamp is {abs(age):.0f} s {'old' if age > 0 else 'ahead'}")
    expected = [sign_with(key, message_id, timestamp, bytes(body)).encode() for key in keys]
    # Compare every pair, so that the time taken does not reveal which secret matched.
    matches = [hmac.compare_digest(digest, signature) for digest in expected for signature in signatures]
    if not any(matches):
        raise SignatureInvalid(f"no signature in {prefix}-signature fits")
    return message_id


def _fields(headers: Mapping[str, str], prefix: str) -> tuple[str, int, list[bytes]]:
    """Id, timestamp and the given `v1` tokens; tokens of other versions are for other verifiers."""
    lowered = {str(name).lower(): value for name, value in headers.items()}
    message_id, timestamp, signatures = (
        _text(lowered, f"{prefix}-{name}") for name in ("id", "timestamp", "signature")
    )
    if not _ID.fullmatch(message_id):
        raise SignatureInvalid(f"{prefix}-id must be visible ASCII without a dot")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise SignatureInvalid(f"{prefix}-timestamp is not a whole number of seconds")
    tokens = [token for token in signatures.split(" ") if token.startswith("v1,")]
    return message_id, int(timestamp), [token.encode(errors="replace") for token in tokens]


def _text(headers: Mapping[str, object], name: str) -> str:
    value = headers.get(name)
    if not isinstance(value, str) or not value:
        wsgi = f"http_{name.replace('-', '_')}"
        hint = f": give the headers, not WSGI's environ with {wsgi.upper()}" if wsgi in headers else ""
        raise SignatureInvalid(f"the header {name} is missing{hint}")
    return value
