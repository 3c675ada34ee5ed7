"""Every spelling of every address that must not be reached: refused, and no socket of ours connects."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from effects import ConfigurationError
from effects.kit.addresses import Private, allowed, private_networks
from effects.kit.guarded import GuardedNetwork
from effects.kit.network import Resolver
from effects_webhooks import EndpointInvalid
from effects_webhooks.endpoint_values import check_url
from effects_webhooks.transport.exchange import WebhookExchange
from tests.peers.http import Answer, Receiver
from tests.peers.raw import RawPeer
from tests.support.blocking_posts import BlockingTransports

_watching: list[list[Any]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        for seen in _watching:
            seen.append(arguments[1])


sys.addaudithook(_note)  # CPython calls it for every connect of this process, whoever makes it


@contextmanager
def connects() -> Iterator[list[Any]]:
    """The addresses that sockets of this process connect to meanwhile."""
    seen: list[Any] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)


def hostile(host: str, port: int) -> Sequence[str]:
    """What the system makes of numbers, in whatever base; every name is the metadata service."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return ["169.254.169.254"]
    return [str(address[4][0]) for address in addresses]


def post(url: str, *, allow_private: Private = False, resolver: Resolver = hostile) -> WebhookExchange:
    transports = BlockingTransports(GuardedNetwork(allow_private=allow_private, resolver=resolver))
    try:
        return transports.post(url, {}, b"{}", seconds=5)
    finally:
        transports.close()


def spellings(address: str) -> list[str]:
    """The ways to write an IPv4 address that some parser takes."""
    a, b, c, d = (int(part) for part in address.split("."))
    number = int(ipaddress.IPv4Address(address))
    groups = f"{a:02x}{b:02x}:{c:02x}{d:02x}"
    wide = address.translate({ord(digit): 0xFF10 + int(digit) for digit in "0123456789"})
    circled = address.translate({ord(str(digit)): 0x2460 + digit - 1 for digit in range(1, 10)})
    return [
        address, f"{address}.", str(number), f"0x{number:x}", f"0X{number:X}", f"0{number:o}",
        f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}", f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0{a:o}.{b}.0x{c:x}.{d}",
        f"{a}.{(b << 16) + (c << 8) + d}", f"{a}.{b}.{(c << 8) + d}", f"0x{a:x}.{b}.{(c << 8) + d}",
        wide, circled, address.replace(".", "。"), address.replace(".", "%2e"),
        f"[::ffff:{address}]", f"[::ffff:{groups}]", f"[0:0:0:0:0:ffff:{groups}]", f"[::{address}]",
        f"[64:ff9b::{groups}]", f"[2002:{groups}::]", f"[::ffff:0:{groups}]", f"[fe80::5efe:{groups}]",
        f"{address}.nip.io",
    ]  # fmt: skip


PRIVATE = ["127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1"]
METADATA = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.0.0.0"]
OTHERS = [
    "localhost", "LOCALHOST", "localhost.", "metadata.google.internal", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]",
    "[fd00:ec2::254]", "[fd20:ce::254]", "[fe80::1]", "[fe80::1%25eth0]", "[fe80::a9fe:a9fe%251]", "[fec0::1]",
    "[ff02::1]", "[fc00::1]", "[100::1]", "[2001:db8::1]", "[2001::1]", "[3fff::1]", "[5f00::1]", "0", "0x0",
    "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.2.1", "192.88.99.1", "127.1", "127.0.1",
    "127.255.255.254", "example.com@127.0.0.1", "127.0.0.1:80@127.0.0.1", "127.0.0.1\\@example.com",
    "example.com\\@127.0.0.1", "127.0.0.1#@example.com", "127.0.0.1%00.example.com", "127.0.0.1%09",
    "127.0.0.1%20", "①②⑦.⓪.⓪.①", "xn--127-0-0-1", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "[::ffff:127.0.0.1]:80", "[::1]:443",
]  # fmt: skip
CORPUS = [*(spelling for address in (*PRIVATE, *METADATA) for spelling in spellings(address)), *OTHERS]


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len(set(CORPUS)) >= 250


def refused(url: str, *, allow_private: Private = False) -> bool:
    """Whether a post ends without a connection and without a response."""
    with connects() as seen:
        exchange = post(url, allow_private=allow_private)
    blocked = exchange.failure in ("blocked_address", "bad_url")
    return blocked and not seen and not exchange.wrote and exchange.status is None


@pytest.mark.slow
def test_nothing_is_connected_to() -> None:
    urls = [f"{scheme}://{host}/latest/meta-data/" for scheme in ("http", "https") for host in CORPUS]
    assert [url for url in urls if not refused(url)] == []


def test_metadata_stays_blocked_when_private_networks_are_allowed() -> None:
    hosts = [spelling for address in METADATA for spelling in spellings(address)]
    open_networks = (True, private_networks("10.0.0.0/8, 127.0.0.0/8, fd00::/8", "EFFECTS_PRIVATE_NETWORKS"))
    cases = [(host, allowed) for host in hosts for allowed in open_networks]
    assert [case for case in cases if not refused(f"http://{case[0]}/", allow_private=case[1])] == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fd00:ec2::254", "::ffff:10.0.0.1"]
)
@pytest.mark.parametrize("first", [True, False])
def test_one_forbidden_address_among_good_ones_refuses_all(address: str, first: bool) -> None:
    good = ["1.1.1.1", "2606:4700:4700::1111"]
    answers = [address, *good] if first else [*good, address]
    with connects() as seen:
        exchange = post("https://partner.example/", resolver=lambda host, port: answers)
    assert (exchange.failure, seen) == ("blocked_address", [])


def test_a_rebound_name_is_vetted_again() -> None:
    lookups: list[str] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        lookups.append(host)
        return ["127.0.0.2"] if len(lookups) == 1 else ["127.0.0.1"]

    only = private_networks("127.0.0.2/32", "EFFECTS_PRIVATE_NETWORKS")
    with RawPeer(lambda connection: None, host="127.0.0.2") as peer, connects() as seen:
        url = f"http://partner.example:{peer.port}/"
        transports = BlockingTransports(GuardedNetwork(allow_private=only, resolver=rebinding))
        assert transports.post(url, {}, b"{}", seconds=5).failure == "no_answer"
        assert transports.post(url, {}, b"{}", seconds=5).failure == "blocked_address"
        transports.close()
        assert seen == [("127.0.0.2", peer.port)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_metadata_is_not_followed(status: int) -> None:
    to = {"location": "http://169.254.169.254/latest/meta-data/", "refresh": "0; url=http://169.254.169.254/"}
    with Receiver([Answer(status, headers=to)]) as receiver, connects() as seen:
        assert post(receiver.url, allow_private=True).status == status
        assert seen == [("127.0.0.1", receiver.port)]


def test_proxies_in_the_environment_get_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with RawPeer(lambda connection: None) as proxy, Receiver() as receiver, connects() as seen:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            value = "" if name == "no_proxy" else f"http://127.0.0.1:{proxy.port}"
            monkeypatch.setenv(name, value)
            monkeypatch.setenv(name.upper(), value)
        assert post(receiver.url, allow_private=True).status == 200
        assert post("http://169.254.169.254/", allow_private=True).failure == "blocked_address"
        assert seen == [("127.0.0.1", receiver.port)]
        assert proxy.accepted == 0


# -- the list of networks ------------------------------------------------------------------------------------------


def test_a_list_allows_its_networks_and_nothing_else() -> None:
    networks = private_networks("10.1.0.0/16, fd12::/16", "EFFECTS_PRIVATE_NETWORKS")
    verdicts = {
        address: allowed(ipaddress.ip_address(address), allow_private=networks)
        for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "10.2.0.1", "127.0.0.1", "fd13::1", "1.1.1.1")
    }
    assert verdicts == {
        "10.1.2.3": True, "::ffff:10.1.2.3": True, "fd12::1": True, "10.2.0.1": False, "127.0.0.1": False,
        "fd13::1": False, "1.1.1.1": True,
    }  # fmt: skip
    assert check_url("https://10.1.2.3/", allow_private=networks)
    for url in ("http://10.1.2.3/", "https://10.1.2.3:25/", "https://10.2.0.1/"):
        with pytest.raises(EndpointInvalid):
            check_url(url, allow_private=networks)


@pytest.mark.parametrize("text", ["0.0.0.0/0", "169.254.0.0/16", "8.8.8.0/24", "10.0.0.1/8", "fe80::/10", "x", "::/0"])
def test_a_list_holds_private_networks_only(text: str) -> None:
    with pytest.raises(ConfigurationError, match="EFFECTS_PRIVATE_NETWORKS"):
        private_networks(text, "EFFECTS_PRIVATE_NETWORKS")
