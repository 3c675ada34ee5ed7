"""Private keys: read from the files that EFFECTS_DKIM_KEYS names, when a worker starts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from effects import ConfigurationError
from effects_email.dkim.entries import SETTING, KeyEntry

Algorithm: TypeAlias = Literal["rsa-sha256", "ed25519-sha256"]
RSA_BITS_MIN = 1024  # RFC 8301: verifiers take no shorter one
RSA_BITS_ADVISED = 2048
_INLINE = "base64:"


class DkimKey:
    """A private key and the names under which verifiers find its public half.

    Args:
        entry: of the setting; its file is read now.

    Raises:
        ConfigurationError: the file cannot be read, or holds no key that DKIM knows; the message quotes none of it.
    """

    def __init__(self, entry: KeyEntry) -> None:
        self.selector, self.domain, self.name, self.begins = entry.selector, entry.domain, entry.name, entry.begins
        self.private = _private_key(entry)

    @property
    def algorithm(self) -> Algorithm:
        return "rsa-sha256" if isinstance(self.private, RSAPrivateKey) else "ed25519-sha256"

    @property
    def bits(self) -> int:
        """Its size."""
        return self.private.key_size if isinstance(self.private, RSAPrivateKey) else 256

    @cached_property
    def public(self) -> bytes:
        """What `p=` of its DNS record holds, before base64."""
        public = self.private.public_key()
        if isinstance(self.private, RSAPrivateKey):
            return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return public.public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def record(self) -> str:
        """The TXT record to publish under its name."""
        kind = self.algorithm.partition("-")[0]
        return f"v=DKIM1; k={kind}; p={base64.b64encode(self.public).decode()}"

    def __repr__(self) -> str:
        return f"DkimKey({self.name!r}, {self.algorithm})"


def load_keys(entries: Sequence[KeyEntry]) -> list[DkimKey]:
    """Read them all.

    Raises:
        ConfigurationError: as `DkimKey`; or two of one algorithm and domain sign from the same moment on.
    """
    keys = [DkimKey(entry) for entry in entries]
    begun: dict[tuple[str, Algorithm, datetime | None], str] = {}
    for key in keys:
        earlier = begun.setdefault((key.domain, key.algorithm, key.begins), key.name)
        if earlier != key.name:
            raise ConfigurationError(
                f"{SETTING}: {earlier} and {key.name} are both {key.algorithm} from the same moment on; give the newer "
                "one a ;from="
            )
    return keys


def _private_key(entry: KeyEntry) -> RSAPrivateKey | Ed25519PrivateKey:
    data = _bytes(entry)
    load = load_pem_private_key if b"-----BEGIN" in data else load_der_private_key
    try:
        key = load(data, password=None)
    except TypeError:
        raise ConfigurationError(f"{SETTING}: the key of {entry.name} has a password; give one without") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{SETTING}: what {entry.name} names is no private key in PEM or DER") from None
    if isinstance(key, Ed25519PrivateKey):
        return key
    if not isinstance(key, RSAPrivateKey):
        raise ConfigurationError(f"{SETTING}: the key of {entry.name} is neither RSA nor Ed25519")
    if key.key_size < RSA_BITS_MIN:
        raise ConfigurationError(
            f"{SETTING}: the key of {entry.name} has {key.key_size} bits; none under {RSA_BITS_MIN} is accepted by "
            f"verifiers, and {RSA_BITS_ADVISED} are usual"
        )
    return key


def _bytes(entry: KeyEntry) -> bytes:
    if entry.source.startswith(_INLINE):
        try:
            return base64.b64decode(entry.source.removeprefix(_INLINE), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigurationError(f"{SETTING}: what follows base64: of {entry.name} is not base64") from None
    try:
        return Path(entry.source).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{SETTING}: the file of {entry.name} cannot be read: {error.strerror or type(error).__name__}"
        ) from None
