"""The pool of connections to one origin: what it keeps, for how long, and what it closes; on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpcore
import pytest

from effects.http.exchange import Exchange
from effects.http.idle import IdleConnections, IdleTotal
from effects.http.messages import HttpRequest
from effects.http.pool import Pool
from effects.http.stream import connect
from tests.peers.raw import RawPeer, read_request
from tests.support.waiting import wait_until

SECONDS = 20.0
REQUEST = HttpRequest("POST", b"/", [("Host", "peer.test"), ("Content-Length", "2")], b"{}")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers with `answer`, at most so often on a connection, and knows how many connections have ended."""

    def __init__(self, answer: bytes = OK, *, answers_max: int = 100) -> None:
        self.ended = 0
        self._answer, self._answers_max = answer, answers_max
        self.raw = RawPeer(self._behave)

    def _behave(self, connection: socket.socket) -> None:
        try:
            for _ in range(self._answers_max):
                read_request(connection)
                connection.sendall(self._answer)
        finally:
            self.ended += 1


class Idle:
    """A connection that is idle."""

    def __init__(self, *, quiet: bool = True) -> None:
        self.closed, self._quiet = False, quiet

    def is_quiet(self) -> bool:
        return self._quiet

    def close(self) -> None:
        self.closed = True


@contextmanager
def pool(server: Server, **options: float) -> Iterator[Pool]:
    settings: dict[str, float] = {"idle_max": 2, "idle_seconds": SECONDS, **options}
    connections = Pool(lambda: connect(Exchange.current(), "127.0.0.1", server.raw.port), **settings)  # type: ignore[arg-type]
    try:
        yield connections
    finally:
        connections.close()


def ask(pool: Pool, *, read: bool = True) -> int:
    with Exchange(SECONDS, "connect"), pool.ask(REQUEST, seconds=1) as answer:
        if read:
            assert b"".join(answer.body) == b"ok"
        return answer.status


def nested(pool: Pool, depth: int, innermost: Callable[[], None]) -> None:
    """So many requests at once, each on a connection of its own."""
    if depth == 0:
        innermost()
        return
    with Exchange(SECONDS, "connect"), pool.ask(REQUEST, seconds=1) as answer:
        b"".join(answer.body)
        nested(pool, depth - 1, innermost)


def test_a_connection_is_used_again_and_at_most_so_many_are_kept() -> None:
    server = Server()
    with server.raw as raw, pool(server) as kept:
        assert [ask(kept) for _ in range(3)] == [200] * 3
        assert raw.accepted == 1
        nested(kept, 4, lambda: None)
        assert raw.accepted == 4
        wait_until(lambda: server.ended == 2)
        nested(kept, 2, lambda: None)
        assert raw.accepted == 4


def test_pools_share_a_bound_of_idle_connections_and_the_oldest_go_first() -> None:
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


def test_a_connection_closed_for_another_reason_leaves_the_bound() -> None:
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


def test_a_response_not_read_to_its_end_ends_its_connection() -> None:
    server = Server()
    with server.raw as raw, pool(server) as kept:
        assert [ask(kept, read=False) for _ in range(3)] == [200] * 3
        assert raw.accepted == 3
        wait_until(lambda: server.ended == 3)


def test_an_idle_connection_is_kept_for_its_time_only() -> None:
    server = Server()
    with server.raw as raw, pool(server, idle_seconds=0.0) as kept:
        assert [ask(kept), ask(kept), raw.accepted] == [200, 200, 2]
        wait_until(lambda: server.ended == 2)


def test_a_connection_returned_to_a_closed_pool_is_closed() -> None:
    server = Server()
    with server.raw, pool(server) as kept:
        ask(kept)
        nested(kept, 2, kept.close)
        wait_until(lambda: server.ended == 2)


def test_callers_beyond_the_capacity_wait_and_give_up() -> None:
    server = Server()
    with server.raw, pool(server, connections_max=1) as kept:

        def one_more() -> None:
            with pytest.raises(httpcore.PoolTimeout), kept.ask(REQUEST, seconds=0.01):
                pass

        nested(kept, 1, one_more)
        assert ask(kept) == 200


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n\r\nok", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"])
def test_an_answer_that_ends_with_its_connection_is_the_last_on_it(answer: bytes) -> None:
    server = Server(answer, answers_max=1)
    with server.raw as raw, pool(server) as kept:
        assert [ask(kept), ask(kept), raw.accepted] == [200, 200, 2]


def test_what_the_caller_raises_ends_the_connection() -> None:
    server = Server()
    with server.raw as raw, pool(server) as kept:
        with pytest.raises(LookupError), Exchange(SECONDS, "connect"), kept.ask(REQUEST, seconds=1):
            raise LookupError
        assert (ask(kept), raw.accepted) == (200, 2)
