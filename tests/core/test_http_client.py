"""The clients that packages send their requests with, in threads and on an event loop: what they record of a response,
and the code of each fault.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TypeAlias, get_args

import httpcore
import httpx
import pytest

from effects.http.client import WIRE_ERRORS, Fault, HttpClient, record_fault, verifying_context
from effects.http.exchange import Exchange
from effects.http.loop_client import LoopHttpClient
from effects.http.loop_stream import LoopStream, connect_on_loop
from effects.http.stream import DeadlineStream, Unasked, connect
from tests.peers.raw import RawPeer, read_request

SECONDS = 20.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Twice: a\r\nx-twice: \xff\r\n\r\nok"


def dial(host: str, port: int) -> DeadlineStream:
    return connect(Exchange.current(), host, port)


async def dial_on_loop(exchange: Exchange, host: str, port: int) -> LoopStream:
    return await connect_on_loop(exchange, host, port)


Send: TypeAlias = Callable[..., None]  # as HttpClient.send
Opened: TypeAlias = Callable[[int], AbstractContextManager[Send]]


@contextmanager
def in_thread(port: int) -> Iterator[Send]:
    client = HttpClient(httpx.URL(f"http://127.0.0.1:{port}"), dial, ssl_context=None, idle_max=2)
    with closing(client):
        yield client.send


@contextmanager
def on_loop(port: int) -> Iterator[Send]:
    with asyncio.Runner() as runner:
        client = LoopHttpClient(httpx.URL(f"http://127.0.0.1:{port}"), dial_on_loop, ssl_context=None, idle_max=2)
        with closing(client):
            yield lambda *arguments, **options: runner.run(client.send(*arguments, **options))


@pytest.fixture(params=[in_thread, on_loop], ids=["thread", "loop"])
def client(request: pytest.FixtureRequest) -> Opened:
    opened: Opened = request.param
    return opened


def send(http: Send, headers: dict[str, str] | None = None, *, body_bytes_max: int = 1024) -> Exchange:
    with Exchange(SECONDS, "connect") as exchange:
        http(exchange, "POST", b"/path?q=1", headers or {}, b"{}", body_bytes_max=body_bytes_max)
    return exchange


def answers(answer: bytes, requests: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        while True:
            request = read_request(connection)
            if requests is not None:
                requests.append(request)
            connection.sendall(answer)

    return behave


def closes_after(answer: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)

    return behave


def test_a_response_is_recorded_and_its_connection_used_again(client: Opened) -> None:
    requests: list[bytes] = []
    with RawPeer(answers(OK, requests)) as peer, client(peer.port) as http:
        exchanges = [send(http, {"X-Own": "1"}) for _ in range(2)]
        assert peer.accepted == 1
    for exchange in exchanges:
        assert (exchange.status, exchange.body, exchange.body_end, exchange.failure) == (200, b"ok", "whole", None)
    head = f"POST /path?q=1 HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\nContent-Length: 2\r\nX-Own: 1\r\n\r\n"
    assert requests == [head.encode() + b"{}"] * 2


def test_a_header_is_found_in_any_case_and_the_first_counts(client: Opened) -> None:
    with RawPeer(answers(OK)) as peer, client(peer.port) as http:
        exchange = send(http)
    assert (exchange.header("x-twice"), exchange.header("absent")) == ("a", None)
    exchange.head = exchange.head[-1:]
    assert exchange.header("x-twice") == "\\xff"


def test_only_the_beginning_of_a_long_body_is_kept(client: Opened) -> None:
    with RawPeer(answers(OK)) as peer, client(peer.port) as http:
        exchange = send(http, body_bytes_max=1)
    assert (exchange.status, exchange.body, exchange.body_end) == (200, b"o", "cut")


def test_a_body_that_breaks_off_leaves_the_status(client: Opened) -> None:
    with RawPeer(closes_after(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")) as peer, client(peer.port) as http:
        exchange = send(http)
    assert (exchange.status, exchange.body, exchange.body_end, exchange.failure) == (200, b"ok", "broken", None)


@pytest.mark.parametrize(
    ("answer", "code"), [(b"", "no_answer"), (b"HTTP/1.1 20", "bad_answer"), (b"220 mail ESMTP\r\n\r\n", "bad_answer")]
)
def test_a_connection_that_ends_without_a_response_is_a_fault(client: Opened, answer: bytes, code: str) -> None:
    with RawPeer(closes_after(answer)) as peer, client(peer.port) as http:
        exchange = send(http)
    assert (exchange.status, exchange.failure, exchange.wrote) == (None, code, True)


def test_no_connection_is_a_fault(client: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with client(port) as http:
        exchange = send(http)
    assert (exchange.failure, exchange.wrote) == ("connect_failed", False)
    assert exchange.reason == "no connection to the endpoint: Connection refused"


def test_a_request_that_is_not_http_is_not_sent(client: Opened) -> None:
    with RawPeer(answers(OK)) as peer, client(peer.port) as http:
        exchange = send(http, {"X-Own": "a\r\nX-Other: b"})
    assert (exchange.failure, exchange.wrote) == ("bad_url", False)


def test_what_the_exchange_raises_goes_through(client: Opened) -> None:
    class Forbidding(Exchange):
        def writing(self) -> None:
            raise PermissionError

    with RawPeer(answers(OK)) as peer, client(peer.port) as http:
        with Forbidding(SECONDS, "connect") as exchange, pytest.raises(PermissionError):
            http(exchange, "POST", b"/", {}, b"", body_bytes_max=1)
        assert not exchange.wrote


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "phase", "wrote", "bytes_read", "code"),
    [
        (httpcore.ConnectError, "connect", False, 0, "connect_failed"),
        (httpcore.ConnectTimeout, "connect", False, 0, "connect_timeout"),
        (httpcore.PoolTimeout, "connect", False, 0, "connect_timeout"),
        (httpcore.ConnectError, "tls", False, 0, "tls_failed"),
        (httpcore.ConnectTimeout, "tls", False, 0, "tls_timeout"),
        (httpcore.LocalProtocolError, "connect", False, 0, "bad_url"),
        (Unasked, "tls", False, 0, "connect_failed"),
        (httpcore.ReadTimeout, "write", True, 0, "answer_timeout"),
        (httpcore.WriteTimeout, "write", True, 0, "answer_timeout"),
        (httpcore.ReadError, "write", True, 0, "no_answer"),
        (httpcore.ReadError, "write", True, 9, "no_answer"),
        (httpcore.RemoteProtocolError, "write", True, 0, "no_answer"),
        (httpcore.RemoteProtocolError, "write", True, 9, "bad_answer"),
    ],
)
def test_each_fault_has_its_code(error: type[Exception], phase: str, wrote: bool, bytes_read: int, code: str) -> None:
    exchange = Exchange(1, phase)
    exchange.wrote, exchange.bytes_read = wrote, bytes_read
    record_fault(exchange, error("https://peer.test/?token=hunter2"))
    assert exchange.failure == code
    assert code in get_args(Fault)
    assert exchange.reason
    assert "hunter2" not in exchange.reason


def test_the_first_fault_is_kept() -> None:
    exchange = Exchange(1, "connect")
    exchange.fail("tls_unverified", "the certificate does not verify")
    record_fault(exchange, httpcore.ConnectError())
    assert exchange.failure == "tls_unverified"


def test_every_error_of_the_library_is_one_of_the_wire() -> None:
    errors = [error for error in vars(httpcore).values() if isinstance(error, type) and issubclass(error, Exception)]
    others = (httpcore.ConnectionNotAvailable, httpcore.ProxyError, httpcore.UnsupportedProtocol)  # of its own pools
    assert len(errors) >= 12
    assert [error for error in errors if not issubclass(error, (*WIRE_ERRORS, *others))] == []


def test_connections_share_a_context_that_verifies() -> None:
    context = verifying_context(trust_env=False)
    assert context is verifying_context(trust_env=False)
    assert context.check_hostname
    assert context.minimum_version.name == "TLSv1_2"
