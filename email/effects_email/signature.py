"""Who sent an event: Standard Webhooks signatures, and the password of a URL where a provider signs nothing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from effects.errors import ConfigurationError

TOLERANCE_SECONDS = 300.0
PASSWORD_CHARS_MIN = 16
_SECRET_PREFIX = "whsec_"  # noqa: S105 - the public prefix of the format, no secret
_HEADERS = ("svix", "webhook")  # the names before the standard, and those of the standard
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def signing_keys(secrets: Iterable[str]) -> list[bytes]:
    """The keys of `whsec_…` secrets.

    Raises:
        ConfigurationError: there is none, or one is not in the form; never quotes it.
    """
    keys = [_key(secret) for secret in secrets]
    if not keys:
        raise ConfigurationError("give at least one signing secret, whsec_… from the provider's page of the webhook")
    return keys


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_SECRET_PREFIX) or len(key) < 16:
        raise ConfigurationError(f"a signing secret is {_SECRET_PREFIX} and base64 of at least 16 bytes")
    return key


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> str | None:
    """The id of a request that the holder of one of the keys signed within the last 5 minutes, else None.

    Standard Webhooks 1.0.0: HMAC-SHA256 of `id.timestamp.body`, in base64 behind `v1,`; several tokens while a secret
    is replaced. Every pair is compared, in constant time.
    """
    for prefix in _HEADERS:
        message_id, timestamp, tokens = (
            headers.get(f"{prefix}-{name}", "") for name in ("id", "timestamp", "signature")
        )
        if not (message_id and tokens and _TIMESTAMP.fullmatch(timestamp)):
            continue
        if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_SECONDS:
            continue
        content = f"{message_id}.{timestamp}.".encode() + body
        expected = [b"v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)) for key in keys]
        given = [token.encode(errors="replace") for token in tokens.split(" ")]
        if any([hmac.compare_digest(one, other) for one in expected for other in given]):  # noqa: C419 - all of them
            return message_id
    return None


def passwords(secrets: Iterable[str]) -> list[bytes]:
    """The passwords that a URL may carry, as their hashes.

    Raises:
        ConfigurationError: there is none, or one has fewer than 16 characters.
    """
    known = list(secrets)
    if not known or any(len(one) < PASSWORD_CHARS_MIN for one in known):
        raise ConfigurationError(
            f"give at least one password of {PASSWORD_CHARS_MIN} characters or more; it stands in the webhook's URL, "
            "https://effects:PASSWORD@…"
        )
    return [_hash(one.encode()) for one in known]


def knows_password(known: Sequence[bytes], headers: Mapping[str, str]) -> bool:
    """Whether a request's `Authorization: Basic` has one of the passwords, whatever the user. Constant time."""
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    try:
        pair = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        pair = b""
    given = _hash(pair.partition(b":")[2])
    matches = [hmac.compare_digest(one, given) for one in known]
    return scheme.lower() == "basic" and any(matches)


def _hash(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()
