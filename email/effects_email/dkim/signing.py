"""DKIM-Signature fields for a message: the same for the same bytes and keys, at every attempt.

No clock and no randomness here either: `t=` is the message's Date, RSA's padding (PKCS 1 v1.5) and Ed25519 have none.
dkimpy and OpenDKIM verify in the tests what this writes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

from effects_email.dkim.canonical import header_fields, relaxed_body, signed_head
from effects_email.dkim.entries import signing_domain
from effects_email.dkim.keys import DkimKey

# Signed where the message has them. From once more than there is: a second one that is added breaks the signature.
_SIGNED = (
    b"from", b"to", b"cc", b"reply-to", b"subject", b"date", b"message-id", b"in-reply-to", b"references",
    b"mime-version", b"content-type", b"content-transfer-encoding", b"auto-submitted",
    b"list-id", b"list-help", b"list-unsubscribe", b"list-unsubscribe-post", b"feedback-id",
)  # fmt: skip
_OVERSIGNED = b"from"
_LINE_CHARS = 74


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
