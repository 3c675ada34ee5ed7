"""The transport against peers that misbehave: what is known afterwards, and that it always ends."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpcore
import httpx
import pytest
import trustme

from effects import Done, Outcome, Refused, Retry, Unknown
from effects_webhooks.classify import classify, excerpt
from effects_webhooks.exchange import Exchange
from effects_webhooks.network import GuardedBackend
from effects_webhooks.transport import BODY_KEPT_BYTES, Transports, explain
from tests.peers.http import Answer, Receiver
from tests.peers.raw import RawPeer, read_request
from tests.support.waiting import wait_until

BODY = b'{"type":"t","data":{"n":1}}'
SHORT = 0.4  # seconds of deadline where the peer never ends by itself
LONG = 20.0


@pytest.fixture
def transports() -> Iterator[Transports]:
    with made() as transports:
        yield transports


@contextmanager
def made(ssl_context: ssl.SSLContext | None = None, **options: int | float) -> Iterator[Transports]:
    """Transports to which every name is this machine."""
    backend = GuardedBackend(allow_private=True, resolver=lambda host, port: ["127.0.0.1"])
    transports = Transports(backend, ssl_context=ssl_context, **options)  # type: ignore[arg-type]
    yield transports
    transports.close()


def outcome_of(exchange: Exchange) -> Outcome:
    return classify(exchange, host="partner.test")


# -- answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_2xx_is_done(transports: Transports, status: int) -> None:
    with Receiver([Answer(status, b"")]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {"x-one": "1"}, BODY, seconds=LONG))
        assert isinstance(outcome, Done)
        assert outcome.detail is not None
        assert (outcome.detail["sent"], outcome.detail["status"]) == ("answered", status)
        assert receiver.requests[0].body == BODY
        assert receiver.requests[0].headers["x-one"] == "1"


@pytest.mark.parametrize("status", [300, 304, 400, 401, 404, 409, 410, 422, 429, 500, 503, 599])
def test_any_other_answer_is_tried_again_or_refused(transports: Transports, status: int) -> None:
    body = b"" if status == 304 else b"why \x1b[31mnot\x00"
    with Receiver([Answer(status, body)]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {}, BODY, seconds=LONG))
        assert isinstance(outcome, Refused if status in (400, 410, 422) else Retry)
        assert outcome.code == f"http_{status}"
        assert outcome.detail is not None
        assert outcome.detail["response"] == ("" if status == 304 else "why \\x1b[31mnot\\x00")


def test_a_redirect_is_not_followed(transports: Transports) -> None:
    with Receiver() as elsewhere, Receiver([Answer(307, headers={"location": elsewhere.url})]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {}, BODY, seconds=LONG))
        assert isinstance(outcome, Retry)
        assert outcome.code == "http_307"
        assert elsewhere.requests == []


def test_the_url_is_sent_as_it_is_and_never_told(transports: Transports) -> None:
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
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a", "answer_timeout"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", "answer_timeout"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 300_000, b"a", "answer_too_long"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40_000, b"", "answer_too_long"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"", "bad_answer"),
    ],
)
def test_an_answer_that_does_not_come_is_unknown(transports: Transports, head: bytes, piece: bytes, code: str) -> None:
    seconds = SHORT if code == "answer_timeout" else LONG
    with raw(never(head, piece)) as peer:
        outcome = outcome_of(transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=seconds))
        assert isinstance(outcome, Unknown)
        assert outcome.code == code
        assert outcome.detail is not None
        assert outcome.detail["sent"] == "sent_no_answer"


@pytest.mark.parametrize("status", [200, 503])
def test_a_dripping_body_is_judged_by_its_status(transports: Transports, status: int) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: 1000000\r\n\r\nhello".encode()
    with raw(never(head, b".")) as peer:
        exchange = transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=SHORT)
    assert exchange.status == status
    assert exchange.body_end == "broken"
    assert exchange.body.startswith(b"hello")
    assert isinstance(outcome_of(exchange), Done if status == 200 else Retry)


def test_a_peer_that_does_not_read_holds_nobody(transports: Transports) -> None:
    def behave(connection: socket.socket) -> None:
        peer.over.wait(10)

    with RawPeer(behave) as peer:
        body = b"x" * 16_000_000  # more than the sockets' buffers take
        exchange = transports.post(f"http://partner.test:{peer.port}/", {}, body, seconds=SHORT)
    assert (exchange.failure, exchange.wrote) == ("answer_timeout", True)


def test_a_tls_handshake_that_does_not_come_sends_nothing(transports: Transports) -> None:
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

    transports = Transports(GuardedBackend(allow_private=True, resolver=slow))
    exchange = transports.post("http://partner.test/", {}, BODY, seconds=SHORT)
    gate.set()
    assert (exchange.failure, exchange.wrote) == ("dns_timeout", False)
    assert isinstance(outcome_of(exchange), Retry)


# -- large and compressed bodies -----------------------------------------------------------------------------------


def test_of_a_huge_body_little_is_read_and_less_kept(transports: Transports) -> None:
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


def test_a_compressed_body_stays_compressed(transports: Transports) -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    with Receiver([Answer(200, bomb, {"content-encoding": "gzip"})]) as receiver:
        exchange = transports.post(receiver.url, {}, BODY, seconds=LONG)
    assert exchange.status == 200
    assert exchange.body == bomb[: len(exchange.body)]


# -- connections ---------------------------------------------------------------------------------------------------


def test_nobody_listens(transports: Transports) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outcome = outcome_of(transports.post(f"http://partner.test:{port}/", {}, BODY, seconds=LONG))
    assert isinstance(outcome, Retry)
    assert outcome.code == "connect_failed"


def test_a_connection_that_is_cut_after_the_request_is_unknown(transports: Transports) -> None:
    with Receiver([Answer(reset=True)]) as receiver:
        outcome = outcome_of(transports.post(receiver.url, {}, BODY, seconds=LONG))
        assert isinstance(outcome, Unknown)
        assert outcome.code == "no_answer"
        assert len(receiver.requests) == 1  # and nobody tried again behind our back


def test_a_connection_that_closes_without_a_word_is_unknown(transports: Transports) -> None:
    with RawPeer(lambda connection: None) as peer:
        outcome = outcome_of(transports.post(f"http://partner.test:{peer.port}/", {}, BODY, seconds=LONG))
    assert isinstance(outcome, Unknown)
    assert outcome.code == "no_answer"


def test_an_early_answer_counts_even_if_the_peer_did_not_read_all(transports: Transports) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass

    with RawPeer(behave) as peer:
        exchange = transports.post(f"http://partner.test:{peer.port}/", {}, b"x" * 4_000_000, seconds=LONG)
    assert exchange.status == 413


def test_one_connection_serves_many_requests(transports: Transports) -> None:
    with Receiver() as receiver:
        for _ in range(10):
            assert transports.post(receiver.url, {}, BODY, seconds=LONG).status == 200
        assert len(receiver.connections) == 1


def test_many_threads_share_an_origin(transports: Transports) -> None:
    with Receiver() as receiver:
        found: list[int | None] = []
        threads = [
            threading.Thread(target=lambda: found.append(transports.post(receiver.url, {}, BODY, seconds=LONG).status))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [200] * 20
        assert len(transports) == 1


def test_the_oldest_origins_make_room_for_new_ones() -> None:
    with made(origins_max=3) as transports, Receiver() as receiver:
        for number in range(6):
            transports.post(f"http://host{number}.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert len(transports) == 3
        transports.post(f"http://host5.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert len(receiver.connections) == 6  # the newest was kept, its connection with it


def test_idle_origins_leave() -> None:
    with made(idle_seconds=0.0) as transports, Receiver() as receiver:
        for number in range(3):
            transports.post(f"http://host{number}.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert len(transports) == 1


def test_an_origin_in_use_stays(transports: Transports) -> None:
    gate = threading.Event()
    with made(origins_max=1, idle_seconds=0.0) as transports, Receiver(lambda request: Answer(wait=gate)) as receiver:
        found: list[int | None] = []
        urls = [f"http://host{number}.test:{receiver.port}/" for number in range(4)]
        threads = [
            threading.Thread(target=lambda url=url: found.append(transports.post(url, {}, BODY, seconds=LONG).status))
            for url in urls
        ]
        for thread in threads:
            thread.start()
        receiver.wait_for(4)
        gate.set()
        for thread in threads:
            thread.join()
        assert found == [200] * 4


@pytest.mark.parametrize(
    "url", ["", "no-url", "http://", "gopher://partner.test/", "http://partner.test:99999/", "http://a\x00b/"]
)
def test_a_stored_url_that_is_none_is_refused(transports: Transports, url: str) -> None:
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
        made(client_context(authority)) as transports,
        Receiver(ssl_context=server_context(authority, "partner.test")) as receiver,
    ):
        exchange = transports.post(f"https://partner.test:{receiver.port}/", {}, BODY, seconds=LONG)
        assert exchange.status == 200
        assert "tls" in exchange.took


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_with_a_wrong_name_or_an_unknown_authority_sends_nothing(authority: trustme.CA, trusted: bool) -> None:
    context = client_context(authority if trusted else trustme.CA())
    name = "other.test" if trusted else "partner.test"
    with made(context) as transports, Receiver(ssl_context=server_context(authority, name)) as receiver:
        outcome = outcome_of(transports.post(f"https://partner.test:{receiver.port}/", {}, BODY, seconds=LONG))
        assert isinstance(outcome, Retry)
        assert outcome.code == "tls_failed"
        assert ("Hostname mismatch" if trusted else "issuer certificate") in outcome.message
        assert receiver.requests == []


def test_two_names_on_one_address_never_share_a_tls_connection(authority: trustme.CA) -> None:
    with (
        made(client_context(authority)) as transports,
        Receiver(ssl_context=server_context(authority, "a.test")) as receiver,
    ):
        assert transports.post(f"https://a.test:{receiver.port}/", {}, BODY, seconds=LONG).status == 200
        assert transports.post(f"https://b.test:{receiver.port}/", {}, BODY, seconds=LONG).failure == "tls_failed"
        assert [request.headers["host"] for request in receiver.requests] == [f"a.test:{receiver.port}"]


# -- classification ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [error for error in vars(httpcore).values()
                                   if isinstance(error, type) and issubclass(error, Exception)])  # fmt: skip
def test_every_error_of_httpcore_has_a_name_in_httpx(error: type[Exception]) -> None:
    if error is not httpcore.ConnectionNotAvailable:  # the pool's own signal, which it never lets out
        assert issubclass(getattr(httpx, error.__name__), httpx.TransportError)


def kinds(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(deeper for kind in base.__subclasses__() for deeper in kinds(kind))]


@pytest.mark.parametrize("error", kinds(httpx.TransportError))
@pytest.mark.parametrize("wrote", [False, True])
def test_every_error_of_httpx_has_its_outcome(error: type[httpx.TransportError], wrote: bool) -> None:
    exchange = Exchange(1)
    exchange.wrote = wrote
    explain(exchange, error("https://partner.test/?token=hunter2"))
    outcome = outcome_of(exchange)
    assert isinstance(outcome, Unknown if wrote else Retry)
    assert "hunter2" not in repr(outcome)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"plain\nlines", "plain\nlines"),
        ("grün".encode(), "grün"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\u2028\x85".encode(), "\\u2028\\x85"),
        (b"\0", "\\x00"),
        (b"\r\n", "\\r\n"),
    ],
)
def test_a_strangers_text_is_made_inert(body: bytes, shown: str) -> None:
    assert excerpt(body) == shown


def test_an_excerpt_is_bounded_after_escaping() -> None:
    assert len(excerpt(b"\0" * 100_000)) == 16 * 1024
