"""The entries of EFFECTS_DKIM_KEYS: which keys there are, from when on each signs, and where its private half is.

    s2026._domainkey.shop.example=/run/secrets/dkim-s2026.pem
    s2027._domainkey.shop.example=/run/secrets/dkim-s2027.pem;from=2027-01-01
    ed2027._domainkey.shop.example=base64:MC4CAQAwBQYDK2VwBCIE…;from=2027-01-01

Comma-separated. The name of an entry is the one that its public half has in the DNS. The value is the path of a PEM
file (PKCS 8, or PKCS 1 for RSA) without a password, or `base64:` and the same in DER or PEM.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import NamedTuple

from effects import ConfigurationError

SETTING = "EFFECTS_DKIM_KEYS"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"({_LABEL}(?:\.{_LABEL})*)\._domainkey\.({_LABEL}(?:\.{_LABEL})+)")


class KeyEntry(NamedTuple):
    """One entry, not yet read. `begins`: messages dated earlier are not signed with it; None: all are."""

    selector: str
    domain: str
    source: str
    begins: datetime | None

    @property
    def name(self) -> str:
        """What the DNS calls it."""
        return f"{self.selector}._domainkey.{self.domain}"

    def __repr__(self) -> str:
        return f"KeyEntry({self.name!r})"


def parse_entries(text: str) -> list[KeyEntry]:
    """The entries of the setting; no file is read.

    Raises:
        ConfigurationError: names the entry by its number, and what is wrong with it.
    """
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    entries = [_entry(number, piece) for number, piece in enumerate(pieces, 1)]
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{SETTING} names {name} twice: a new key has a selector of its own")
    return entries


def signing_domain(domain: str, domains: Collection[str]) -> str | None:
    """Of these domains that have keys, the one that signs for a sender's domain: itself, or the nearest above it."""
    labels = domain.split(".")
    candidates = (".".join(labels[number:]) for number in range(len(labels)))
    return next((candidate for candidate in candidates if candidate in domains), None)


def _entry(number: int, piece: str) -> KeyEntry:
    where = f"{SETTING}, entry {number}"
    name, equals, value = piece.partition("=")
    named = _NAME.fullmatch(name.strip().lower().rstrip("."))
    if not equals or named is None:
        raise ConfigurationError(
            f"{where}: give the name of its DNS record, =, and the file of the private key, such as "
            "s2026._domainkey.shop.example=/run/secrets/dkim-s2026.pem"
        )
    source, *options = (part.strip() for part in value.split(";"))
    begins = None
    for option in options:
        word, _, moment = option.partition("=")
        if word.strip() != "from":
            raise ConfigurationError(f"{where}: behind a ; comes from= and the moment from which on it signs")
        begins = _moment(where, moment.strip())
    if not source:
        raise ConfigurationError(f"{where}: no file and no key behind the =")
    return KeyEntry(named[1], named[2], source, begins)


def _moment(where: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{where}: from= is no moment, such as 2027-01-01 or 2027-01-01T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
