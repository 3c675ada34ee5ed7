"""Connections: when one is used again, which threads and names share one, and whom TLS takes for the partner."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest
import trustme

from effects import Refused, Retry, Unknown
from tests.peers.http import Answer, Receiver
from tests.peers.raw import RawPeer
from tests.support.blocking_posts import BlockingTransports
from tests.webhooks.conftest import made_transports, outcome_of

BODY = b'{"type":"t","data":{"n":1}}'
LONG = 20.0


# -- connections ---------------------------------------------------------------------------------------------------


def test_a_refused_connection(transports: BlockingTransports) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outcome = outcome_of(transports.post(f"http://partner.test:{port}/", {}, BODY, seconds=LONG))
    assert isinstance(outcome, Retry)
    assert outcome.code == "connect_failed"


def test_a_connection_that_is_cut_after_the_request_is_unknown(transports: BlockingTransports) -> None:
    with Receiver([Answer(reset=True)]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {}, BODY, seconds=LONG))
        assert isinstance(outcome, Unknown)
        assert outcome.code == "no_answer"
        assert len(receiver.requests) == 1  # and nothing was retried behind our back


def test_a_connection_closed_without_a_response_is_unknown(transports: BlockingTransports) -> None:
    with RawPeer(lambda connection: None) as peer:
        outcome = outcome_of(transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=LONG))
    assert isinstance(outcome, Unknown)
    assert outcome.code == "no_answer"


def test_an_early_answer_counts_even_if_the_peer_did_not_read_all(transports: BlockingTransports) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass

    with RawPeer(behave) as peer:
        exchange = transports.post(f"http://partner.test:{peer.port}/", {}, b"x" * 4_000_000, seconds=LONG)
    assert exchange.status == 413


def test_one_connection_serves_many_requests(transports: BlockingTransports) -> None:
    with Receiver() as receiver:
        for _ in range(10):
            assert transports.post(receiver.url, {}, BODY, seconds=LONG).status == 200
        assert len(receiver.connections) == 1


def test_many_threads_share_an_origin(transports: BlockingTransports) -> None:
    with Receiver() as receiver:
        statuses: list[int | None] = []
        threads = [
            threading.Thread(
                target=lambda: statuses.append(transports.post(receiver.url, {}, BODY, seconds=LONG).status)
            )
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 20
        assert len(transports) == 1


def test_the_oldest_origins_make_room_for_new_ones() -> None:
    with made_transports(origins_max=3) as transports, Receiver() as receiver:
        for number in range(6):
            transports.post(f"http://host{number}.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert len(transports) == 3
        transports.post(f"http://host5.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert len(receiver.connections) == 6  # the newest was kept, its connection with it


def test_idle_origins_are_closed() -> None:
    with made_transports(idle_seconds=0.0) as transports, Receiver() as receiver:
        for number in range(3):
            transports.post(f"http://host{number}.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert len(transports) == 1


def test_an_origin_in_use_stays() -> None:
    gate = threading.Event()
    with (
        made_transports(origins_max=1, idle_seconds=0.0) as transports,
        Receiver(lambda request: Answer(wait=gate)) as receiver,
    ):
        statuses: list[int | None] = []
        urls = [f"http://host{number}.test:{receiver.port}/" for number in range(4)]
        threads = [
            threading.Thread(
                target=lambda url=url: statuses.append(transports.post(url, {}, BODY, seconds=LONG).status)
            )
            for url in urls
        ]
        for thread in threads:
            thread.start()
        receiver.wait_for(4)
        gate.set()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 4


@pytest.mark.parametrize(
    "url", ["", "no-url", "http://", "gopher://partner.test/", "http://partner.test:99999/", "http://a\x00b/"]
)
def test_an_invalid_stored_url_is_refused(transports: BlockingTransports, url: str) -> None:
    assert isinstance(outcome_of(transports.post(url, {}, BODY, seconds=LONG)), Refused)


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_tls_with_the_right_name(authority: trustme.CA) -> None:
    with (
        made_transports(client_context(authority)) as transports,
        Receiver(ssl_context=server_context(authority, "partner.test")) as receiver,
    ):
        exchange = transports.post(f"https://partner.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert exchange.status == 200
        assert "tls" in exchange.took


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_with_a_wrong_name_or_an_unknown_authority_sends_nothing(authority: trustme.CA, trusted: bool) -> None:
    context = client_context(authority if trusted else trustme.CA())
    name = "other.test" if trusted else "partner.test"
    with made_transports(context) as transports, Receiver(ssl_context=server_context(authority, name)) as receiver:
        outcome = outcome_of(transports.post(f"https://partner.test:{receiver.port}/", {}, BODY, seconds=LONG))
        assert isinstance(outcome, Retry)
        assert outcome.code == "tls_failed"
        assert ("Hostname mismatch" if trusted else "issuer certificate") in outcome.message
        assert receiver.requests == []


def test_two_names_on_one_address_never_share_a_tls_connection(authority: trustme.CA) -> None:
    with (
        made_transports(client_context(authority)) as transports,
        Receiver(ssl_context=server_context(authority, "a.test")) as receiver,
    ):
        assert transports.post(f"https://a.test:{receiver.port}/", {}, BODY, seconds=LONG).status == 200
        assert transports.post(f"https://b.test:{receiver.port}/", {}, BODY, seconds=LONG).failure == "tls_failed"
        assert [request.headers["host"] for request in receiver.requests] == [f"a.test:{receiver.port}"]
