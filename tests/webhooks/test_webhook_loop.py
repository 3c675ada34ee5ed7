"""Deliveries on the event loop: many at a time by default, and what is left of one whose task is cancelled."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from effects import Effects
from effects.kit.guarded import GuardedNetwork
from effects.store.limits.key_limits import set_limit
from effects.worker import Worker
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.worker_queues import planned
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhooks
from effects_webhooks.classify import describe
from effects_webhooks.transport.exchange import WebhookExchange
from effects_webhooks.writing import limit_key
from tests.peers.http import Answer, Receiver
from tests.peers.raw import RawPeer, read_request
from tests.support.blocking_posts import BlockingTransports
from tests.support.manual_workers import rows
from tests.support.waiting import wait_until
from tests.webhooks.conftest import made_transports

BODY = b'{"type":"t"}'
SECONDS = 20.0


def test_the_queue_has_many_in_flight_by_default(shop: Effects) -> None:
    [request] = [request for request in planned(shop, None, Runtime()) if request.queue == "webhooks"]
    assert (request.threads, request.reserved_threads) == (1024, 717)  # failing keys share the other 30 %


def test_slow_receivers_delay_no_others(shop: Effects) -> None:
    gate = threading.Event()
    with Receiver(lambda request: Answer(wait=gate)) as receiver:
        for number in range(30):
            add_endpoint(f"{receiver.url}?{number}", effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {})], effects=shop)
        drained: list[dict[str, int]] = []
        draining = threading.Thread(target=lambda: drained.append(Worker(shop).drain(max_seconds=50).counts))
        draining.start()
        receiver.wait_for(30)  # three times as many as a queue of blocking jobs has threads
        gate.set()
        draining.join()
    assert drained == [{"succeeded": 30}]


def most_at_once(shop: Effects, status: int = 204, limit: int | None = None) -> int:
    """How many of sixty requests an endpoint has at a time that answers so; it may have an operator's limit.

    A request whose connection was cut is over for its worker, while the endpoint still works on it.
    """
    pause, at_once, most = threading.Event(), 0, 0
    lock = threading.Lock()

    def answer(request: object) -> Answer:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        pause.wait(0.05)
        with lock:
            at_once -= 1
        return Answer(status)

    with Receiver(answer) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        if limit is not None:
            with shop.store.begin() as connection:
                set_limit(shop.store, connection, limit_key(endpoint.id), actor="test", max_in_flight=limit)
        deliver_webhooks([WebhookEvent("order.paid", {"n": number}) for number in range(60)], effects=shop)
        Worker(shop).drain(max_seconds=50)
    return most - len(rows(shop, "job_attempts", "outcome = 'unknown'"))


def test_an_endpoint_that_answers_gets_more_at_a_time(shop: Effects) -> None:
    assert 4 < most_at_once(shop) <= 16


@pytest.mark.slow
def test_an_endpoint_never_has_more_at_a_time_than_its_limit(shop: Effects) -> None:
    assert most_at_once(shop, limit=5) <= 5


def test_an_endpoint_that_has_too_much_gets_no_more_at_a_time(shop: Effects) -> None:
    assert most_at_once(shop, status=503) <= 4


@pytest.mark.slow
def test_silent_receivers_give_up_their_slots(shop: Effects) -> None:
    """Ten slots, of which failing partners may have three. All are taken by partners that never answer."""
    gate = threading.Event()
    with Receiver(lambda request: Answer(wait=gate)) as mute, Receiver() as well:
        for number in range(5):
            add_endpoint(f"{mute.url}?{number}", ["mute"], effects=shop)
        add_endpoint(well.url, ["well"], effects=shop)
        deliver_webhooks([WebhookEvent("mute", {"n": number}) for number in range(4)], effects=shop)
        worker = Worker(shop, queues={"webhooks": 10})
        working = threading.Thread(target=worker.run)
        working.start()
        try:
            mute.wait_for(10)
            deliver_webhooks([WebhookEvent("well", {"n": number}) for number in range(3)], effects=shop)
            well.wait_for(3)
            assert worker.counts.keys() <= {"succeeded"}  # none of the silent ones has ended
            assert len(mute.requests) < 17  # the seven slots went to others, whose jobs are younger
        finally:
            gate.set()
            worker.stop()
            working.join()


def test_a_drained_worker_leaves_no_connection_open(shop: Effects) -> None:
    ended = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert connection.recv(1) == b""
        ended.set()

    with RawPeer(behave) as peer:
        add_endpoint(f"http://127.0.0.1:{peer.port}/", effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {})], effects=shop)
        assert Worker(shop).drain(max_seconds=50).counts == {"succeeded": 1}
        assert ended.wait(SECONDS)


# -- cancelled tasks -----------------------------------------------------------------------------------------------


class Silent:
    """Reads so many requests' first bytes, answers none, and knows when its connection has ended."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reached, self.ended = threading.Event(), threading.Event()
        self._reads = reads
        self.raw = RawPeer(self._behave)

    def _behave(self, connection: socket.socket) -> None:
        if self._reads:
            read_request(connection)
        self.reached.set()
        try:
            while connection.recv(65536):
                pass
        finally:
            self.ended.set()


def cancelled(transports: BlockingTransports, url: str, when: Callable[[WebhookExchange], object]) -> WebhookExchange:
    """What is known of a request whose task is cancelled at that moment."""
    exchange, task = WebhookExchange(SECONDS), list[asyncio.Task[None]]()

    async def begin() -> None:
        task.append(asyncio.create_task(transports.transports.carry_out(exchange, url, {}, BODY)))

    async def end() -> None:
        task[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await task[0]

    transports.run(begin())
    when(exchange)
    transports.run(end())
    return exchange


def test_a_request_that_is_cancelled_before_its_answer_was_sent_and_its_connection_ends(
    transports: BlockingTransports,
) -> None:
    peer = Silent()
    with peer.raw as raw:
        exchange = cancelled(transports, f"http://127.0.0.1:{raw.port}/", lambda _: peer.reached.wait(SECONDS))
        assert peer.ended.wait(SECONDS)
    assert (exchange.wrote, exchange.status, exchange.failure) == (True, None, None)
    assert describe(exchange, host="h")["sent"] == "sent_no_answer"


def test_a_request_that_is_cancelled_in_its_handshake_was_not_sent(transports: BlockingTransports) -> None:
    peer = Silent(reads=False)

    def in_the_handshake(exchange: WebhookExchange) -> None:
        assert peer.reached.wait(SECONDS)
        wait_until(lambda: exchange.phase == "tls")

    with peer.raw as raw:
        exchange = cancelled(transports, f"https://127.0.0.1:{raw.port}/", in_the_handshake)
        assert peer.ended.wait(SECONDS)
    assert (exchange.wrote, exchange.phase) == (False, "tls")
    assert describe(exchange, host="h")["sent"] == "not_sent"


def test_a_request_that_is_cancelled_while_its_name_is_resolved_was_not_sent() -> None:
    resolving, gate = threading.Event(), threading.Event()

    def slow(host: str, port: int) -> list[str]:
        resolving.set()
        gate.wait(SECONDS)
        return ["127.0.0.1"]

    transports = BlockingTransports(GuardedNetwork(allow_private=True, resolver=slow))
    exchange = cancelled(transports, "http://partner.test/", lambda _: resolving.wait(SECONDS))
    gate.set()
    transports.close()
    assert (exchange.wrote, exchange.phase) == (False, "resolve")


def test_a_response_cancelled_in_its_body_counts_as_answered(transports: BlockingTransports) -> None:
    ended = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nbusy")
        connection.recv(1)
        ended.set()

    def in_the_body(exchange: WebhookExchange) -> None:
        wait_until(lambda: exchange.status is not None)

    with RawPeer(behave) as peer:
        exchange = cancelled(transports, f"http://127.0.0.1:{peer.port}/", in_the_body)
        assert ended.wait(SECONDS)
    assert exchange.status == 503
    assert describe(exchange, host="h")["sent"] == "answered"


def test_the_end_of_the_loop_closes_idle_connections() -> None:
    ended = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        connection.recv(1)
        ended.set()

    with RawPeer(behave) as peer, made_transports() as transports:
        assert transports.post(f"http://127.0.0.1:{peer.port}/", {}, BODY, seconds=SECONDS).status == 204
        assert not ended.is_set()
        transports.close()
        assert ended.wait(SECONDS)


@pytest.mark.parametrize("wait", [0.0, 60.0])
def test_idle_connections_are_closed_though_no_request_follows(monkeypatch: pytest.MonkeyPatch, wait: float) -> None:
    monkeypatch.setattr("effects_webhooks.transport.http.SWEEP_SECONDS", 0.01)
    monkeypatch.setattr("effects.kit.http.on_loop.KEEPALIVE_SECONDS", 0.05)
    ended = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        connection.recv(1)
        ended.set()

    with RawPeer(behave) as peer, made_transports(idle_seconds=wait) as transports:
        assert transports.post(f"http://127.0.0.1:{peer.port}/", {}, BODY, seconds=SECONDS).status == 204
        assert ended.wait(SECONDS)
