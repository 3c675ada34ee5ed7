"""`open_transport`: from a URL to a transport, by the URL's scheme.

    smtp+starttls://user:password@mail.example.com:587     TLS by STARTTLS, required and verified
    smtps://user:password@mail.example.com:465             TLS from the first byte, verified
    smtp://localhost:25                                    in clear, to this machine only
    smtp://relay.internal:25?tls=none                      in clear, where you say so
    smtp+starttls+oauth://user@…?provider=microsoft&…      by OAuth tokens: see `effects_email.oauth.registration`
    resend://API_KEY@                                      Resend's API; postmark://SERVER_TOKEN@ is Postmark's
    sendgrid://API_KEY@                                    SendGrid's API
    mailgun://API_KEY@?domain=mg.shop.example              Mailgun's API
    ses:?region=eu-west-1                                  Amazon SES; needs the extra ses
    maildir:folder                                         into files, for development

A user name and a password are percent-encoded where they hold `@ : / % ?`. No error and no repr shows them, nor the
values of options.
"""

from __future__ import annotations

import importlib
import re
import ssl
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from effects import ConfigurationError
from effects_email.transport.base import Transport


class TransportURL:
    """The parts of a transport's URL, decoded, and its options, each of which must be asked for once."""

    def __init__(self, name: str, text: str, keeper: object = None) -> None:
        self.name, self.keeper = name, keeper
        try:
            parts = urlsplit(text)
            self.host, self.port = parts.hostname or "", parts.port
        except ValueError:  # its text quotes the URL
            self.refuse("is no URL: the host or the port cannot be read")
        self.scheme = parts.scheme.lower()
        self.user = unquote(parts.username) if parts.username is not None else None
        self.password = unquote(parts.password) if parts.password is not None else None
        self.path = unquote(parts.path)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        self._options = dict(pairs)
        if len(self._options) < len(pairs):
            self.refuse("names an option twice")

    def refuse(self, why: str) -> NoReturn:
        """
        Raises:
            ConfigurationError: names the transport and what is wrong with its URL.
        """
        raise ConfigurationError(f"the URL of the mail transport {self.name!r} {why}")

    def option(self, name: str, default: str | None = None, *, among: tuple[str, ...] = ()) -> str | None:
        """The value of `?name=…`."""
        value = self._options.pop(name, default)
        if among and value is not None and value not in among:
            self.refuse(f"has an option {name} that is not one of {', '.join(among)}")
        return value

    def number(self, name: str, default: float, *, lowest: float, highest: float) -> float:
        """The number in `?name=…`, within its bounds."""
        text = self._options.pop(name, None)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,7}(\.\d{1,3})?", text) or not lowest <= float(text) <= highest:
            self.refuse(f"has an option {name} that is no number from {lowest:g} to {highest:g}")
        return float(text)

    def ca_file(self, name: str) -> str | None:
        """The file of certificates that `?name=…` names; it can be read."""
        file = self.option(name)
        if file is not None:
            try:
                verifying_tls(file)
            except (OSError, ValueError):
                self.refuse(f"has an option {name} that cannot be read as PEM certificates")
        return file

    def end(self, *names: str) -> None:
        """Refuse options that no one asked for. Only the `known` ones are named: a `?` in a password makes options."""
        if self._options:
            self.refuse(f"has an unknown option; there are {', '.join(names) or 'none'}")

    def __repr__(self) -> str:
        """Without credentials and options."""
        port = f":{self.port}" if self.port else ""
        return f"TransportURL({self.scheme}://{self.host}{port})"


def verifying_tls(ca_file: str | None) -> ssl.SSLContext:
    """TLS 1.2 or later, certificate and host name verified by the authorities in this PEM file; None: the system's.

    Raises:
        OSError, ValueError: the file cannot be read as PEM certificates.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # a system may allow older ones
    context.hostname_checks_common_name = False  # a name counts where it is an alternative name (RFC 9525 §6.3)
    return context


Opener: TypeAlias = Callable[[TransportURL], Transport]

# Imported on first use: SMTP needs no HTTP client.
_BUILT_IN: Mapping[str, str] = {
    **{
        f"{scheme}{login}": "effects_email.transport.smtp.transport"
        for scheme in ("smtp", "smtps", "smtp+starttls")
        for login in ("", "+oauth", "+oauth+file", "+oauth+command")
    },
    "maildir": "effects_email.transport.maildir",
    "resend": "effects_email.transport.http_api.resend",
    "postmark": "effects_email.transport.http_api.postmark",
    "sendgrid": "effects_email.transport.http_api.sendgrid",
    "mailgun": "effects_email.transport.http_api.mailgun",
    "ses": "effects_email.transport.http_api.ses",
}
_ON_LOOP = frozenset({"resend", "postmark", "sendgrid", "mailgun", "ses"})
_registered: dict[str, tuple[Opener, bool]] = {}


def register(scheme: str, opener: Opener, *, on_loop: bool = False) -> None:
    """Let `scheme://…` be opened by this function; one of your own, or instead of a built-in one.

    Args:
        on_loop: the function returns a `LoopTransport`. Register such a one before the Effects is made.
    """
    _registered[scheme] = (opener, on_loop)


def is_on_loop(url: str) -> bool:
    """Whether the transport of this URL is a `LoopTransport`. Opens nothing; of a wrong URL, no."""
    scheme = url.partition(":")[0].lower()
    registered = _registered.get(scheme)
    return scheme in _ON_LOOP if registered is None else registered[1]


def open_transport(name: str, url: str, keeper: object = None) -> Transport:
    """The transport of this URL. Connects to nothing.

    Args:
        name: the app's name for it, used in errors, logs and rows.
        keeper: the `TokenKeeper` of one that logs in by OAuth.

    Raises:
        ConfigurationError: names the transport, what is wrong with its URL and what it may be. It quotes neither
            credentials nor options.
    """
    parsed = TransportURL(name, url, keeper)
    registered = _registered.get(parsed.scheme)
    opener = _built_in(parsed.scheme) if registered is None else registered[0]
    if opener is None:
        schemes = ", ".join(sorted({*_BUILT_IN, *_registered}))
        parsed.refuse(
            f"has the scheme {_safe(parsed.scheme)!r}; give one of {schemes}, "
            "such as smtp+starttls://user:password@mail.example.com:587"
        )
    return opener(parsed)


def _built_in(scheme: str) -> Opener | None:
    module = _BUILT_IN.get(scheme)
    if module is None:
        return None
    opener: Opener = importlib.import_module(module).open_url
    return opener


def _safe(text: str) -> str:
    """A name from a URL, if it looks like one."""
    return text if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_+.-]{0,30}", text) else "…"
