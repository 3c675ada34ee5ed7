"""Who sent an event: Standard Webhooks signatures, and the password of a URL where a provider signs nothing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from effects import ConfigurationError
from effects.extend import HEADER_PREFIX, SECRET_PREFIX, SecretInvalid, SignatureInvalid, decode_secret, verify_with

SECRET_BYTES_MIN = 16
PASSWORD_CHARS_MIN = 16
_HEADER_PREFIXES = ("svix", HEADER_PREFIX)


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
        key = decode_secret(secret)
    except SecretInvalid:
        key = b""
    if len(key) < SECRET_BYTES_MIN:
        raise ConfigurationError(f"a signing secret is {SECRET_PREFIX} and base64 of at least {SECRET_BYTES_MIN} bytes")
    return key


def signed_id(
    keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now: float | None = None
) -> str | None:
    """The id of a request that the holder of one of the keys signed within the last 5 minutes, else None.

    Standard Webhooks 1.0.0, under its own header names or those of before the standard.
    """
    for prefix in _HEADER_PREFIXES:
        with suppress(SignatureInvalid):
            return verify_with(keys, headers, body, prefix=prefix, now=now)
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
