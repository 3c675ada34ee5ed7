"""What this app sends from a domain, by its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import idna

from effects import ConfigurationError
from effects_email.dkim.entries import parse_entries, signing_domain
from effects_email.dkim.keys import load_keys
from effects_email.dkim.signing import DkimSigner
from effects_email.domain.checks import SendingDomain, examine_domain
from effects_email.domain.lookup import Lookup
from effects_email.message.source import Address

CHECK_SECONDS = 20.0
DOCTOR_SECONDS = 3.0


class SenderSettings(Protocol):
    """Of `EmailSettings`, what is asked here."""

    @property
    def sender(self) -> Address | None: ...
    @property
    def return_path(self) -> Address | None: ...
    @property
    def email_bounce_domain(self) -> str: ...
    @property
    def email_nameserver(self) -> str: ...
    @property
    def dkim_keys(self) -> str: ...


def sending_domain(
    settings: SenderSettings, domain: str, signer: DkimSigner, selectors: Sequence[str] = ()
) -> SendingDomain:
    """A domain as this app sends from it.

    Raises:
        ConfigurationError: it is no domain.
    """
    try:
        name = idna.encode(domain.strip().rstrip("."), uts46=True).decode().lower()
    except idna.IDNAError:
        raise ConfigurationError(f"{domain!r} is no domain; give one, such as shop.example") from None
    back = settings.return_path
    own = signing_domain(name, {key.domain for key in signer.keys})
    return SendingDomain(
        name=name,
        envelope=settings.email_bounce_domain or (back.domain if back is not None else name),
        bounces=settings.email_bounce_domain,
        keys=[key for key in signer.keys if key.domain == own],
        selectors=selectors,
    )


def risks(settings: SenderSettings) -> dict[str, str]:
    """What `effects doctor` warns of: errors in the DNS where effects signs, or has bounces come back. 3 seconds at
    most; silence of the name servers is no finding.
    """
    if settings.sender is None or not (settings.dkim_keys or settings.email_bounce_domain):
        return {}
    try:
        signer = DkimSigner(load_keys(parse_entries(settings.dkim_keys)))
    except ConfigurationError as error:
        return {str(error): "mend EFFECTS_DKIM_KEYS: no worker starts with it"}
    sending = sending_domain(settings, settings.sender.domain, signer)
    findings = examine_domain(Lookup(seconds=DOCTOR_SECONDS, nameserver=settings.email_nameserver), sending)
    return {finding.text: finding.advice for finding in findings if finding.level == "error"}
