"""The address that a bounce comes back to (VERP): which message and which of its recipients, signed.

    b-TOKEN@bounces.shop.example

    base32( recipient's number (1 byte) | job (6) | reference of the Message-ID (16) | MAC (10) ), in lower case

The MAC is HMAC-SHA256 under the `digest` key of EFFECTS_KEYS: a bounce to an address that was not ours is no proof.
Case does not matter, the local part has 55 characters, and the same try of a message always has the same.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re

import msgspec

from effects import ConfigurationError, Effects
from effects_email.transport.http_api.fields import reference

TO_SEVERAL = 255  # instead of a recipient's number
_NUMBER_BYTES, _JOB_BYTES, _REFERENCE_BYTES, _MAC_BYTES = 1, 6, 16, 10
_BODY_BYTES = _NUMBER_BYTES + _JOB_BYTES + _REFERENCE_BYTES
# ASCII alone: regardless of case `k` would be the Kelvin sign as well, which is no letter of base32.
_TOKEN = re.compile(r"(?<![a-z0-9-])b-([a-z2-7]{53})(?=@)", re.IGNORECASE | re.ASCII)
_MAX = 20  # of one text


class BounceToken(msgspec.Struct, frozen=True):
    """A token's contents. `number` is None where the message went to several recipients at once."""

    job_id: int
    reference: str
    number: int | None


def check_bounce_key(app: Effects) -> None:
    """Refuse where tokens could be forged.

    Raises:
        ConfigurationError: EFFECTS_KEYS has no key named `digest`.
    """
    if not app.keys.digests_are_keyed:
        raise ConfigurationError(
            "addresses at EFFECTS_EMAIL_BOUNCE_DOMAIN are signed: EFFECTS_KEYS needs a key named digest (see `effects "
            "keys generate`)"
        )


def bounce_address(app: Effects, domain: str, *, job_id: int, message_id: str, number: int | None) -> str:
    """Where the bounces of this message come back to; `number` is its only recipient's, or None."""
    place = TO_SEVERAL if number is None else number
    body = bytes([place]) + job_id.to_bytes(_JOB_BYTES, "big") + bytes.fromhex(reference(message_id))
    token = base64.b32encode(body + _mac(app, body)).decode().rstrip("=").lower()
    return f"b-{token}@{domain}"


def find_tokens(app: Effects, text: str) -> list[BounceToken]:
    """Those of the addresses in a text that are ours, each once, in their order; what is forged or bent is left out."""
    tokens: dict[BounceToken, None] = {}
    for turn, match in enumerate(_TOKEN.finditer(text)):
        if turn == _MAX:
            break
        token = _opened(app, match[1])
        if token is not None:
            tokens.setdefault(token)
    return list(tokens)


def _opened(app: Effects, token: str) -> BounceToken | None:
    try:
        whole = base64.b32decode(token.upper() + "===")
    except binascii.Error:
        return None
    body, mac = whole[:_BODY_BYTES], whole[_BODY_BYTES:]
    if not app.keys.digests_are_keyed or not hmac.compare_digest(mac, _mac(app, body)):
        return None
    end = _NUMBER_BYTES + _JOB_BYTES
    number = None if body[0] == TO_SEVERAL else body[0]
    return BounceToken(int.from_bytes(body[_NUMBER_BYTES:end], "big"), body[end:].hex(), number)


def _mac(app: Effects, body: bytes) -> bytes:
    return bytes.fromhex(app.keys.digest(f"bounce address\0{body.hex()}").removeprefix("hmac:"))[:_MAC_BYTES]
