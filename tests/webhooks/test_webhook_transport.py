"""The transport against peers that misbehave: what is known afterwards, and that it always ends."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from effects import Done, Refused, Retry, Unknown
from effects.kit.guarded import GuardedNetwork
from effects_webhooks.transport.http import BODY_KEPT_BYTES
from tests.peers.http import Answer, Receiver
from tests.peers.raw import RawPeer, read_request
from tests.support.blocking_posts import BlockingTransports
from tests.support.waiting import wait_until
from tests.webhooks.conftest import outcome_of

BODY = b'{"type":"t","data":{"n":1}}'
SHORT = 0.4  # seconds of deadline where the peer never ends by itself
LONG = 20.0


# -- answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_2xx_is_done(transports: BlockingTransports, status: int) -> None:
    with Receiver([Answer(status, b"")]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {"x-one": "1"}, BODY, seconds=LONG))
        assert isinstance(outcome, Done)
        assert outcome.detail is not None
        assert (outcome.detail["sent"], outcome.detail["status"]) == ("answered", status)
        assert receiver.requests[0].body == BODY
        assert receiver.requests[0].headers["x-one"] == "1"


@pytest.mark.parametrize("status", [300, 304, 400, 401, 404, 409, 410, 422, 429, 500, 503, 599])
def test_any_other_answer_is_retried_or_refused(transports: BlockingTransports, status: int) -> None:
    body = b"" if status == 304 else b"why \x1b[31mnot\x00"
    with Receiver([Answer(status, body)]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {}, BODY, seconds=LONG))
        assert isinstance(outcome, Refused if status in (400, 410, 422) else Retry)
        assert outcome.code == f"http_{status}"
        assert outcome.detail is not None
        assert outcome.detail["response"] == ("" if status == 304 else "why \\x1b[31mnot\\x00")


def test_a_redirect_is_not_followed(transports: BlockingTransports) -> None:
    with Receiver() as elsewhere, Receiver([Answer(307, headers={"location": elsewhere.url})]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {}, BODY, seconds=LONG))
        assert isinstance(outcome, Retry)
        assert outcome.code == "http_307"
        assert elsewhere.requests == []


def test_the_url_is_sent_unchanged_and_never_shown(transports: BlockingTransports) -> None:
    with Receiver([500]) as receiver:
        url = f"http://token-in-host.test:{receiver.port}/hooks/path-token?q=query-token"
        outcome = outcome_of(transports.post(url, {}, BODY, seconds=LONG))
        assert receiver.requests[0].path == "/hooks/path-token?q=query-token"
        assert receiver.requests[0].headers["host"] == f"token-in-host.test:{receiver.port}"
        assert "path-token" not in repr(outcome)
        assert "query-token" not in repr(outcome)


# -- peers that never end by themselves ----------------------------------------------------------------------------


def drip(peer: RawPeer, connection: socket.socket, piece: bytes) -> None:
    """Send a piece now and then until the other side leaves."""
    while not peer.over.wait(0.03):
        connection.sendall(piece)


def never(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head)
        drip(PEERS[connection.getsockname()[1]], connection, piece)

    return behave


PEERS: dict[int, RawPeer] = {}


@contextmanager
def raw(behave: Callable[[socket.socket], None]) -> Iterator[RawPeer]:
    peer = RawPeer(behave)
    PEERS[peer.port] = peer
    try:
        with peer:
            yield peer
    finally:  # its threads, which look it up, have ended
        del PEERS[peer.port]


@pytest.mark.parametrize(
    ("head", "piece", "code"),
    [
        (b"", b"", "answer_timeout"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", "answer_timeout"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40_000, b"", "answer_too_long"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"", "bad_answer"),
    ],
)
def test_a_missing_answer_is_unknown(transports: BlockingTransports, head: bytes, piece: bytes, code: str) -> None:
    seconds = SHORT if code == "answer_timeout" else LONG
    with raw(never(head, piece)) as peer:
        outcome = outcome_of(transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=seconds))
        assert isinstance(outcome, Unknown)
        assert outcome.code == code
        assert outcome.detail is not None
        assert outcome.detail["sent"] == "sent_no_answer"


@pytest.mark.parametrize("status", [200, 503])
def test_a_dripping_body_is_judged_by_its_status(transports: BlockingTransports, status: int) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: 1000000\r\n\r\nhello".encode()
    with raw(never(head, b".")) as peer:
        exchange = transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=SHORT)
    assert exchange.status == status
    assert exchange.body_end == "broken"
    assert exchange.body.startswith(b"hello")
    assert isinstance(outcome_of(exchange), Done if status == 200 else Retry)


def test_a_peer_that_does_not_read_blocks_no_thread(transports: BlockingTransports) -> None:
    def behave(connection: socket.socket) -> None:
        peer.over.wait(10)

    with RawPeer(behave) as peer:
        body = b"x" * 16_000_000  # more than the sockets' buffers take
        exchange = transports.post(f"http://partner.test:{peer.port}/", {}, body, seconds=SHORT)
    assert (exchange.failure, exchange.wrote) == ("answer_timeout", True)


def test_a_tls_handshake_that_never_completes_sends_nothing(transports: BlockingTransports) -> None:
    with RawPeer(lambda connection: drip(peer, connection, b"\x16")) as peer:
        outcome = outcome_of(transports.post(f"https://partner.test:{peer.port}/", {}, BODY, seconds=SHORT))
    assert isinstance(outcome, Retry)
    assert outcome.code in ("tls_timeout", "tls_failed")
    assert outcome.detail is not None
    assert outcome.detail["sent"] == "not_sent"


def test_a_resolver_that_does_not_answer_is_waited_for_no_longer_than_the_deadline() -> None:
    gate = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        gate.wait(30)
        return ["127.0.0.1"]

    transports = BlockingTransports(GuardedNetwork(allow_private=True, resolver=slow))
    exchange = transports.post("http://partner.test/", {}, BODY, seconds=SHORT)
    gate.set()
    assert (exchange.failure, exchange.wrote) == ("dns_timeout", False)
    assert isinstance(outcome_of(exchange), Retry)


# -- large and compressed bodies -----------------------------------------------------------------------------------


def test_little_of_a_huge_body_is_read_and_less_kept(transports: BlockingTransports) -> None:
    sent = 0

    def behave(connection: socket.socket) -> None:
        nonlocal sent
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not peer.over.is_set():
            connection.sendall(b"10000\r\n" + b"a" * 65536 + b"\r\n")
            sent += 65536

    with RawPeer(behave) as peer:
        exchange = transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=LONG)
        assert (exchange.status, exchange.body_end) == (200, "cut")
        assert len(exchange.body) == BODY_KEPT_BYTES
        assert exchange.bytes_read <= 384 * 1024
        wait_until(lambda: sent > 0)


def test_a_compressed_body_stays_compressed(transports: BlockingTransports) -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    with Receiver([Answer(200, bomb, {"content-encoding": "gzip"})]) as receiver:
        exchange = transports.post(receiver.url, {}, BODY, seconds=LONG)
    assert exchange.status == 200
    assert exchange.body == bomb[: len(exchange.body)]
