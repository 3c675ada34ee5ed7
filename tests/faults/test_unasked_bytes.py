"""Bytes of a peer that belong to no request of ours: no later request takes them for its answer (RFC 9112 §9.3).

Both clients, webhooks' and that of the mail providers' APIs, on real sockets, plain and under TLS. Go's net/http gives
up a connection on which anything came that was not asked for; so do we.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import pytest
import trustme

from effects.kit.guarded import GuardedNetwork
from effects_email.transport.http_api.client import ProviderClient, ProviderExchange
from effects_webhooks.transport.exchange import WebhookExchange
from tests.peers.raw import RawPeer, await_arrival, read_request
from tests.support.blocking_posts import BlockingTransports

SECONDS = 20.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
FRESH = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"

Post: TypeAlias = Callable[..., WebhookExchange | ProviderExchange]

# What a peer sends in answer to its first request: an answer of 200, and something more.
ANSWERS = {
    "two answers": OK + OK,
    "an answer and half of another": OK + b"HTTP/1.1 200 OK\r\nContent-Le",
    "an answer and its blank line again": OK + b"\r\n",
    "a body longer than its Content-Length": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokay",
    "a body where none is allowed": b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "bytes behind the last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + OK,
    "an interim answer behind the last": OK + EARLY_HINTS,
    "interim answers before and behind": EARLY_HINTS * 50 + OK + EARLY_HINTS * 50,
    "a hundred answers": OK * 100,
    "no HTTP": OK + b"\x00\xff",
}
IDLE = {"an answer": OK, "an interim answer": EARLY_HINTS, "one byte": b"H", "a blank line": b"\r\n",
        "a megabyte": OK * 30_000}  # fmt: skip


class Peer:
    """On its first connection it answers the first request with `answer`, says `later` when told to, and never answers
    again. On every later one it answers each request with 201.
    """

    def __init__(self, answer: bytes, later: bytes = b"", *, context: ssl.SSLContext | None = None) -> None:
        self.speak, self.spoken = threading.Event(), threading.Event()
        self.requests_on_first = 0
        self._answer, self._later, self._context = answer, later, context
        self._connections = 0
        self.raw = RawPeer(self._behave)

    def _behave(self, connection: socket.socket) -> None:
        self._connections += 1
        first = self._connections == 1
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        with connection:
            while True:
                read_request(connection)
                self.requests_on_first += first
                if not first:
                    connection.sendall(FRESH)
                elif self.requests_on_first == 1:
                    connection.sendall(self._answer)
                    self._say_later(connection)

    def _say_later(self, connection: socket.socket) -> None:
        if self._later:
            self.speak.wait(SECONDS)
            connection.setblocking(False)  # a megabyte does not fit
            sent = connection.send(self._later)
            connection.settimeout(SECONDS)
            await_arrival(connection, unread_bytes=max(0, sent - 32_768))
            self.spoken.set()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def released() -> None:
    """As if it were on record."""


@contextmanager
def client(kind: str, port: int, authority: trustme.CA | None) -> Iterator[Post]:
    """Posts by one of our two clients; `release` is the mail client's."""
    context = None
    if authority is not None:
        context = ssl.create_default_context()
        authority.configure_trust(context)
    origin = f"{'http' if authority is None else 'https'}://127.0.0.1:{port}"
    if kind == "webhooks":
        transports = BlockingTransports(GuardedNetwork(allow_private=True), ssl_context=context)
        with closing(transports):
            yield lambda **options: transports.post(f"{origin}/", {}, b"{}", seconds=SECONDS)
    else:
        api = ProviderClient(origin, ssl_context=context)
        release: dict[str, Any] = {"release": released, "seconds": SECONDS}
        with asyncio.Runner() as runner:
            yield lambda **options: runner.run(api.request("POST", "/", {}, b"{}", **{**release, **options}))


@pytest.fixture(params=["webhooks", "email"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["plain", "tls"])
def connect(
    request: pytest.FixtureRequest, kind: str, authority: trustme.CA, server_context: ssl.SSLContext
) -> tuple[Callable[[int], Any], ssl.SSLContext | None]:
    """A client to a port, and the context that its peer needs."""
    if request.param == "plain":
        return functools.partial(client, kind, authority=None), None
    return functools.partial(client, kind, authority=authority), server_context


Connect: TypeAlias = tuple[Callable[[int], Any], ssl.SSLContext | None]


@pytest.mark.parametrize("name", ANSWERS)
def test_bytes_beyond_a_response_are_discarded(connect: Connect, name: str) -> None:
    opened, context = connect
    peer = Peer(ANSWERS[name], context=context)
    with peer.raw as raw, opened(raw.port) as post:
        assert post().status in (200, 204)
        for _ in range(3):
            assert post().status == 201
        assert (raw.accepted, peer.requests_on_first) == (2, 1)  # and the fresh connection is kept


@pytest.mark.parametrize("name", IDLE)
def test_bytes_on_an_idle_connection_are_discarded(connect: Connect, name: str) -> None:
    opened, context = connect
    peer = Peer(OK, IDLE[name], context=context)
    with peer.raw as raw, opened(raw.port) as post:
        assert post().status == 200
        peer.speak.set()
        assert peer.spoken.wait(SECONDS)
        assert post().status == 201
        assert (raw.accepted, peer.requests_on_first) == (2, 1)


def test_a_connection_on_which_nothing_else_came_is_kept(connect: Connect) -> None:
    opened, context = connect
    peer = Peer(OK, context=context)
    peer._connections = 1  # every request is answered
    with peer.raw as raw, opened(raw.port) as post:
        assert [post().status for _ in range(5)] == [201] * 5
        assert raw.accepted == 1  # TLS 1.3's session tickets come unasked, too, and are no answer


def test_bytes_during_the_release_are_discarded(authority: trustme.CA) -> None:
    peer = Peer(OK, OK)
    released = 0

    async def release() -> None:
        nonlocal released
        released += 1
        peer.speak.set()
        assert await asyncio.to_thread(peer.spoken.wait, SECONDS)

    with peer.raw as raw, client("email", raw.port, None) as post:
        assert post().status == 200
        exchange = post(release=release)
        assert (exchange.status, released, raw.accepted, peer.requests_on_first) == (201, 1, 2, 1)
        assert {"release", "body", "answer"} <= set(exchange.took)


# -- a fresh connection --------------------------------------------------------------------------------------------


def speaks_first(words: bytes, spoken: threading.Event) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.sendall(words)
        await_arrival(connection)
        spoken.set()
        while connection.recv(65536):
            pass

    return behave


@pytest.mark.parametrize("words", [OK, EARLY_HINTS, b"220 mail.example ESMTP\r\n", b"H"])
def test_a_peer_that_speaks_first_is_sent_nothing(words: bytes) -> None:
    spoken = threading.Event()

    class Waiting(GuardedNetwork):
        """Connects, and waits until the peer has spoken."""

        async def connect(self, *arguments: Any, **options: Any) -> Any:
            stream = await super().connect(*arguments, **options)
            assert await asyncio.to_thread(spoken.wait, SECONDS)
            return stream

    with RawPeer(speaks_first(words, spoken)) as peer:
        transports = BlockingTransports(Waiting(allow_private=True))
        exchange = transports.post(f"http://127.0.0.1:{peer.port}/", {}, b"{}", seconds=SECONDS)
        transports.close()
        assert (exchange.failure, exchange.wrote, exchange.status, peer.accepted) == ("connect_failed", False, None, 1)


def test_a_provider_that_speaks_first_is_sent_nothing() -> None:
    spoken = threading.Event()

    async def release() -> None:
        assert await asyncio.to_thread(spoken.wait, SECONDS)

    with RawPeer(speaks_first(OK, spoken)) as peer, client("email", peer.port, None) as post:
        exchange = post(release=release)
        assert isinstance(exchange, ProviderExchange)
        assert (exchange.failure, exchange.wrote, exchange.status, peer.accepted) == ("connect_failed", False, None, 1)


# -- interim answers without an end --------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [EARLY_HINTS, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 199 X\r\nA: b\r\n\r\n"])
def test_a_flood_of_interim_answers_ends(kind: str, piece: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        while True:
            connection.sendall(piece * 1000)

    with RawPeer(behave) as peer, client(kind, peer.port, None) as post:
        exchange = post()
    assert exchange.failure in ("answer_too_long", "bad_answer")
    assert (exchange.status, exchange.wrote) == (None, True)
    assert exchange.bytes_read <= 256 * 1024


def test_an_unrequested_protocol_switch_is_no_response(kind: str) -> None:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n" + OK)
        connection.recv(1)

    with RawPeer(behave) as peer, client(kind, peer.port, None) as post:
        exchange = post()
    assert (exchange.status, exchange.wrote) == (None, True)
