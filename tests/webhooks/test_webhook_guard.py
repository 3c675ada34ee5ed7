"""Which addresses are reached, in every spelling; and that a refused one is never connected to."""

from __future__ import annotations

import ipaddress
import itertools
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import ConfigurationError
from effects.kit.addresses import allowed, private_networks
from effects.kit.guarded import GuardedNetwork
from effects.kit.network import Resolver, system_resolver
from effects_webhooks import EndpointInvalid
from effects_webhooks.endpoint_values import check_url
from effects_webhooks.transport.exchange import WebhookExchange
from tests.conftest import AppFactory
from tests.peers.raw import RawPeer
from tests.support.blocking_posts import BlockingTransports

# Metadata services and what else clouds answer at from inside: vendor, page, address.
METADATA = [
    ("AWS", "EC2 user guide: access instance metadata", "169.254.169.254"),
    ("AWS", "EC2 user guide: access instance metadata", "fd00:ec2::254"),
    ("AWS", "ECS developer guide: task IAM role", "169.254.170.2"),
    ("AWS", "EKS user guide: Pod Identity Agent", "169.254.170.23"),
    ("AWS", "EKS user guide: Pod Identity Agent", "fd00:ec2::23"),
    ("Google Cloud", "Compute Engine: view and query VM metadata", "fd20:ce::254"),
    ("Azure", "Virtual network: what is IP address 168.63.129.16", "168.63.129.16"),
    ("Alibaba Cloud", "ECS user guide: instance metadata", "100.100.100.200"),
    ("Alibaba Cloud", "ECS user guide: instance metadata", "fd00:100::100:200"),
    ("Oracle Cloud", "cloud-init: DataSourceOracle", "fd00:c1::a9fe:a9fe"),
    ("Oracle Cloud Classic", "instance metadata", "192.0.0.192"),
    ("Scaleway", "cloud-init: DataSourceScaleway", "169.254.42.42"),
    ("Scaleway", "cloud-init: DataSourceScaleway", "fd00:42::42"),
    ("Tencent Cloud", "CVM: query instance metadata", "169.254.0.23"),
    ("Akamai (Linode)", "Metadata service API", "fd00:a9fe:a9fe::1"),
    ("OpenStack", "Neutron: metadata over IPv6", "fe80::a9fe:a9fe"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700:4700::1111",
          "2a00:1450:4001:81b::200e", "2400:cb00::1"]  # fmt: skip
PRIVATE = ["127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
           "::1", "fc00::1", "fd12:3456::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"]  # fmt: skip
NEVER = [
    # metadata and link-local
    "169.254.169.254", "169.254.170.2", "169.254.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe",
    # unspecified, broadcast, multicast, reserved, documentation, benchmarks
    "0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "192.0.2.1", "198.51.100.1",
    "203.0.113.1", "198.18.0.1", "192.88.99.1", "192.0.0.8", "::", "ff02::1", "ff0e::1", "2001:db8::1", "3fff::1",
    # addresses that carry another: NAT64, 6to4, compatible, SIIT, Teredo, ISATAP
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::", "::7f00:1",
    "::127.0.0.1", "::ffff:0:7f00:1", "2001::1", "2001:0:7f00:1::", "::5efe:7f00:1",
    # site-local, segment routing, discard, not given out
    "fec0::1", "5f00::1", "100::1", "4000::1", "1::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert allowed(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_the_setting(address: str) -> None:
    assert not allowed(ipaddress.ip_address(address))
    assert allowed(ipaddress.ip_address(address), allow_private=True)


@pytest.mark.parametrize("address", NEVER)
def test_metadata_and_special_addresses_are_never_allowed(address: str) -> None:
    assert not allowed(ipaddress.ip_address(address))
    assert not allowed(ipaddress.ip_address(address), allow_private=True)


def embeddings(address: str) -> list[str]:
    """An address, and an IPv4 one as IPv6 may carry it."""
    if ":" in address:
        return [address, str(ipaddress.ip_address(address)).upper(), ipaddress.ip_address(address).exploded]
    number = int(ipaddress.IPv4Address(address))
    low = f"{number >> 16:x}:{number & 0xFFFF:x}"
    prefixes = ("::ffff:", "::", "64:ff9b::", "64:ff9b:1::", "2600:1234::", "fd12:3456::", "fd00:64::", "fe80::5efe:")
    inside = [f"::ffff:{address}", f"2002:{low}::", *(prefix + low for prefix in prefixes), *behind_nat64(address)]
    return [address, *inside]


def behind_nat64(address: str) -> list[str]:
    """The address as an operator's NAT64 carries it, by the length of its prefix (RFC 6052 §2.2)."""
    a, b, c, d = ipaddress.IPv4Address(address).packed
    return [
        f"2600:1234:{a:02x}{b:02x}:{c:02x}{d:02x}::", f"2600:1234:56{a:02x}:{b:02x}{c:02x}:{d:02x}::",
        f"2600:1234:5678:{a:02x}{b:02x}:{c:02x}:{d:02x}00::", f"2600:1234:5678:9a{a:02x}:{b:02x}:{c:02x}{d:02x}::",
        f"2600:1234:5678:9abc:{a:02x}:{b:02x}{c:02x}:{d:02x}00::",
        f"fd12:3456:{a:02x}{b:02x}:{c:02x}{d:02x}::7",
    ]  # fmt: skip


@pytest.mark.parametrize(("vendor", "source", "address"), METADATA)
def test_cloud_metadata_stays_blocked_whatever_is_allowed(vendor: str, source: str, address: str) -> None:
    opened = (
        False,
        True,
        private_networks(
            "10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16, fc00::/7", "EFFECTS_PRIVATE_NETWORKS"
        ),
    )
    for form, allow_private in itertools.product(embeddings(address), opened):
        assert not allowed(ipaddress.ip_address(form), allow_private=allow_private), (vendor, form)


def test_neighbours_of_metadata_are_allowed_with_their_network() -> None:
    for address in ("fd00:42::43", "fd00:100::1", "fd00:64::a00:1", "100.100.100.201"):
        assert allowed(
            ipaddress.ip_address(address),
            allow_private=private_networks("100.64.0.0/10, fd00::/8", "EFFECTS_PRIVATE_NETWORKS"),
        )


def test_a_list_that_allows_nothing_is_refused_at_the_start(app_factory: AppFactory) -> None:
    for text in ("fd00:ec2::/32", "fd00:ec2::254/128", "fd20:ce::/64", "fd00:42::42/128", "100.100.100.200/32"):
        with pytest.raises(ConfigurationError, match="never opened"):
            app_factory(job_types=[], private_networks=f"10.0.0.0/8, {text}")


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_python_calls_not_global_is_never_allowed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if allowed(address) and getattr(address, "ipv4_mapped", None) is None:
        assert address.is_global
        assert not address.is_multicast


SPELLINGS = ["127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001",
             "localhost", "localhost.", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]",
             "１２７.０.０.１", "0.0.0.0", "0", "[::]"]  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_loopback_is_connected_to(host: str) -> None:
    with RawPeer(lambda connection: None) as peer:
        for url in (f"http://{host}:{peer.port}/", f"https://{host}:{peer.port}/"):
            exchange = post(url)
            # A resolver may not know a spelling; then, too, nothing is sent.
            assert exchange.failure in ("blocked_address", "dns_failed", "bad_url")
            assert not exchange.wrote
        connects(peer, 0)


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["1.1.1.1", "127.0.0.1"],
        ["127.0.0.1", "1.1.1.1"],
        ["2606:4700:4700::1111", "::1"],
        ["::ffff:10.0.0.1"],
    ],
)
def test_one_forbidden_address_of_the_resolver_refuses_all(answers: list[str]) -> None:
    with RawPeer(lambda connection: None) as peer:
        exchange = post(f"http://partner.example:{peer.port}/", resolver=lambda host, port: answers)
        assert exchange.failure == "blocked_address"
        assert exchange.reason == "the endpoint's address is not allowed"
        connects(peer, 0)


def test_a_name_is_resolved_once_a_connection() -> None:
    lookups: list[str] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        lookups.append(host)
        return ["127.0.0.1"] if len(lookups) > 1 else ["198.18.0.1"]

    with RawPeer(lambda connection: None) as peer:
        assert post(f"http://partner.example:{peer.port}/", resolver=rebinding).failure == "blocked_address"
        assert lookups == ["partner.example"]
        connects(peer, 0)


def test_private_addresses_are_reached_with_the_setting_and_metadata_is_not() -> None:
    with RawPeer(lambda connection: None) as peer:
        post(f"http://127.0.0.1:{peer.port}/", allow_private=True)
        connects(peer, 1)
    assert post("http://169.254.169.254/", allow_private=True).failure == "blocked_address"


def test_a_proxy_in_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with RawPeer(lambda connection: None) as peer:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{peer.port}")
        exchange = post("http://partner.example/", resolver=lambda host, port: ["10.0.0.1"])
        assert exchange.failure == "blocked_address"
        connects(peer, 0)


def test_an_unresolvable_name_sends_nothing() -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    assert post("http://partner.example/", resolver=unknown).failure == "dns_failed"
    assert post("http://partner.example/", resolver=lambda host, port: []).failure == "dns_failed"
    assert post(f"http://{'a' * 64}.example/").failure in ("dns_failed", "bad_url")


# -- the early check of a URL ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["https://example.com", "https://example.com/hooks?token=1", "https://example.com:8443/", "https://example.com:443/",
     "https://bücher.example/", "https://1.1.1.1/", "https://[2606:4700:4700::1111]/", "HTTPS://EXAMPLE.COM/"],
)  # fmt: skip
def test_urls_that_may_be_added(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.com/", "https"),
        ("ftp://example.com/", "https"),
        ("example.com/hooks", "https"),
        ("", "https"),
        ("https:///hooks", "host"),
        ("https://user:secret@example.com/", "user name"),
        ("https://user@example.com/", "user name"),
        ("https://example.com:99999/", "port|URL"),
        ("https://example.com:0/", "port"),
        ("https://example.com:25/", "port"),
        ("https://example.com:x/", "URL"),
        ("https://exa mple.com/", "space"),
        ("https://example.com/\r\nX-Injected: 1", "control"),
        ("https://example.com/\x00", "control"),
        ("https://example.com/" + "a" * 2048, "2048"),
        ("https://[::1/", "URL"),
        ("https://127.0.0.1/", "not allowed"),
        ("https://127.1/", "not allowed"),
        ("https://2130706433/", "not allowed"),
        ("https://0x7f000001/", "not allowed"),
        ("https://[::ffff:127.0.0.1]/", "not allowed"),
        ("https://169.254.169.254/latest/meta-data", "not allowed"),
        ("https://１２７.０.０.１/", "not a URL"),
        ("https://xn--127-0-0-1/", "not a URL"),
    ],
)
def test_urls_that_are_refused_early_with_a_reason(url: str, says: str) -> None:
    with pytest.raises(EndpointInvalid, match=says) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


def test_the_setting_allows_http_private_addresses_and_ports_but_not_metadata() -> None:
    assert check_url("http://127.0.0.1:81/", allow_private=True)
    with pytest.raises(EndpointInvalid, match="not allowed"):
        check_url("http://169.254.169.254/", allow_private=True)


def post(url: str, *, allow_private: bool = False, resolver: Resolver = system_resolver) -> WebhookExchange:
    transports = BlockingTransports(GuardedNetwork(allow_private=allow_private, resolver=resolver))
    try:
        return transports.post(url, {}, b"{}", seconds=5)
    finally:
        transports.close()


def connects(peer: RawPeer, count: int) -> None:
    """So many connections reached the listening socket. Ours comes last, so that none is still on its way."""
    with socket.create_connection(("127.0.0.1", peer.port), timeout=5) as ours:
        assert ours.recv(1) == b""
    assert peer.accepted == count + 1
