"""Real peers that answer every status and break in every way: the table's class, within the deadline."""

from __future__ import annotations

import datetime as dt
import errno
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import trustme

from effects import Done, Outcome, Pause, Retry, Unknown
from effects.kit.guarded import GuardedNetwork, ResolverWatch
from effects.kit.network import Resolver
from effects_webhooks.classify import classify
from effects_webhooks.retry_rules import rule_of, rule_of_code
from effects_webhooks.transport.exchange import WebhookExchange
from tests.peers.raw import RawPeer, read_request
from tests.support.blocking_posts import BlockingTransports
from tests.support.raw_answers import HEAD, Behave, goes_on, says

BODY = b'{"type":"t","data":{"n":1}}'
DEADLINE = 1.0
SLACK = 1.0  # what the whole may take beyond its deadline


def local(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def retry_class_of(outcome: Outcome) -> str:
    return "done" if isinstance(outcome, Done) else str((getattr(outcome, "detail", None) or {})["retry_class"])


# -- every status --------------------------------------------------------------------------------------------------


def answer_the_path(connection: socket.socket) -> None:
    request = read_request(connection)
    status = int(request.split(b" ")[1].strip(b"/"))
    framing = b"" if status < 200 or status in (204, 304) else b"Content-Length: 2\r\n"
    body = b"ok" if framing else b""
    connection.sendall(b"HTTP/1.1 %d X\r\n%sConnection: close\r\n\r\n%s" % (status, framing, body))


@pytest.mark.parametrize("hundred", range(1, 6))
def test_every_status_by_a_real_peer_has_the_tables_class(transports: BlockingTransports, hundred: int) -> None:
    with RawPeer(answer_the_path) as peer:
        for status in range(hundred * 100, hundred * 100 + 100):
            exchange = transports.post(f"http://partner.test:{peer.port}/{status}", {}, BODY, seconds=20)
            outcome = classify(exchange, host="partner.test")
            assert retry_class_of(outcome) == rule_of(status).retry_class, status
            if status >= 200:
                assert exchange.status == status


# -- every way to break --------------------------------------------------------------------------------------------


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def silent(peer: RawPeer, connection: socket.socket) -> None:
    read_request(connection)
    peer.over.wait(20)


def reset_at_once(peer: RawPeer, connection: socket.socket) -> None:
    reset(connection)


def reset_in_the_handshake(peer: RawPeer, connection: socket.socket) -> None:
    connection.recv(1)
    reset(connection)


def reset_after_the_request(peer: RawPeer, connection: socket.socket) -> None:
    read_request(connection)
    reset(connection)


def half_close(peer: RawPeer, connection: socket.socket) -> None:
    read_request(connection)
    connection.shutdown(socket.SHUT_WR)
    peer.over.wait(20)


def reset_in_the_head(peer: RawPeer, connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-")
    peer.over.wait(0.05)
    reset(connection)


def never_reads(peer: RawPeer, connection: socket.socket) -> None:
    peer.over.wait(20)


@dataclass(frozen=True)
class Fault:
    name: str
    behave: Behave
    codes: tuple[str, ...]  # the fault's code, or the status that stands
    scheme: str = "http"
    body: bytes = BODY


FAULTS = [
    Fault("no answer", silent, ("answer_timeout",)),
    Fault("drips a status line", goes_on(b"", b"H"), ("answer_timeout", "bad_answer")),
    Fault("drips headers", goes_on(HEAD + b"X-Slow: ", b"a"), ("http_200",)),
    Fault("drips interim answers", goes_on(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"), ("answer_timeout",)),
    Fault("floods interim answers", goes_on(b"HTTP/1.1 100 Continue\r\n\r\n" * 40_000, b"H"), ("answer_too_long",)),
    Fault("closes after an interim answer", says(b"HTTP/1.1 100 Continue\r\n\r\n"), ("bad_answer",)),
    Fault("closes without a word", says(b""), ("no_answer",)),
    Fault("resets before the request", reset_at_once, ("no_answer", "connect_failed")),
    Fault("resets after the request", reset_after_the_request, ("no_answer",)),
    Fault("half-closes", half_close, ("no_answer",)),
    Fault("resets in the head", reset_in_the_head, ("http_200", "no_answer")),
    Fault("speaks SSH", says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), ("bad_answer",)),
    Fault("speaks HTTP/0.9", says(b"<html>hello</html>"), ("bad_answer",)),
    Fault("speaks HTTP/2", says(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80\0\x04\0\x01\0\0\0\x05\0"), ("bad_answer",)),
    Fault("one long header", goes_on(HEAD + b"X-Long: " + b"a" * 300_000, b"a"), ("http_200",)),
    Fault("many headers", goes_on(HEAD + b"X-Many: aaaaaaaa\r\n" * 20_000, b"X"), ("http_200",)),
    Fault("endless headers", goes_on(HEAD, b"X-Many: aaaaaaaa\r\n" * 400, 0), ("http_200",)),
    Fault("drips the body", goes_on(HEAD + b"Content-Length: 1000000\r\n\r\n", b"."), ("http_200",)),
    Fault(
        "drips the body of an error",
        goes_on(b"HTTP/1.1 503 X\r\nContent-Length: 1000000\r\n\r\n", b"."),
        ("http_503",),
    ),
    Fault(
        "an endless chunked body",
        goes_on(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"a" * 4096 + b"\r\n", 0),
        ("http_200",),
    ),
    Fault("an endless body until the close", goes_on(HEAD + b"\r\n", b"a" * 4096, 0), ("http_200",)),
    Fault("does not read", never_reads, ("answer_timeout",), body=b"x" * 8_000_000),
    Fault("TLS: speaks plain HTTP", says(HEAD + b"\r\n"), ("tls_failed", "tls_timeout"), scheme="https"),
    Fault("TLS: no handshake", never_reads, ("tls_timeout",), scheme="https"),
    Fault("TLS: resets", reset_in_the_handshake, ("tls_failed",), scheme="https"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_class_and_ends_in_time(transports: BlockingTransports, fault: Fault) -> None:
    with RawPeer(lambda connection: fault.behave(peer, connection)) as peer:
        exchange, took = timed(transports, f"{fault.scheme}://partner.test:{peer.port}/", fault.body)
    code = exchange.failure if exchange.status is None else f"http_{exchange.status}"
    assert code in fault.codes
    assert took <= DEADLINE + SLACK
    outcome = classify(exchange, host="partner.test")
    assert retry_class_of(outcome) == rule_of_code(code).retry_class
    assert (outcome.detail or {})["sent"] == (  # type: ignore[union-attr]
        "answered" if exchange.status else "sent_no_answer" if exchange.wrote else "not_sent"
    )
    assert exchange.wrote == (fault.scheme == "http" and code != "connect_failed")


def timed(transports: BlockingTransports, url: str, body: bytes = BODY) -> tuple[WebhookExchange, float]:
    began = time.monotonic()
    exchange = transports.post(url, {}, body, seconds=DEADLINE)
    return exchange, time.monotonic() - began


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 25


# -- names ---------------------------------------------------------------------------------------------------------


def unknown(host: str, port: int) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "no such name")


def busy(host: str, port: int) -> list[str]:
    raise socket.gaierror(socket.EAI_AGAIN, "try again")


@pytest.mark.parametrize(("resolver", "code"), [(unknown, "dns_failed"), (busy, "dns_timeout")])
def test_a_name_that_does_not_resolve_is_retried_for_long(resolver: Resolver, code: str) -> None:
    transports = BlockingTransports(GuardedNetwork(allow_private=True, resolver=resolver))
    exchange, _ = timed(transports, "http://partner.test/")
    assert (exchange.failure, exchange.wrote) == (code, False)
    assert retry_class_of(classify(exchange, host="h")) == "full"


def test_when_no_name_resolves_the_fault_is_ours() -> None:
    transports = BlockingTransports(GuardedNetwork(allow_private=True, resolver=busy))
    codes = [timed(transports, f"http://host{number}.test/")[0].failure for number in (1, 1, 1, 2, 3, 4)]
    assert codes == ["dns_timeout"] * 4 + ["our_resolver"] * 2


def test_one_name_that_resolves_shows_that_the_fault_is_not_ours() -> None:
    watch = ResolverWatch()
    assert [watch.failed(name) for name in "abc"] == [False, False, True]
    watch.worked()
    assert [watch.failed(name) for name in "abcd"] == [False] * 4


def test_a_refused_connection(transports: BlockingTransports) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    exchange, _ = timed(transports, f"http://partner.test:{port}/")
    assert (exchange.failure, exchange.wrote) == ("connect_failed", False)


# -- several addresses -----------------------------------------------------------------------------------------------

V4, FURTHER_V4, V6, FURTHER_V6 = "127.0.0.1", "127.0.0.2", "2606:4700::1111", "2606:4700::1112"
OUT_OF_PORTS, NO_FILES, NO_ROUTE = errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENETUNREACH
NO_SUCH_FAMILY, REFUSED = errno.EAFNOSUPPORT, errno.ECONNREFUSED


def post_to(monkeypatch: pytest.MonkeyPatch, numbers: Mapping[str, int], port: int) -> WebhookExchange:
    """A request to a host with these addresses; the system fails a connect with the number of its address, if not 0."""

    class Failing(socket.socket):
        def connect(self, address: Any) -> None:
            if number := numbers.get(address[0], 0):
                raise OSError(number, os.strerror(number))
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Failing)
    transports = BlockingTransports(GuardedNetwork(allow_private=True, resolver=lambda host, port: [*numbers]))
    exchange, _ = timed(transports, f"http://partner.test:{port}/")
    transports.close()
    return exchange


@pytest.mark.parametrize(
    "numbers",
    [
        {V4: REFUSED, V6: OUT_OF_PORTS},  # as where IPv6 is off
        {V6: OUT_OF_PORTS, V4: REFUSED},
        {V6: NO_SUCH_FAMILY, V4: REFUSED, FURTHER_V6: NO_ROUTE},
        {V4: REFUSED, FURTHER_V4: NO_FILES},
        {FURTHER_V4: NO_FILES, V4: REFUSED},
        {V6: REFUSED, V4: OUT_OF_PORTS},
    ],
    ids=str,
)
def test_an_address_that_fails_here_does_not_make_a_partners_failure_ours(
    monkeypatch: pytest.MonkeyPatch, numbers: dict[str, int]
) -> None:
    exchange = post_to(monkeypatch, numbers, 9)
    assert (exchange.failure, exchange.wrote) == ("connect_failed", False)
    assert "Connection refused" in (exchange.reason or "")
    assert isinstance(classify(exchange, host="partner.test"), Retry)


@pytest.mark.parametrize(
    "numbers",
    [
        {V4: OUT_OF_PORTS},
        {V4: NO_FILES, V6: NO_FILES},
        {V4: OUT_OF_PORTS, V6: OUT_OF_PORTS},
        {V4: OUT_OF_PORTS, V6: NO_ROUTE},
        {V6: NO_SUCH_FAMILY, V4: NO_FILES},
        {V6: OUT_OF_PORTS},
    ],
    ids=str,
)
def test_where_every_address_fails_here_the_fault_is_ours(
    monkeypatch: pytest.MonkeyPatch, numbers: dict[str, int]
) -> None:
    exchange = post_to(monkeypatch, numbers, 9)
    assert (exchange.failure, exchange.wrote) == ("our_network", False)
    assert isinstance(classify(exchange, host="partner.test"), Pause)


@pytest.mark.parametrize("number", [OUT_OF_PORTS, NO_FILES])
def test_a_request_that_left_by_a_further_address_may_have_been_handled(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with RawPeer(lambda connection: silent(peer, connection)) as peer:
        exchange = post_to(monkeypatch, {V6: number, FURTHER_V4: number, V4: 0}, peer.port)
    assert (exchange.failure, exchange.wrote) == ("answer_timeout", True)
    outcome = classify(exchange, host="partner.test")
    assert isinstance(outcome, Unknown)
    assert outcome.code == "answer_timeout"


# -- certificates --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def serve_tls(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            read_request(secure)
            secure.sendall(HEAD + b"Content-Length: 0\r\n\r\n")

    return behave


def tls_context(authority: trustme.CA, name: str = "partner.test", *, expired: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    authority.issue_cert(name, not_after=yesterday if expired else None).configure_cert(context)
    return context


def tls_exchange(trusted: trustme.CA, server: ssl.SSLContext) -> WebhookExchange:
    client = ssl.create_default_context()
    trusted.configure_trust(client)
    transports = BlockingTransports(GuardedNetwork(allow_private=True, resolver=local), ssl_context=client)
    with RawPeer(serve_tls(server)) as peer:
        exchange = transports.post(f"https://partner.test:{peer.port}/", {}, BODY, seconds=20)
    transports.close()
    return exchange


def test_a_good_certificate_is_taken(authority: trustme.CA) -> None:
    assert tls_exchange(authority, tls_context(authority)).status == 200


@pytest.mark.parametrize("why", ["expired", "name", "authority", "version"])
def test_a_bad_certificate_or_version_sends_nothing(authority: trustme.CA, why: str) -> None:
    server = tls_context(authority, "other.test" if why == "name" else "partner.test", expired=why == "expired")
    if why == "version":
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            server.minimum_version, server.maximum_version = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1
    exchange = tls_exchange(trustme.CA() if why == "authority" else authority, server)
    assert (exchange.failure, exchange.wrote) == ("tls_failed", False)
    words = {"expired": "expired", "name": "Hostname mismatch", "authority": "issuer", "version": "handshake"}
    assert words[why] in (exchange.reason or "")
    assert retry_class_of(classify(exchange, host="h")) == "full"


# -- a thousand resets ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reset_after_the_request_is_never_repeated_behind_our_back(transports: BlockingTransports) -> None:
    received: list[bytes] = []
    lock = threading.Lock()

    def behave(connection: socket.socket) -> None:
        request = read_request(connection)
        with lock:
            received.append(request.partition(b"\r\n\r\n")[2])
        reset(connection)

    with RawPeer(behave) as peer:
        for _ in range(1000):
            assert transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=20).failure == "no_answer"
    assert received == [BODY] * 1000
