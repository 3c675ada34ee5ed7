"""One SMTP server as its URL describes it: where, how safe, how patient."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from effects_email.transport.progress import Timeouts
from effects_email.transport.url import TransportURL

Security: TypeAlias = Literal["none", "starttls", "tls"]
_PORTS: dict[Security, int] = {"none": 25, "starttls": 587, "tls": 465}
_OPTIONS = (
    "tls", "ca_file", "helo", "timeout", "connect_timeout", "answer_timeout", "connections", "messages_per_connection",
    "connection_seconds", "idle_seconds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Server:
    """Facts only.

    Args:
        ca_file: PEM file of a private certificate authority; it replaces the system's.
        helo: what we call ourselves in EHLO. Default: this machine's name, if it has a domain, else its address.
        connections: open at once, at most. Default 20.
        messages_per_connection, connection_seconds: a connection is left after so many or so long. 100 and 300.
        idle_seconds: an idle connection is closed after this. Default 5.
    """

    name: str
    host: str
    port: int
    security: Security
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    helo: str | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    connections: int = 20
    messages_per_connection: int = 100
    connection_seconds: float = 300.0
    idle_seconds: float = 5.0

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """TLS 1.2 or later, certificate and host name verified; one for all connections."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
        return context


def server_of(url: TransportURL) -> Server:
    """Read a `smtp`, `smtps` or `smtp+starttls` URL.

    Raises:
        ConfigurationError: it lacks a host, has a path, would send in clear to another machine, holds half of the
            credentials, or an option that there is not.
    """
    security: Security = {"smtps": "tls", "smtp+starttls": "starttls"}.get(url.scheme, "none")  # type: ignore[assignment]
    if not url.host:
        url.refuse(f"names no host; give {url.scheme}://mail.example.com")
    if url.path not in ("", "/"):
        url.refuse("has a path; an SMTP URL has no path")
    _check_clear(url, security)
    _check_credentials(url)
    server = Server(
        name=url.name,
        host=url.host,
        port=url.port if url.port is not None else _PORTS[security],
        security=security,
        user=url.user,
        password=url.password,
        ca_file=url.option("ca_file"),
        helo=url.option("helo"),
        timeouts=Timeouts(
            connect_seconds=url.number("connect_timeout", 15, lowest=1, highest=120),
            stage_seconds=url.number("timeout", 30, lowest=0.1, highest=300),
            answer_seconds=url.number("answer_timeout", 600, lowest=0.1, highest=3600),
        ),
        connections=int(url.number("connections", 20, lowest=1, highest=1000)),
        messages_per_connection=int(url.number("messages_per_connection", 100, lowest=1, highest=100_000)),
        connection_seconds=url.number("connection_seconds", 300, lowest=1, highest=86_400),
        idle_seconds=url.number("idle_seconds", 5, lowest=0, highest=300),
    )
    url.end(*_OPTIONS)
    _check_files(url, server)
    return server


def _check_clear(url: TransportURL, security: Security) -> None:
    said = url.option("tls", among=("none",))
    if security != "none" and said:
        url.refuse(f"says both {url.scheme} and tls=none")
    if security == "none" and not said and not _is_loopback(url.host):
        url.refuse(
            "would send in clear to another machine; give smtp+starttls:// or smtps://, or ?tls=none if that is meant"
        )


def _check_credentials(url: TransportURL) -> None:
    if (url.user is None) is not (url.password is None) or url.user == "" or url.password == "":
        url.refuse("has a user without a password, or the other way round")
    if not f"{url.user}{url.password}".isascii():
        url.refuse("has credentials that are not ASCII, which SMTP's AUTH as Python has it cannot carry")


def _check_files(url: TransportURL, server: Server) -> None:
    if server.helo is not None and not re.fullmatch(r"[A-Za-z0-9.:\[\]-]{1,255}", server.helo):
        url.refuse("has an option helo that is no host name")
    if server.ca_file is not None:
        if server.security == "none":
            url.refuse("has an option ca_file, which goes with smtps:// and smtp+starttls://")
        try:
            _ = server.tls
        except (OSError, ssl.SSLError):
            url.refuse("has an option ca_file that cannot be read as PEM certificates")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
