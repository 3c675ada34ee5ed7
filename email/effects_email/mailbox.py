"""By what an address is recognised, however it was written."""

from __future__ import annotations

import unicodedata

import idna

from effects.app import Effects


def normal_form(address: str) -> str:
    """The form in which two spellings of an address are the same text.

    The domain as an A-label in lower case (IDNA 2008, mapped by UTS 46). The local part in lower case and NFC: RFC 5321
    lets a host tell `Ann` from `ann`, none in use does, and to write to somebody who asked not to be written to is the
    worse mistake. Takes whatever a provider sends: what is no address stays as it is, in lower case.
    """
    local, at, domain = unicodedata.normalize("NFC", address.strip()).rpartition("@")
    return f"{local.lower()}{at}{_ascii(domain)}"


def _ascii(domain: str) -> str:
    plain = domain.strip().rstrip(".").lower()
    if plain.isascii():
        return plain
    try:
        return idna.encode(plain, uts46=True).decode()
    except (idna.IDNAError, UnicodeError):
        return plain


def digest(app: Effects, address: str) -> str:
    """What an address is stored and looked up as: an HMAC where EFFECTS_KEYS has a `digest` key, else SHA-256."""
    return app.keys.digest(_named(address))


def digests(app: Effects, address: str) -> tuple[str, ...]:
    """Every form under which an address may be stored: rows of the time before there was a `digest` key stay valid."""
    return tuple(dict.fromkeys((digest(app, address), app.keys.digest(_named(address), like="sha256:"))))


def _named(address: str) -> str:
    # The name parts this digest from those of payloads under the same key.
    return f"email address\0{normal_form(address)}"
