"""The token of an unsubscribe link: who and from what, signed, so that no row has to be kept for it.

    base64url( MAC (16 bytes) | version (1) | digest of the address (32) | length of category (2) | category | sealed )

The MAC is HMAC-SHA256 under the `digest` key of EFFECTS_KEYS, which rotation leaves alone: a link stays good as long as
that key does. The address itself is in it only sealed (and not at all where there is no key to seal with), because a
link ends up in the logs of whatever stands before the endpoint. Where its key is gone the digest still does.
"""

from __future__ import annotations

import base64
import binascii
import hmac

import msgspec

from effects import ConfigurationError, Effects, KeyUnavailable
from effects_email.errors import TokenInvalid
from effects_email.message.address import address_digest

_VERSION = 1
_MAC_BYTES, _DIGEST_BYTES = 16, 32
_HEAD_BYTES = 1 + _DIGEST_BYTES + 2
_CHARS_MAX = 4000
_KEYED = "hmac:"
_CONTEXT = {"table": "email_unsubscribe", "row": "token", "field": "address"}


class Token(msgspec.Struct, frozen=True):
    """A token's contents. `address` is None if it was not sealed or its key is gone."""

    digest: str
    category: str
    address: str | None

    def __repr__(self) -> str:
        return f"Token(category={self.category!r})"


def check_signing(app: Effects) -> None:
    """Refuse where tokens could be forged.

    Raises:
        ConfigurationError: EFFECTS_KEYS has no key named `digest`.
    """
    if not app.keys.digests_are_keyed:
        raise ConfigurationError(
            "unsubscribe links are signed: EFFECTS_KEYS needs a key named digest (see `effects keys generate`)"
        )


def write_token(app: Effects, address: str, category: str) -> str:
    """A token: 70 to 600 characters of the URL-safe alphabet.

    Raises:
        ConfigurationError: as `check_signing`.
    """
    check_signing(app)
    digest_bytes = bytes.fromhex(address_digest(app, address).removeprefix(_KEYED))
    name = category.encode()
    sealed = app.keys.seal(address.encode(), **_CONTEXT) if app.keys.ids else b""
    body = bytes([_VERSION]) + digest_bytes + len(name).to_bytes(2, "big") + name + sealed
    return base64.urlsafe_b64encode(_mac(app, body) + body).decode().rstrip("=")


def read_token(app: Effects, token: str) -> Token:
    """Verify and decode a token.

    Raises:
        TokenInvalid: it is not, or was altered. No other error comes from what a stranger sent.
        ConfigurationError: as `check_signing`.
    """
    check_signing(app)
    whole = _decoded(token)
    mac, body = whole[:_MAC_BYTES], whole[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(app, body)) or len(body) < _HEAD_BYTES or body[0] != _VERSION:
        raise TokenInvalid
    end = _HEAD_BYTES + int.from_bytes(body[_HEAD_BYTES - 2 : _HEAD_BYTES], "big")
    digest_text = _KEYED + body[1 : 1 + _DIGEST_BYTES].hex()
    return Token(digest_text, body[_HEAD_BYTES:end].decode(), _opened(app, body[end:]))


def _decoded(token: str) -> bytes:
    if not token or len(token) > _CHARS_MAX or not token.isascii():
        raise TokenInvalid
    try:
        whole = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenInvalid from None
    if base64.urlsafe_b64encode(whole).decode().rstrip("=") != token:  # another text for the same bytes
        raise TokenInvalid
    return whole


def _mac(app: Effects, body: bytes) -> bytes:
    signed = app.keys.digest("unsubscribe token\0" + base64.b64encode(body).decode())
    return bytes.fromhex(signed.removeprefix(_KEYED))[:_MAC_BYTES]


def _opened(app: Effects, sealed: bytes) -> str | None:
    if not sealed:
        return None
    try:
        return app.keys.open(sealed, **_CONTEXT).decode()
    except KeyUnavailable:
        return None
