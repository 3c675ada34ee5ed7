"""What a receiver may ask for beside its status: a fresh connection (421), or an end (`webhook-delivery`)."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest
import trustme

from effects import Effects, Refused, Retry, Unknown
from effects.worker import Worker
from effects_webhooks import WebhookDelivery, WebhookEvent, add_endpoint, deliver_webhooks, get_endpoint
from effects_webhooks.classify import classify
from effects_webhooks.transport.exchange import WebhookExchange
from tests.peers.http import Answer, Receiver
from tests.peers.raw import RawPeer, read_request
from tests.support.blocking_posts import BlockingTransports
from tests.webhooks.conftest import Rows

BODY = b'{"type":"t"}'


# -- 421 -----------------------------------------------------------------------------------------------------------


def test_a_421_on_a_connection_in_use_is_asked_once_more_on_a_fresh_one(transports: BlockingTransports) -> None:
    with Receiver([200, 421, 200]) as receiver:
        assert transports.post(receiver.url, {}, BODY, seconds=20).status == 200
        exchange = transports.post(receiver.url, {"webhook-id": "msg_1"}, BODY, seconds=20)
        assert (exchange.status, exchange.connected) == (200, True)
        assert len(receiver.connections) == 2
        first, second = receiver.requests[1:]
        assert (first.body, first.headers) == (second.body, second.headers)


def test_a_421_on_a_fresh_connection_is_final(transports: BlockingTransports) -> None:
    with Receiver([421]) as receiver:
        exchange = transports.post(receiver.url, {}, BODY, seconds=20)
        assert (exchange.status, len(receiver.requests)) == (421, 1)
        assert isinstance(classify(exchange, host="h"), Retry)


def test_a_421_whose_repeat_has_no_answer_may_have_been_handled(transports: BlockingTransports) -> None:
    with Receiver([200, 421, Answer(reset=True)]) as receiver:
        transports.post(receiver.url, {}, BODY, seconds=20)
        exchange = transports.post(receiver.url, {}, BODY, seconds=20)
        assert (exchange.status, exchange.failure, len(receiver.requests)) == (None, "no_answer", 3)
        assert isinstance(classify(exchange, host="h"), Unknown)


def test_a_421_whose_repeat_cannot_be_sent_is_final(transports: BlockingTransports) -> None:
    def behave() -> None:
        connection, _ = listener.accept()
        with connection:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            read_request(connection)
            listener.close()
            connection.sendall(b"HTTP/1.1 421 Misdirected Request\r\nContent-Length: 0\r\n\r\n")
            connection.recv(1)  # until the client closes

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        threads.submit(behave)
        transports.post(url, {}, BODY, seconds=20)
        exchange = transports.post(url, {}, BODY, seconds=20)
        transports.close()
    assert (exchange.status, exchange.failure) == (421, "connect_failed")
    assert isinstance(classify(exchange, host="h"), Retry)


def test_both_tries_of_a_421_share_one_deadline(transports: BlockingTransports) -> None:
    def behave(connection: object) -> None:
        if peer.accepted > 1:
            peer.over.wait(20)
            return
        for answer in (b"200 OK", b"421 Misdirected Request"):
            read_request(connection)  # type: ignore[arg-type]
            connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % answer)  # type: ignore[attr-defined]

    with RawPeer(behave) as peer:
        transports.post(f"http://127.0.0.1:{peer.port}/", {}, BODY, seconds=20)
        exchange = transports.post(f"http://127.0.0.1:{peer.port}/", {}, BODY, seconds=0.5)
    assert (exchange.status, exchange.failure) == (None, "answer_timeout")
    assert sum(exchange.took.values()) <= 1.5


# -- webhook-delivery ----------------------------------------------------------------------------------------------


def answered(status: int, said: str, *, secure: bool = True) -> WebhookExchange:
    exchange = WebhookExchange(1)
    exchange.status, exchange.secure = status, secure
    exchange.head = [(b"Webhook-Delivery", said.encode())]
    return exchange


@pytest.mark.parametrize("said", ["abort-message", "disable", " Disable "])
def test_a_failed_response_may_end_the_message_or_endpoint(said: str) -> None:
    outcome = classify(answered(503, said), host="h")
    assert isinstance(outcome, Refused)
    assert outcome.code == "http_503"
    assert (outcome.detail or {})["control"] == said.strip().lower()


@pytest.mark.parametrize(
    ("status", "said", "secure", "expected"),
    [(503, "disable", False, "Retry"), (503, "continue", True, "Retry"), (200, "disable", True, "Done")],
)
def test_no_other_response_may_end_it(status: int, said: str, secure: bool, expected: str) -> None:
    outcome = classify(answered(status, said, secure=secure), host="h")
    assert type(outcome).__name__ == expected
    assert "control" not in (getattr(outcome, "detail", None) or {})


@pytest.mark.parametrize(("said", "status"), [("disable", "disabled"), ("abort-message", "active")])
def test_a_receiver_over_tls_ends_a_message_or_its_endpoint(shop: Effects, rows: Rows, said: str, status: str) -> None:
    authority, server = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    shop.job_types.replace(WebhookDelivery(shop, ssl_context=client))
    with Receiver([Answer(500, headers={"webhook-delivery": said})], ssl_context=server) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {})], effects=shop)
        assert Worker(shop).drain(max_seconds=50).counts == {"dead": 1}
    ended = get_endpoint(endpoint.id, effects=shop)
    assert ended.status == status
    assert ended.reason == ("the receiver requested it: webhook-delivery: disable" if said == "disable" else None)
    assert [row["state"] for row in rows("SELECT state FROM effects_delivered_webhooks")] == ["refused"]
