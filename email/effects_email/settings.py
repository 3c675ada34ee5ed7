"""Settings of e-mail: frozen, checked when made, from the environment or from `Effects(…)`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effects import ConfigurationError
from effects.extend.arguments import arguments, optional, require
from effects.extend.jobs import ModulesNamed, PackageSettings
from effects.extend.process import lazy
from effects_email.dkim.entries import SETTING as DKIM_KEYS
from effects_email.dkim.entries import parse_entries, signing_domain
from effects_email.errors import AddressInvalid
from effects_email.message.address import parse_mailbox
from effects_email.message.source import Address

with lazy.modules(__name__):
    from effects_email import domain as domain_checks

DEFAULT_TRANSPORT = "default"
TRANSPORT_VARIABLE = "EFFECTS_EMAIL_TRANSPORT_"
_TRANSPORT = re.compile(r"[a-z0-9][a-z0-9_]{0,31}")
_UNSUBSCRIBE_URL = re.compile(
    r"(https://[A-Za-z0-9]|http://(localhost|127\.0\.0\.1)[:/])[!$%&'()*+\-./0-9:;=?@A-Z_a-z~]{0,500}"
)
_UNSUBSCRIBE_MAILTO = re.compile(r"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9.-]{1,190}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailSettings(PackageSettings):
    """What an operator may set about e-mail.

    Args:
        smtp_url: EFFECTS_SMTP_URL, the transport `default`: `smtp+starttls://user:pass@host:587`, `smtps://…`,
            `smtp://localhost:25`, or another that `effects_email.transport.url` knows.
        email_transports: further transports by name. From the environment: EFFECTS_EMAIL_TRANSPORT_BULK is `bulk`.
        email_failover: EFFECTS_EMAIL_FAILOVER, lists of transports, such as `default,backup`, several with blanks
            between: a message for the first one goes by the next where the first surely did not send it.
        email_from: EFFECTS_EMAIL_FROM, the default sender: `Shop <a@b.example>`.
        templates: EFFECTS_EMAIL_TEMPLATES, a folder, or `package:shop.emails`. In code also a list of folders: of two
            files with one name the first counts.
        email_redirect: EFFECTS_EMAIL_REDIRECT: every message goes to this address instead, as staging wants it.
        email_hold: EFFECTS_EMAIL_HOLD: no message leaves; they wait until it is unset.
        email_content_days: EFFECTS_EMAIL_CONTENT_DAYS, how long what was written is kept after its end. Default 7.
        unsubscribe_url: EFFECTS_UNSUBSCRIBE_URL, where the endpoint of `effects_email.unsubscribe` answers, such as
            `https://shop.example/unsubscribe/`. Messages of a category that is not transactional need it. It must not
            redirect, as frameworks do where the slash of a mounted app is missing.
        unsubscribe_mailto: EFFECTS_UNSUBSCRIBE_MAILTO, an address for those whose mail program unsubscribes by mail;
            yours to read.
        email_return_path: EFFECTS_EMAIL_RETURN_PATH, the envelope's sender, where bounces go. Default: From.
        email_bounce_domain: EFFECTS_EMAIL_BOUNCE_DOMAIN, such as `bounces.shop.example`: every message has an address
            of its own there as the envelope's sender, so that a bounce tells which one it is of; `effects email
            bounces` reads them. Needs a `digest` key in EFFECTS_KEYS. Default none.
        email_nameserver: EFFECTS_EMAIL_NAMESERVER, asked by `effects email check` and `effects doctor`, such as
            `9.9.9.9` or `127.0.0.1:5353`. Default the system's.
        dkim_keys: EFFECTS_DKIM_KEYS, the private keys that sign, comma-separated, such as
            `s2026._domainkey.shop.example=/run/secrets/s2026.pem`; see `effects_email.dkim.entries`. Default none:
            nothing is signed. Files are read when a worker starts.

    Raises:
        ConfigurationError: names the variable and what it may hold.
    """

    smtp_url: str | None = field(default=None, repr=False)
    email_transports: Mapping[str, str] = field(default_factory=dict, repr=False)
    email_failover: str = ""
    email_from: str | None = None
    templates: str | Path | Sequence[Path] | None = field(
        default=None, metadata={"variable": "EFFECTS_EMAIL_TEMPLATES"}
    )
    email_redirect: str | None = None
    email_hold: bool = False
    email_content_days: float = 7.0
    unsubscribe_url: str = ""
    unsubscribe_mailto: str = ""
    email_return_path: str | None = None
    email_bounce_domain: str = ""
    email_nameserver: str = ""
    dkim_keys: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        super(EmailSettings, self).__post_init__()
        _check_unsubscribe(self.unsubscribe_url, self.unsubscribe_mailto)
        for name, url in self.email_transports.items():
            require("email_transports: a name", name, arguments.text, ConfigurationError)
            require(f"email_transports: the URL of {name}", url, arguments.text, ConfigurationError)
            if not _TRANSPORT.fullmatch(name) or name == DEFAULT_TRANSPORT:
                raise ConfigurationError(
                    f"the mail transport {name!r}: a name has lower-case letters, digits and _, at most 32; the one "
                    f"that is called {DEFAULT_TRANSPORT} is EFFECTS_SMTP_URL"
                )
        self.failover  # noqa: B018 - looked at once, so that a wrong one is found here
        require("EFFECTS_EMAIL_CONTENT_DAYS", self.email_content_days, arguments.positive, ConfigurationError)
        self.sender, self.redirect, self.return_path  # noqa: B018 - looked at once, so that a wrong one is found here
        if self.email_bounce_domain:
            _mailbox(f"b@{self.email_bounce_domain}", "EFFECTS_EMAIL_BOUNCE_DOMAIN, as the domain of an address,")
        _check_dkim(self.dkim_keys, self.sender)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **overrides: Any) -> EmailSettings:
        """The environment's settings, with those given (and not None) on top."""
        named = {
            variable.removeprefix(TRANSPORT_VARIABLE).lower(): url
            for variable, url in environ.items()
            if variable.startswith(TRANSPORT_VARIABLE) and url
        }
        own = overrides.pop("email_transports", None)
        require("email_transports", own, optional(arguments.mapping), ConfigurationError)
        transports = {**named, **(own or {})}
        return super(EmailSettings, cls).from_environment(environ, **overrides, email_transports=transports)

    @classmethod
    def declared(cls, modules: ModulesNamed, folders: Sequence[Path]) -> Mapping[str, Any]:
        """The folder `emails` of each app."""
        emails = [folder / "emails" for folder in folders if (folder / "emails").is_dir()]
        return {"templates": emails} if emails else {}

    @property
    def sender(self) -> Address | None:
        return _mailbox(self.email_from, "EFFECTS_EMAIL_FROM")

    @property
    def redirect(self) -> Address | None:
        return _mailbox(self.email_redirect, "EFFECTS_EMAIL_REDIRECT")

    @property
    def return_path(self) -> Address | None:
        return _mailbox(self.email_return_path, "EFFECTS_EMAIL_RETURN_PATH")

    @property
    def failover(self) -> Mapping[str, Sequence[str]]:
        """The lists of EFFECTS_EMAIL_FAILOVER by their first transport.

        Raises:
            ConfigurationError: a list has no second transport, one twice, a name that none can have, or its first one
                is that of another list.
        """
        chains = [tuple(names.split(",")) for names in self.email_failover.split()]
        for chain in chains:
            if len(chain) < 2 or len(set(chain)) < len(chain) or not all(map(_TRANSPORT.fullmatch, chain)):
                raise ConfigurationError(
                    "EFFECTS_EMAIL_FAILOVER is lists of at least two transports' names, such as default,backup; "
                    "several lists with blanks between"
                )
        by_first = {chain[0]: chain for chain in chains}
        if len(by_first) < len(chains):
            raise ConfigurationError("EFFECTS_EMAIL_FAILOVER has two lists that begin with the same transport")
        return by_first

    def risks(self) -> Mapping[str, str]:
        """Errors of the sender's domain in the DNS, where effects signs for it or has bounces come back."""
        return domain_checks.risks(self)

    def transport_urls(self) -> dict[str, str]:
        """Every transport that is set, by its name."""
        default = {DEFAULT_TRANSPORT: self.smtp_url} if self.smtp_url else {}
        return {**default, **self.email_transports}


def check_transport_name(name: str) -> str:
    """
    Raises:
        ConfigurationError: no transport can have this name.
    """
    if not _TRANSPORT.fullmatch(name):
        raise ConfigurationError(f"transport {name!r}: a name has lower-case letters, digits and _, at most 32")
    return name


def _mailbox(text: str | None, where: str) -> Address | None:
    try:
        return parse_mailbox(text, where=where) if text is not None else None
    except AddressInvalid as error:
        raise ConfigurationError(str(error)) from None


def _check_unsubscribe(url: str, mailto: str) -> None:
    if url and not _UNSUBSCRIBE_URL.fullmatch(url):
        raise ConfigurationError(
            "EFFECTS_UNSUBSCRIBE_URL is not an https URL of ASCII characters without a fragment (RFC 8058 asks for "
            "https; http://localhost is taken too), such as https://shop.example/unsubscribe/"
        )
    if mailto and not _UNSUBSCRIBE_MAILTO.fullmatch(mailto):
        raise ConfigurationError("EFFECTS_UNSUBSCRIBE_MAILTO is not a plain address, such as unsubscribe@shop.example")


def _check_dkim(text: str, sender: Address | None) -> None:
    domains = sorted({entry.domain for entry in parse_entries(text)})
    if domains and sender is not None and signing_domain(sender.domain, domains) is None:
        raise ConfigurationError(
            f"{DKIM_KEYS} has no key for {sender.domain}, the domain of EFFECTS_EMAIL_FROM; it has keys for "
            f"{', '.join(domains)}"
        )
