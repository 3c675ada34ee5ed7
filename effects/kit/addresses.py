"""Which addresses a request may reach whose target others choose: whoever adds an endpoint or a bucket.

The table is our own: `ipaddress.is_global` lets multicast, NAT64, 6to4, IPv4-compatible and site-local addresses pass.
Of IPv6 only 2000::/3 is public, so that what is not yet given out stays shut. What counts is the address that is
connected to, after resolution: `127.1`, `0x7f000001` and `2130706433` are all loopback. Settings read this at a start,
which must load nothing of HTTP.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

from effects.errors import ConfigurationError
from effects.kit.arguments import shown
from effects.model.outcome import Refused

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Private: TypeAlias = bool | tuple[Network, ...]  # which private addresses are open: none, all, or some networks

# Never open: clouds hand out credentials at some, others have no unicast host.
_NEVER_4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "100.100.100.200/32",  # Alibaba Cloud metadata
        "168.63.129.16/32",  # Azure's platform address, which looks public
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "192.0.0.0/24",  # IETF protocol assignments; Oracle Cloud metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
]
_NEVER_6 = [
    IPv6Network(text)
    for text in (
        "2001::/23",  # IETF protocol assignments: Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: carries an IPv4 address
        "3fff::/20",  # documentation
        "fd00:42::42/128",  # Scaleway metadata (cloud-init, DataSourceScaleway)
        "fd00:100::100:200/128",  # Alibaba Cloud metadata (ECS user guide, instance metadata)
        "fd00:a9fe:a9fe::/48",  # Akamai (Linode) metadata (techdocs.akamai.com, Metadata service API)
        "fd00:c1::/32",  # Oracle Cloud metadata, fd00:c1::a9fe:a9fe (cloud-init, DataSourceOracle)
        "fd00:ec2::/32",  # AWS: metadata ::254, EKS Pod Identity ::23 (EC2 and EKS user guides)
        "fd20:ce::/32",  # Google Cloud metadata, fd20:ce::254 (Compute Engine, querying metadata)
    )
]
# Addresses of metadata services that an operator's NAT64 prefix may carry (RFC 6052 §2.2): behind 32, 40, 48, 56, 64 or
# 96 bits, and around the octet that follows the 64th.
_CARRIED = frozenset(
    IPv4Address(text)
    for text in (
        "100.100.100.200",
        "168.63.129.16",
        "169.254.0.23",  # Tencent Cloud
        "169.254.42.42",  # Scaleway
        "169.254.169.254",
        "169.254.170.2",  # AWS ECS
        "169.254.170.23",  # AWS EKS
        "192.0.0.192",
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")

# Open where the operator says so.
_PRIVATE_4 = [
    IPv4Network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
]
_PRIVATE_6 = [IPv6Network("::1/128"), IPv6Network("fc00::/7")]

_WEB_PORTS, _SYSTEM_PORTS = (80, 443), 1024


@dataclass(eq=False)
class AddressRefused(Refused):
    """The endpoint's address is not allowed."""

    # One text for every reason, and no address in it: the answer must not serve to map a network.
    message: str = "the endpoint's address is not allowed"
    code: str = "blocked_address"


def private_networks(text: str, variable: str) -> tuple[Network, ...]:
    """The networks that a setting opens, such as `10.1.0.0/16`, comma-separated.

    Args:
        text: of the setting.
        variable: its name, for the error.

    Raises:
        ConfigurationError: an entry is not a network, is not private, or would stay blocked.
    """
    networks = []
    for part in filter(None, (network.strip() for network in text.split(","))):
        try:
            network = ipaddress.ip_network(part)
        except ValueError:
            raise ConfigurationError(f"{variable} holds {shown(part)}; give networks such as 10.1.0.0/16") from None
        if not _within(network, [*_PRIVATE_4, *_PRIVATE_6]):
            raise ConfigurationError(f"{variable} holds {shown(part)}, which is not within a private network")
        if _within(network, [*_NEVER_4, *_NEVER_6]):
            raise ConfigurationError(
                f"{variable} holds {shown(part)}, which is never opened: a cloud's metadata service is there"
            )
        networks.append(network)
    return tuple(networks)


def _within(network: Network, outer: Sequence[Network]) -> bool:
    return any(network.version == wider.version and network.subnet_of(wider) for wider in outer)  # type: ignore[arg-type]


def allowed(address: Address, *, allow_private: Private = False) -> bool:
    """Whether a request may go to this address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return allowed(address.ipv4_mapped, allow_private=allow_private)
        if address.scope_id is not None or any(address in network for network in _NEVER_6):
            return False
        if any(carried in _CARRIED for carried in _carried(address)):
            return False
        if any(address in network for network in _PRIVATE_6):
            return _opens(allow_private, address)
        return address in _PUBLIC_6
    if any(address in network for network in _NEVER_4):
        return False
    return not any(address in network for network in _PRIVATE_4) or _opens(allow_private, address)


def _carried(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that this one would stand for, by the length of a NAT64 prefix."""
    octets = address.packed
    yield IPv4Address(octets[12:])
    around = octets[:8] + octets[9:]
    yield from (IPv4Address(around[start : start + 4]) for start in range(4, 9))


def _opens(allow_private: Private, address: Address) -> bool:
    return allow_private if isinstance(allow_private, bool) else any(address in network for network in allow_private)


def host_allowed(host: str, *, allow_private: Private = False) -> bool:
    """Whether a request may go to this host, as far as that is known before a name is resolved."""
    literal = literal_address(host)
    return literal is None or allowed(literal, allow_private=allow_private)


def is_web_port(port: int | None) -> bool:
    """Whether a port may be one of the web: none, 80, 443, or one that no system service has."""
    return port is None or port in _WEB_PORTS or port >= _SYSTEM_PORTS


def literal_address(host: str) -> Address | None:
    """The address that a host is, in any spelling, without a resolver."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))  # 127.1, 0x7f.1, 2130706433
    except (OSError, ValueError):
        return None
