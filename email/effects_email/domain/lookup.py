"""Questions to the DNS that never take longer than they may, all of them together."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dns.exception
import dns.inet
import dns.resolver

from effects import ConfigurationError

_QUERY_SECONDS = 2.0


class DnsUnavailable(Exception):
    """No name server answered in time, or each failed. Nothing is known of the name that was asked for."""


def _host_and_port(nameserver: str) -> tuple[str, int]:
    """
    Raises:
        ValueError: the port is no number.
    """
    host, colon, port = nameserver.rpartition(":")
    if not colon or dns.inet.is_address(nameserver):  # the colons of an IPv6 address
        return nameserver, 53
    return host.strip("[]"), int(port)


class Lookup:
    """Asks the system's name servers, or one of your choice.

    Args:
        seconds: for all questions together.
        nameserver: `9.9.9.9`, `127.0.0.1:5353`, `2620:fe::fe` or `[::1]:5353`; default those of /etc/resolv.conf.

    Raises:
        ConfigurationError: `nameserver` is no IP address with or without a port.
    """

    def __init__(self, *, seconds: float, nameserver: str = "") -> None:
        self._ends = time.monotonic() + seconds
        self._resolver: dns.resolver.Resolver | None = None
        try:
            self._resolver = dns.resolver.Resolver(configure=not nameserver)
            if nameserver:
                host, self._resolver.port = _host_and_port(nameserver)
                self._resolver.nameservers = [host]
        except dns.resolver.NoResolverConfiguration:
            self._resolver = None
        except ValueError:
            raise ConfigurationError(
                "EFFECTS_EMAIL_NAMESERVER is no IP address, with or without a port, such as 9.9.9.9 or 127.0.0.1:5353"
            ) from None

    def txt(self, name: str) -> list[str]:
        """The TXT records of a name; none if there is no such name.

        Raises:
            DnsUnavailable: no answer came in time.
        """
        return [b"".join(record.strings).decode("ascii", "replace") for record in self._ask(name, "TXT")]

    def mx(self, name: str) -> list[str]:
        """The hosts that take mail of a domain, the preferred first; `.` is the one that takes none (RFC 7505).

        Raises:
            DnsUnavailable: no answer came in time.
        """
        records = sorted(self._ask(name, "MX"), key=lambda record: int(record.preference))
        return [str(record.exchange).rstrip(".") or "." for record in records]

    def has_address(self, name: str) -> bool:
        """Whether a host has an address.

        Raises:
            DnsUnavailable: no answer came in time.
        """
        return any(self._ask(name, kind) for kind in ("A", "AAAA"))

    def _ask(self, name: str, kind: str) -> Sequence[dns.resolver.Answer]:
        seconds = min(_QUERY_SECONDS, self._ends - time.monotonic())
        if seconds <= 0 or self._resolver is None:
            raise DnsUnavailable(name)
        try:
            return list(self._resolver.resolve(name, kind, lifetime=seconds, search=False, raise_on_no_answer=False))
        except dns.resolver.NXDOMAIN:
            return []
        except (dns.exception.DNSException, OSError):
            raise DnsUnavailable(name) from None
