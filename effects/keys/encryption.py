"""Secrets at rest: AES-256-GCM under named keys, each value bound to its row; and the digest of payloads.

A sealed value is `1 | length of key id | key id | nonce (12 bytes) | ciphertext and tag`. Its associated
data is table, row and field, so that a value copied into another row does not open. (NIST SP 800-38D;
random 96-bit nonces, so a key serves up to 2³² values.)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from effects.errors import ConfigurationError, KeyUnavailable, SealInvalid

KEY_BYTES = 32
NONCE_BYTES = 12
DIGEST_KEY_ID = "digest"  # never rotated: digests of old payloads must stay comparable
_FORMAT = 1
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


class KeyRing:
    """The keys of EFFECTS_KEYS: `id=base64` pairs, the first of them seals, all of them open.

    Args:
        text: comma-separated pairs, each key 32 bytes. The id `digest` is the key of payload digests; it
            seals nothing and must never change.

    Raises:
        ConfigurationError: an entry is wrong; the message names it and the fix, and never quotes a key.
    """

    def __init__(self, text: str = "") -> None:
        keys = dict(_parse(text))
        self._digest_key = keys.pop(DIGEST_KEY_ID, None)
        self._keys = keys
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._proven: set[str] = set()  # ids of keys that have opened something: they are what their ids say

    @property
    def ids(self) -> list[str]:
        """Key ids, the sealing one first."""
        return list(self._keys)

    def seal(self, value: bytes, *, table: str, row: str, field: str) -> bytes:
        """Encrypt under the first key.

        Raises:
            KeyUnavailable: EFFECTS_KEYS holds no key.
        """
        if not self._keys:
            raise KeyUnavailable(
                "EFFECTS_KEYS is not set, and a secret must not be stored in clear: run `effects keys generate`"
            )
        key_id, cipher = next(iter(self._ciphers.items()))
        nonce = os.urandom(NONCE_BYTES)
        head = bytes([_FORMAT, len(key_id)]) + key_id.encode()
        return head + nonce + cipher.encrypt(nonce, value, _context(table, row, field))

    def require(self, what: str) -> None:
        """
        Raises:
            KeyUnavailable: there is no key to seal this with.
        """
        if not self._keys:
            raise KeyUnavailable(f"EFFECTS_KEYS is not set, and {what} is to be sealed: run `effects keys generate`")

    def open(self, sealed: bytes, *, table: str, row: str, field: str) -> bytes:
        """Decrypt a value of that very row and field.

        Raises:
            KeyUnavailable: its key is not in the ring (names the id); or it does not open it and has opened nothing
                else in this process, so that EFFECTS_KEYS may hold another key under its id.
            SealInvalid: its key opens others and not this one: it was altered or moved. Or it is no sealed value.
        """
        key_id = self.key_id(sealed)
        if key_id not in self._keys:
            raise KeyUnavailable(f"EFFECTS_KEYS does not hold the key {key_id!r} that {table}.{field} is sealed with")
        body = sealed[2 + len(key_id) :]
        nonce, ciphertext = body[:NONCE_BYTES], body[NONCE_BYTES:]
        try:
            value = self._ciphers[key_id].decrypt(nonce, ciphertext, _context(table, row, field))
        except InvalidTag:
            raise self._unopened(key_id, f"{table}.{field} of row {row!r}") from None
        self._proven.add(key_id)
        return value

    def _unopened(self, key_id: str, place: str) -> KeyUnavailable:
        if key_id in self._proven:
            return SealInvalid(f"{place} does not open with key {key_id!r}: it was altered, or moved from another row")
        return KeyUnavailable(
            f"{place} does not open with key {key_id!r}, which has opened nothing in this process: EFFECTS_KEYS may "
            "hold another key under this id; if it is the right one, the value was altered or moved from another row"
        )

    def reseal(self, sealed: bytes, *, table: str, row: str, field: str) -> bytes:
        """The same value under the first key.

        Raises:
            KeyUnavailable, SealInvalid: as `open`.
        """
        return self.seal(self.open(sealed, table=table, row=row, field=field), table=table, row=row, field=field)

    @staticmethod
    def key_id(sealed: bytes) -> str:
        """Which key a sealed value needs.

        Raises:
            SealInvalid: it is no sealed value.
        """
        if len(sealed) < 2 or sealed[0] != _FORMAT or len(sealed) < 2 + sealed[1] + NONCE_BYTES:
            raise SealInvalid("the stored value is not in the sealed format")
        return sealed[2 : 2 + sealed[1]].decode(errors="replace")

    def digest(self, text: str, *, like: str | None = None) -> str:
        """Compute the digest that distinguishes payloads, before sealing.

        Keyed (HMAC-SHA256) where EFFECTS_KEYS has a `digest` key, so that a leaked database does not let a
        guessed payload be confirmed; plain SHA-256 else. `like` repeats the form of an earlier digest.
        """
        keyed = like.startswith("hmac:") if like is not None else self._digest_key is not None
        if keyed and self._digest_key is not None:
            return "hmac:" + hmac.digest(self._digest_key, text.encode(), "sha256").hex()
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def can_compare(self, digest: str) -> bool:
        """Whether `digest(…, like=digest)` tells the same content from another: a keyed one needs its key."""
        return self._digest_key is not None or not digest.startswith("hmac:")

    def sign(self, message: bytes, *, purpose: str) -> tuple[str, bytes]:
        """(id of the first key, HMAC-SHA256 of the message under a key that is derived from it for this purpose).

        Raises:
            KeyUnavailable: EFFECTS_KEYS holds no key.
        """
        if not self._keys:
            raise KeyUnavailable("EFFECTS_KEYS is not set, so signing is impossible: run `effects keys generate`")
        key_id, key = next(iter(self._keys.items()))
        return key_id, _signature(key, purpose, message)

    def is_signed(self, message: bytes, signature: bytes, *, key_id: str, purpose: str) -> bool:
        """Whether this is the signature that `sign` gives under that key. False where the key is not in the ring."""
        key = self._keys.get(key_id)
        return key is not None and hmac.compare_digest(signature, _signature(key, purpose, message))

    @property
    def digests_are_keyed(self) -> bool:
        """Whether there is a `digest` key."""
        return self._digest_key is not None

    def __repr__(self) -> str:
        return f"KeyRing(ids={self.ids!r})"


def _signature(key: bytes, purpose: str, message: bytes) -> bytes:
    derived = hmac.digest(key, b"effects signature\0" + purpose.encode(), "sha256")
    return hmac.digest(derived, message, "sha256")


def generate_key() -> str:
    """A fresh key in the form EFFECTS_KEYS takes, without its id."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _context(table: str, row: str, field: str) -> bytes:
    return "\0".join((table, row, field)).encode()


def _parse(text: str) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        key_id, _, encoded = pair.partition("=")
        if not _KEY_ID.fullmatch(key_id) or key_id in seen:
            raise ConfigurationError(
                f"EFFECTS_KEYS, entry {number}: give id=base64, the id of letters, digits, - and _, each once"
            )
        seen.add(key_id)
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:  # binascii.Error is one, and so is that of a text beyond ASCII
            raise ConfigurationError(f"EFFECTS_KEYS, entry {number} ({key_id}): the key is not base64") from None
        if len(key) != KEY_BYTES:
            raise ConfigurationError(
                f"EFFECTS_KEYS, entry {number} ({key_id}): {len(key)} bytes; a key has {KEY_BYTES}"
            )
        yield key_id, key
