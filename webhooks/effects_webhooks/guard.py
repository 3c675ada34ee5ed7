"""Which addresses a webhook may reach. Whoever adds an endpoint chooses where our request goes.

The table is our own: `ipaddress.is_global` lets multicast, NAT64, 6to4, IPv4-compatible and site-local
addresses pass. Of IPv6 only 2000::/3 is public, so that what is not yet given out stays shut. What counts is
the address that is connected to, after resolution: `127.1`, `0x7f000001` and `2130706433` are all loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, TypeAlias

import httpx

from effects.errors import ConfigurationError, Refused
from effects_webhooks.errors import EndpointInvalid

if TYPE_CHECKING:
    from effects.app import Effects

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Private: TypeAlias = bool | tuple[Network, ...]  # which private addresses are open: none, all, or some networks
URL_CHARS_MAX = 2048
_WEB_PORTS = (80, 443)
_SYSTEM_PORTS = 1024

# Never, whatever the settings: clouds hand out credentials at some, others have no unicast host behind them.
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
        "fd00:ec2::/32",  # AWS metadata
        "fd20:ce::/32",  # Google Cloud metadata
    )
]
_PUBLIC_6 = IPv6Network("2000::/3")

# With EFFECTS_ALLOW_PRIVATE_ADDRESSES.
_PRIVATE_4 = [
    IPv4Network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
]
_PRIVATE_6 = [IPv6Network("::1/128"), IPv6Network("fc00::/7")]


class AddressRefused(Refused):
    """The endpoint's address is not allowed."""

    # One text for every reason, and no address in it: the answer must not serve to map a network.
    def __init__(self) -> None:
        super().__init__("the endpoint's address is not allowed", code="blocked_address")


def private_networks(text: str) -> tuple[Network, ...]:
    """EFFECTS_PRIVATE_NETWORKS: networks such as `10.1.0.0/16`, comma-separated.

    Raises:
        ConfigurationError: names the one that is none, or is not private.
    """
    networks = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        try:
            network = ipaddress.ip_network(part)
        except ValueError:
            raise ConfigurationError(
                f"EFFECTS_PRIVATE_NETWORKS holds {part!r}; give networks such as 10.1.0.0/16"
            ) from None
        known: list[Network] = [*_PRIVATE_4, *_PRIVATE_6]
        if not any(network.version == one.version and network.subnet_of(one) for one in known):  # type: ignore[arg-type]
            raise ConfigurationError(f"EFFECTS_PRIVATE_NETWORKS holds {part!r}, which is not within a private network")
        networks.append(network)
    return tuple(networks)


def opened(app: Effects) -> Private:
    """Which private addresses this app's settings open.

    Raises:
        ConfigurationError: as `private_networks`.
    """
    return app.settings.allow_private_addresses or private_networks(app.settings.private_networks)


def allowed(address: Address, *, allow_private: Private = False) -> bool:
    """Whether a request may go to this address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return allowed(address.ipv4_mapped, allow_private=allow_private)
        if address.scope_id is not None or any(address in network for network in _NEVER_6):
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
    """Refuse early what could never be sent, with an error that says why. Nothing is resolved.

    Without `allow_private`: https only, no loopback or private address, no port below 1024 but 80 and 443. A list
    of networks opens their addresses only: https and the ports stay as they are.

    Raises:
        EndpointInvalid: what is wrong with the URL; never quotes it (it may hold a token).
    """
    if not isinstance(url, str) or len(url) > URL_CHARS_MAX:
        raise EndpointInvalid(f"url must be a text of at most {URL_CHARS_MAX} characters")
    if not url.isprintable() or " " in url:
        raise EndpointInvalid("url holds a space or a control character")
    try:
        parsed = httpx.URL(url)
        port, host = parsed.port, parsed.host  # decodes `xn--` labels, which may be none
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
        raise EndpointInvalid("url names an address that is not allowed: loopback, private, link-local or reserved")
    return url


def _check_port(port: int | None, allow_private: bool) -> None:
    if port is None or port in _WEB_PORTS:
        return
    if not 0 < port < 65536:
        raise EndpointInvalid("url has a port outside 1 to 65535")
    if port < _SYSTEM_PORTS and not allow_private:
        raise EndpointInvalid("url has a port of another service; give 443, 80, or one above 1023")


def _literal(host: str) -> Address | None:
    """The address that a host is, in whatever spelling, without asking a resolver."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))  # 127.1, 0x7f.1, 2130706433
    except (OSError, ValueError):
        return None
