"""The client that packages send their requests with: what it records of a response, and the code of each fault."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeAlias, get_args

import httpcore
import httpx
import pytest
import trustme

from effects.kit.http.exchange import Exchange
from effects.kit.http.idle import IdleConnections, IdleTotal
from effects.kit.http.messages import WIRE_ERRORS, Fault, Unasked, record_fault, verifying_context
from effects.kit.http.on_loop import LoopHttpClient, LoopStream, connect_on_loop
from effects_email.transport.url import verifying_tls
from tests.peers.raw import RawPeer, read_request
from tests.support.waiting import wait_until

SECONDS = 20.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Twice: a\r\nx-twice: \xff\r\n\r\nok"


async def dial_on_loop(exchange: Exchange, host: str, port: int) -> LoopStream:
    return await connect_on_loop(exchange, host, port)


Send: TypeAlias = Callable[..., None]  # as LoopHttpClient.send, awaited
Opened: TypeAlias = Callable[[int], AbstractContextManager[Send]]


@contextmanager
def on_loop(port: int) -> Iterator[Send]:
    with asyncio.Runner() as runner:
        client = LoopHttpClient(httpx.URL(f"http://127.0.0.1:{port}"), dial_on_loop, ssl_context=None, idle_max=2)
        with closing(client):
            yield lambda *arguments, **options: runner.run(client.send(*arguments, **options))


@pytest.fixture
def client() -> Opened:
    return on_loop


def send(http: Send, headers: dict[str, str] | None = None, *, body_bytes_max: int = 1024) -> Exchange:
    exchange = Exchange(SECONDS, "connect")
    try:
        http(exchange, "POST", b"/path?q=1", headers or {}, b"{}", body_bytes_max=body_bytes_max)
    finally:
        exchange.end()
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
        exchange = Forbidding(SECONDS, "connect")
        with pytest.raises(PermissionError):
            http(exchange, "POST", b"/", {}, b"", body_bytes_max=1)
        assert not exchange.wrote


def test_leave_to_write_is_awaited_and_a_peer_that_speaks_meanwhile_is_sent_nothing(client: Opened) -> None:
    accepted: list[socket.socket] = []

    class Waiting(Exchange):
        """The peer speaks while leave to write is awaited, the first time."""

        waits = 1

        async def clear(self) -> bool:
            if self.waits:
                self.waits -= 1
                await asyncio.to_thread(wait_until, lambda: accepted)
                accepted[0].sendall(OK)
                await asyncio.to_thread(wait_until, lambda: self.waits == 0)
            return True

    def behave(connection: socket.socket) -> None:
        accepted.append(connection)
        while request := read_request(connection):
            requests.append(request)
            connection.sendall(OK)

    requests: list[bytes] = []
    with RawPeer(behave) as peer, client(peer.port) as http:
        exchange = Waiting(SECONDS, "connect")
        http(exchange, "POST", b"/", {}, b"", body_bytes_max=1)
        assert (exchange.status, exchange.failure, exchange.wrote, peer.accepted) == (None, "connect_failed", False, 1)
    assert requests == []


def test_leave_that_is_refused_sends_nothing(client: Opened) -> None:
    class Refusing(Exchange):
        async def clear(self) -> bool:
            raise PermissionError

    with RawPeer(answers(OK)) as peer, client(peer.port) as http:
        exchange = Refusing(SECONDS, "connect")
        with pytest.raises(PermissionError):
            http(exchange, "POST", b"/", {}, b"", body_bytes_max=1)
        assert not exchange.wrote


# -- idle connections ------------------------------------------------------------------------------------------------


class Idle:
    """A connection that is idle."""

    def __init__(self, *, quiet: bool = True) -> None:
        self.closed, self._quiet = False, quiet

    def is_quiet(self) -> bool:
        return self._quiet

    def close(self) -> None:
        self.closed = True


def test_origins_share_a_bound_of_idle_connections_and_the_oldest_go_first() -> None:
    total = IdleTotal(2)
    first, second = IdleConnections[Idle](9, SECONDS, total), IdleConnections[Idle](9, SECONDS, total)
    oldest, *others = connections = [Idle() for _ in range(4)]
    for owner, connection in zip((first, first, second), connections, strict=False):
        owner.put(connection, reusable=True)
    assert [connection.closed for connection in connections] == [True, False, False, False]
    assert first.take() is others[0]
    assert first.take() is None
    second.put(connections[3], reusable=True)  # the one in use does not count
    assert not any(connection.closed for connection in others)
    second.close()
    assert (len(total), oldest.closed, others[0].closed) == (0, True, False)


def test_what_is_closed_for_another_reason_leaves_the_bound() -> None:
    total = IdleTotal(5)
    owner = IdleConnections[Idle](1, SECONDS, total)
    gone = Idle(quiet=False)
    for connection in (Idle(), gone):
        owner.put(connection, reusable=True)
    assert len(total) == 1
    assert owner.take() is None
    assert gone.closed
    owner.put(Idle(), reusable=False)
    assert len(total) == 0
    stale = IdleConnections[Idle](1, 0.0, total)
    stale.put(Idle(), reusable=True)
    stale.close_stale()
    assert len(total) == 0


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n\r\nok", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"])
def test_an_answer_that_ends_with_its_connection_is_the_last_on_it(client: Opened, answer: bytes) -> None:
    with RawPeer(closes_after(answer)) as peer, client(peer.port) as http:
        assert [send(http).status, send(http).status, peer.accepted] == [200, 200, 2]


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


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """A handshake in memory.

    Raises:
        ssl.SSLCertVerificationError: the client does not take the certificate.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)]
    for end in ends * 2:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()


def test_a_name_counts_only_where_it_is_an_alternative_name(tmp_path: Path) -> None:
    """Not as the subject's common name (RFC 9110 §4.3.4, RFC 9525 §6.3): by the contexts of HTTP and of mail."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    http = verifying_context.__wrapped__(trust_env=False)
    authority.configure_trust(http)
    for client in (http, verifying_tls(str(tmp_path / "ca.pem"))):
        for certificate, is_taken in (
            (authority.issue_cert("partner.test"), True),
            (authority.issue_cert("other.test", common_name="partner.test"), False),
            (authority.issue_cert(common_name="partner.test"), False),
            (authority.issue_cert("*.test.example", common_name="partner.test"), False),
            (authority.issue_cert("127.0.0.1", common_name="partner.test"), False),
        ):
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(server)
            with nullcontext() if is_taken else pytest.raises(ssl.SSLCertVerificationError):
                shake_hands(client, server, "partner.test")
