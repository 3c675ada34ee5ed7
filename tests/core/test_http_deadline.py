"""The stream under one deadline: what it asks of its exchange, and what ends it; on real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpcore
import pytest
import trustme

from effects.kit.http.exchange import Exchange
from effects.kit.http.messages import clip
from effects.kit.http.on_loop import LoopStream, connect_on_loop

LONG = 20.0


class Watched(Exchange):
    """Keeps what the stream says."""

    def __init__(self, seconds: float = LONG) -> None:
        super().__init__(seconds, "connect")
        self.said: list[str] = []
        self.refuse: str | None = None  # the moment at which it raises
        self.room = 1_000_000

    def writing(self) -> None:
        self._say("writing")

    def reading(self, bytes_max: int) -> int:
        self._say("reading")
        return min(bytes_max, self.room)

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        self.said.append("refused" if refused else "failed")

    def _say(self, moment: str) -> None:
        self.said.append(moment)
        if moment == self.refuse:
            raise LookupError(moment)


@contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """One connection on a real port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(LONG)
        assert not thread.is_alive()


def until_closed(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


class Stream:
    """A LoopStream whose every call is awaited at once, on a loop of its own."""

    def __init__(self, runner: asyncio.Runner, stream: LoopStream, exchange: Watched) -> None:
        self._runner, self._stream, self.exchange = runner, stream, exchange

    def write(self, data: bytes) -> None:
        self._runner.run(self._stream.write(self.exchange, data))

    def read(self, bytes_max: int) -> bytes:
        return self._runner.run(self._stream.read(self.exchange, bytes_max))

    def start_tls(self, context: ssl.SSLContext) -> None:
        self._runner.run(self._stream.start_tls(self.exchange, context, "127.0.0.1", None))


@contextmanager
def opened(exchange: Watched, port: int) -> Iterator[Stream]:
    with asyncio.Runner() as runner:
        stream = runner.run(connect_on_loop(exchange, "127.0.0.1", port))
        try:
            yield Stream(runner, stream, exchange)
        finally:
            stream.close()


def write_and_read(stream: Stream) -> None:
    stream.write(b"x")
    stream.read(1)


def read_for_ever(stream: Stream) -> None:
    while True:
        stream.read(100)


def test_each_wait_gets_what_is_left_or_less() -> None:
    exchange = Exchange(LONG, "connect")
    assert clip(exchange, 5, httpcore.ReadTimeout) == 5
    assert LONG - 10 < clip(exchange, None, httpcore.ReadTimeout) <= LONG
    assert LONG - 10 < clip(exchange, LONG * 2, httpcore.ReadTimeout) <= LONG
    for late in (httpcore.ConnectTimeout, httpcore.ReadTimeout, httpcore.WriteTimeout):
        with pytest.raises(late):
            clip(Exchange(0, "connect"), 5, late)


def test_each_step_is_that_of_the_exchange_it_is_given() -> None:
    def echo(connection: socket.socket) -> None:
        connection.sendall(connection.recv(100))
        connection.sendall(connection.recv(100))

    first, second = Watched(), Watched()
    second.room = 2
    with peer(echo) as port, opened(first, port) as stream:
        stream.write(b"one")
        assert (first.wrote, stream.read(100)) == (True, b"one")
        stream.exchange = second
        stream.write(b"two")
        assert stream.read(100) == b"tw"
    assert first.said == second.said == ["writing", "reading"]
    assert (first.bytes_read, second.bytes_read) == (3, 2)


def test_phases_add_up() -> None:
    exchange = Exchange(LONG, "connect")
    for phase in ("write", "answer", "write"):
        exchange.enter(phase)
    exchange.end()
    assert set(exchange.took) == {"connect", "write", "answer"}
    assert sum(exchange.took.values()) <= time.monotonic() - exchange.began


@pytest.mark.parametrize("moment", ["writing", "reading"])
def test_what_the_exchange_refuses_does_not_happen(moment: str) -> None:
    received: list[bytes] = []
    exchange = Watched()
    exchange.refuse = moment
    with peer(lambda connection: received.append(connection.recv(100))) as port, opened(exchange, port) as stream:
        with pytest.raises(LookupError, match=moment):
            write_and_read(stream)
        assert exchange.wrote == (moment == "reading")
    assert received == [b"x" if exchange.wrote else b""]


def test_a_peer_that_drips_ends_with_the_deadline() -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not over.wait(0.02):
            connection.sendall(b"x")

    exchange = Watched(0.4)
    with peer(drip) as port:
        with pytest.raises(httpcore.ReadTimeout), opened(exchange, port) as stream:
            read_for_ever(stream)
        over.set()
    assert exchange.bytes_read > 2


def test_a_peer_that_does_not_read_ends_with_the_deadline() -> None:
    over = threading.Event()

    class Hasty(Watched):
        def writing(self) -> None:
            super().writing()
            self.deadline = time.monotonic() + 0.4  # from here on: connecting takes longer on a busy machine

    exchange = Hasty()

    def sleep(connection: socket.socket) -> None:
        over.wait(LONG)

    with peer(sleep) as port:
        with pytest.raises(httpcore.WriteTimeout), opened(exchange, port) as stream:
            stream.write(b"x" * 50_000_000)
        over.set()
    assert exchange.wrote
    assert exchange.said == ["writing"]


def test_a_refused_connection_is_reported_before_any_write() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    exchange = Watched()
    with pytest.raises(httpcore.ConnectError), opened(exchange, port):
        pass
    with pytest.raises(httpcore.ConnectTimeout), opened(Watched(0), port):
        pass
    assert (exchange.said, exchange.wrote) == ([], False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def over_tls(authority: trustme.CA) -> Callable[[socket.socket], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def behave(connection: socket.socket) -> None:
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                until_closed(secure)
        except OSError:
            pass  # the client did not like us

    return behave


def test_tls_is_noted_once_something_is_written(authority: trustme.CA) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    exchange = Watched()
    with peer(over_tls(authority)) as port, opened(exchange, port) as stream:
        stream.start_tls(trusting)
        assert (exchange.phase, exchange.tls) == ("tls", None)
        stream.write(b"x")
        assert exchange.tls in ("TLSv1.2", "TLSv1.3")
    assert exchange.said == ["writing"]


def test_a_failed_handshake_records_whether_the_certificate_is_the_reason(authority: trustme.CA) -> None:
    cases = {
        "refused": over_tls(authority),
        "failed": lambda connection: connection.sendall(b"HTTP/1.1 400 No\r\n\r\n"),
    }
    for said, behave in cases.items():
        exchange = Watched()
        with peer(behave) as port, pytest.raises(httpcore.ConnectError), opened(exchange, port) as stream:
            stream.start_tls(ssl.create_default_context())
        assert exchange.said == [said]
