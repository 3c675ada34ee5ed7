"""Which addresses a webhook may reach. Whoever adds an endpoint chooses where our request goes.

The table is our own: `ipaddress.is_global` lets multicast, NAT64, 6to4, IPv4-compatible and site-local
addresses pass. Of IPv6 only 2000::/3 is public, so that what is not yet given out stays shut. What counts is
the address that is connected to, after resolution: `127.1`, `0x7f000001` and `2130706433` are all loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, TypeAlias

from effects import ConfigurationError, Refused
from effects.extend import is_printable, lazy
from effects_webhooks.errors import EndpointInvalid

if TYPE_CHECKING:
    import httpx
else:
    httpx = lazy.module("httpx")

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Private: TypeAlias = bool | tuple[Network, ...]  # which private addresses are open: none, all, or some networks
URL_CHARS_MAX = 2048
_WEB_PORTS = (80, 443)
_SYSTEM_PORTS = 1024

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
# Addresses of metadata services that an operator's NAT64 prefix may carry in its last 32 bits (RFC 6052 §2.2).
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

# With EFFECTS_ALLOW_PRIVATE_ADDRESSES.
_PRIVATE_4 = [
    IPv4Network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
]
_PRIVATE_6 = [IPv6Network("::1/128"), IPv6Network("fc00::/7")]


@dataclass(eq=False)
class AddressRefused(Refused):
    """The endpoint's address is not allowed."""

    # One text for every reason, and no address in it: the answer must not serve to map a network.
    message: str = "the endpoint's address is not allowed"
    code: str = "blocked_address"


def private_networks(text: str) -> tuple[Network, ...]:
    """EFFECTS_PRIVATE_NETWORKS: networks such as `10.1.0.0/16`, comma-separated.

    Raises:
        ConfigurationError: an entry is not a network, is not private, or would stay blocked.
    """
    networks = []
    for part in filter(None, (network.strip() for network in text.split(","))):
        try:
            network = ipaddress.ip_network(part)
        except ValueError:
            raise ConfigurationError(
                f"EFFECTS_PRIVATE_NETWORKS holds {part!r}; give networks such as 10.1.0.0/16"
            ) from None
        if not _within(network, [*_PRIVATE_4, *_PRIVATE_6]):
            raise ConfigurationError(f"EFFECTS_PRIVATE_NETWORKS holds {part!r}, which is not within a private network")
        if _within(network, [*_NEVER_4, *_NEVER_6]):
            raise ConfigurationError(
                f"EFFECTS_PRIVATE_NETWORKS holds {part!r}, which is never opened: a cloud's metadata service is there"
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
        if IPv4Address(int(address) & 0xFFFF_FFFF) in _CARRIED:
            return False
        if any(address in network for network in _PRIVATE_6):
            return _opens(allow_private, address)
        return address in _PUBLIC_6
    if any(address in network for network in _NEVER_4):
        return False
    return not any(address in network for network in _PRIVATE_4) or _opens(allow_private, address)


def _opens(allow_private: Private, address: Address) -> bool:
    return allow_private if isinstance(allow_private, bool) else any(address in network for network in allow_private)


def check_url(url: str, *, allow_private: Private = False) -> str:
    """Refuse an unusable URL early, with the reason. No name is resolved.

    Without `allow_private`: https only, no loopback or private address, no port below 1024 but 80 and 443. A list
    of networks opens their addresses only: https and the ports stay as they are.

    Raises:
        EndpointInvalid: what is wrong with the URL; never quotes it (it may hold a token).
    """
    if not isinstance(url, str) or len(url) > URL_CHARS_MAX:
        raise EndpointInvalid(f"url must be a text of at most {URL_CHARS_MAX} characters")
    if not is_printable(url) or " " in url:
        raise EndpointInvalid("url holds a space or a control character")
    try:
        parsed = httpx.URL(url)
        port, host = parsed.port, parsed.host  # decodes `xn--` labels, which may be invalid
    except (httpx.InvalidURL, ValueError):
        raise EndpointInvalid("url is not a URL; give one such as https://example.com/webhooks") from None
    if parsed.scheme not in (("https", "http") if allow_private is True else ("https",)):
        raise EndpointInvalid(
            "url must begin with https:// (http only where EFFECTS_ALLOW_PRIVATE_ADDRESSES allows it)"
        )
    if parsed.userinfo:
        raise EndpointInvalid("url holds a user name or password; partners verify by signature instead")
    if not host:
        raise EndpointInvalid("url names no host")
    _check_port(port, allow_private is True)
    literal = _literal(host)
    if literal is not None and not allowed(literal, allow_private=allow_private):
        raise EndpointInvalid(
            "url names an address that is not allowed: loopback, private, link-local or reserved "
            "(EFFECTS_PRIVATE_NETWORKS allows private networks)"
        )
    return url


def _check_port(port: int | None, allow_private: bool) -> None:
    if port is None or port in _WEB_PORTS:
        return
    if not 0 < port < 65536:
        raise EndpointInvalid("url has a port outside 1 to 65535")
    if port < _SYSTEM_PORTS and not allow_private:
        raise EndpointInvalid("url has a port of another service; give 443, 80, or one above 1023")


def _literal(host: str) -> Address | None:
    """The address that a host is, in any spelling, without a resolver."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))  # 127.1, 0x7f.1, 2130706433
    except (OSError, ValueError):
        return None
