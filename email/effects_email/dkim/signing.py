"""DKIM-Signature fields for a message: the same for the same bytes and keys, at every attempt.

The private keys are read from the files that EFFECTS_DKIM_KEYS names, when a worker starts. No clock and no randomness
here either: `t=` is the message's Date, RSA's padding (PKCS 1 v1.5) and Ed25519 have none. Canonicalization is relaxed
(RFC 6376, sections 3.4.2 and 3.4.4). dkimpy and OpenDKIM verify in the tests what this writes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from effects import ConfigurationError
from effects_email.dkim.entries import SETTING, KeyEntry, signing_domain

Algorithm: TypeAlias = Literal["rsa-sha256", "ed25519-sha256"]
RSA_BITS_MIN = 1024  # RFC 8301: verifiers take no shorter one
RSA_BITS_ADVISED = 2048
_INLINE = "base64:"
_BLANKS = re.compile(rb"[ \t]+")
_FOLD = re.compile(rb"\r\n(?=[ \t])")
# Signed where the message has them. From once more than there is: a second one that is added breaks the signature.
_SIGNED = (
    b"from", b"to", b"cc", b"reply-to", b"subject", b"date", b"message-id", b"in-reply-to", b"references",
    b"mime-version", b"content-type", b"content-transfer-encoding", b"auto-submitted",
    b"list-id", b"list-help", b"list-unsubscribe", b"list-unsubscribe-post", b"feedback-id",
)  # fmt: skip
_OVERSIGNED = b"from"
_LINE_CHARS = 74


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


def header_fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """The fields of a head in their order: the name in lower case, and the value, relaxed."""
    fields = []
    for line in _FOLD.sub(b"", head).split(b"\r\n"):
        name, _, value = line.partition(b":")
        fields.append((name.strip().lower(), _BLANKS.sub(b" ", value).strip(b" ")))
    return fields


def relaxed_body(body: bytes) -> bytes:
    """Runs of blanks are one space, none ends a line, and no empty line ends the body."""
    if b" " in body or b"\t" in body:
        body = _BLANKS.sub(b" ", body).replace(b" \r\n", b"\r\n")
    end = len(body)
    while body.endswith(b"\r\n", 0, end):
        end -= 2
    return body[:end] + b"\r\n" if end else b""


def signed_head(fields: Iterable[tuple[bytes, bytes]], names: Iterable[bytes]) -> bytes:
    """The named fields as they are signed. Of several with one name the last comes first; one too many adds nothing."""
    left: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        left.setdefault(name, []).append(value)
    lines = [name + b":" + left[name].pop() + b"\r\n" for name in names if left.get(name)]
    return b"".join(lines)


class DkimSigner:
    """Signs messages with the keys of their senders' domains. Of a domain without keys they leave as they are.

    Args:
        keys: all that there are; of each algorithm the newest signs that had begun by the message's Date.
    """

    def __init__(self, keys: Sequence[DkimKey] = ()) -> None:
        self.keys = tuple(keys)
        self._domains = {key.domain for key in keys}

    def keys_at(self, domain: str, date: datetime) -> list[DkimKey]:
        """The keys that sign a message of this sender's domain and Date: one of each algorithm, RSA last."""
        own = signing_domain(domain, self._domains)
        begun = [key for key in self.keys if key.domain == own and (key.begins is None or key.begins <= date)]
        newest: dict[str, DkimKey] = {}
        for key in sorted(begun, key=lambda key: (key.begins is not None, key.begins or date)):
            newest[key.algorithm] = key
        return sorted(newest.values(), key=lambda key: key.algorithm)

    def sign(self, data: bytes, domain: str, date: datetime, *, released_as: str | None = None) -> bytes:
        """The message with its signatures above it.

        Args:
            data: the unsigned message, lines ended by CRLF.
            domain: of its From.
            date: its Date; decides on the keys, and is the signatures' time.
            released_as: the SHA-256 of the bytes that an earlier try released, if one did. If the keys have changed
                since, and those of then are still among them (or there were none), the result is those bytes.
        """
        if not self.keys and released_as is None:
            return data
        signed = _signed(data, self.keys_at(domain, date), date)
        if released_as is None or _sha256(signed) == released_as:
            return signed
        earlier = (_signed(data, keys, date) for keys in self._earlier(domain))
        return next((message for message in earlier if _sha256(message) == released_as), signed)

    def _earlier(self, domain: str) -> Iterable[list[DkimKey]]:
        """What may have signed before the keys were changed: none, one, or one of each algorithm."""
        own = [key for key in self.keys if key.domain == signing_domain(domain, self._domains)]
        yield []
        yield from ([key] for key in own)
        for ed25519 in own:
            for rsa in own:
                if (ed25519.algorithm, rsa.algorithm) == ("ed25519-sha256", "rsa-sha256"):
                    yield [ed25519, rsa]


def _signed(data: bytes, keys: Sequence[DkimKey], date: datetime) -> bytes:
    if not keys:
        return data
    head, _, body = data.partition(b"\r\n\r\n")
    fields = header_fields(head)
    body_hash = base64.b64encode(hashlib.sha256(relaxed_body(body)).digest()).decode()
    lines = [_signature(key, fields, body_hash, date) for key in keys]
    return b"".join((*lines, data))


def _signature(key: DkimKey, fields: Sequence[tuple[bytes, bytes]], body_hash: str, date: datetime) -> bytes:
    present = [name for name, _ in fields]
    names = [name for name in _SIGNED for _ in range(present.count(name))] + [_OVERSIGNED]
    lines = [
        f"DKIM-Signature: v=1; a={key.algorithm}; c=relaxed/relaxed;",
        f"d={key.domain}; s={key.selector}; t={int(date.timestamp())};",
        *_folded(names),
        f"bh={body_hash};",
        "b=",
    ]
    unsigned = "\r\n ".join(lines)
    [own] = header_fields(unsigned.encode())
    hashed = signed_head(fields, names) + own[0] + b":" + own[1]
    value = base64.b64encode(_sign(key, hashed)).decode()
    pieces = [value[start : start + _LINE_CHARS] for start in range(0, len(value), _LINE_CHARS)]
    return ("\r\n ".join((unsigned, *pieces)) + "\r\n").encode()


def _folded(names: Sequence[bytes]) -> list[str]:
    """`h=`, broken behind its colons."""
    lines, line = [], "h="
    for number, name in enumerate(names, 1):
        word = name.decode() + (":" if number < len(names) else ";")
        if len(line) + len(word) > _LINE_CHARS:
            lines.append(line)
            line = " "
        line += word
    return [*lines, line]


def _sign(key: DkimKey, hashed: bytes) -> bytes:
    if isinstance(key.private, Ed25519PrivateKey):
        return key.private.sign(hashlib.sha256(hashed).digest())  # RFC 8463: over the hash
    return key.private.sign(hashed, PKCS1v15(), hashes.SHA256())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
