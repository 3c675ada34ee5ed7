"""Private keys of the tests, the setting that names them, and the DNS that publishes them."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from effects_email.dkim.entries import parse_entries
from effects_email.dkim.signing import DkimSigner, load_keys

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import dkim

Private: TypeAlias = RSAPrivateKey | Ed25519PrivateKey


@lru_cache
def rsa(number: int = 1, bits: int = 2048) -> RSAPrivateKey:
    return generate_private_key(65537, bits)


@lru_cache
def ed25519(number: int = 1) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def pem(key: Private) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def inline(key: Private) -> str:
    return "base64:" + base64.b64encode(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())).decode()


def setting(domain: str = "shop.example", **keys: Private) -> str:
    """EFFECTS_DKIM_KEYS with these keys by their selectors."""
    return ",".join(f"{selector}._domainkey.{domain}={inline(key)}" for selector, key in keys.items())


def both(domain: str = "shop.example") -> str:
    return setting(domain, s2026=rsa(), ed2026=ed25519())


def signer(text: str) -> DkimSigner:
    return DkimSigner(load_keys(parse_entries(text)))


def published(text: str) -> dict[str, str]:
    """Name → TXT record."""
    return {key.name: key.record for key in signer(text).keys}


def write_pem(folder: Path, key: Private) -> Path:
    path = folder / "dkim.pem"
    path.write_bytes(pem(key))
    return path


def verdicts(data: bytes, records: Mapping[str, str]) -> list[bool]:
    """What dkimpy makes of each signature of a message, the newest one first."""
    lookup: Callable[..., bytes] = lambda name, timeout=5: records[name.decode().rstrip(".")].encode()  # noqa: E731
    signatures = sum(name.lower() == b"dkim-signature" for name, _ in dkim.rfc822_parse(data)[0])
    results = []
    for number in range(signatures):
        try:
            results.append(bool(dkim.DKIM(data).verify(idx=number, dnsfunc=lookup)))
        except dkim.DKIMException:
            results.append(False)
    return results
