"""What a provider or the wire may do wrong: every row of the tables, every cut, on real sockets."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import trustme

from effects.kit.http.messages import Fault
from effects_email.transport.base import SendResult
from effects_email.transport.http_api import transport as http_table
from effects_email.transport.http_api.client import ProviderExchange
from effects_email.transport.http_api.mailgun import Mailgun
from effects_email.transport.http_api.postmark import Postmark
from effects_email.transport.http_api.resend import Resend
from effects_email.transport.http_api.sendgrid import SendGrid
from effects_email.transport.http_api.transport import HttpTransport, Said, wait_of
from effects_email.transport.url import open_transport
from tests.email.wire.conftest import Released
from tests.email.world.stand_ins import TOKEN, answer, outgoing_message, receiver, url_of
from tests.peers.http import Answer, Receiver
from tests.peers.raw import RawPeer, read_request

DOWN, CONFIG, RETRY, UNKNOWN = "transport_down", "config", "retry", "unknown"
REFUSED, ADDRESS, THROTTLE = "refused_message", "refused_recipient", "throttle"


def send(scheme: str, port: int, *, seconds: float = 10, **parts: Any) -> tuple[SendResult, int]:
    """The result of one message, and how often its release was requested."""
    transport = open_transport("test", url_of(scheme, port))
    released = Released()
    try:
        return transport.send(outgoing_message(**parts), release=released, seconds=seconds), released.calls
    finally:
        transport.close()


# -- statuses --------------------------------------------------------------------------------------------------------

# provider, status, JSON, headers → kind, code, wait
_RESEND = {"name": "application_error", "message": "no"}
STATUSES: list[tuple[str, int, Mapping[str, Any], dict[str, str], str, str, float | None]] = [
    ("resend", 401, {"name": "missing_api_key"}, {}, CONFIG, "resend_401_missing_api_key", None),
    ("resend", 402, {}, {}, CONFIG, "resend_402", None),
    ("resend", 403, {"name": "invalid_api_key"}, {}, CONFIG, "resend_403_invalid_api_key", None),
    ("resend", 403, {"name": "validation_error"}, {}, CONFIG, "resend_403_validation_error", None),
    ("resend", 404, {"name": "not_found"}, {}, CONFIG, "resend_404_not_found", None),
    ("resend", 405, {"name": "method_not_allowed"}, {}, CONFIG, "resend_405_method_not_allowed", None),
    ("resend", 302, {}, {"location": "https://elsewhere.example/"}, CONFIG, "resend_302", None),
    ("resend", 400, {"name": "validation_error", "message": "Invalid `to` field."}, {}, ADDRESS,
     "resend_400_validation_error", None),
    ("resend", 422, {"name": "validation_error", "message": "Invalid `from` field."}, {}, CONFIG,
     "resend_422_validation_error", None),
    ("resend", 422, {"name": "invalid_from_address"}, {}, CONFIG, "resend_422_invalid_from_address", None),
    ("resend", 422, {"name": "missing_required_field", "message": "Missing `subject`."}, {}, REFUSED,
     "resend_422_missing_required_field", None),
    ("resend", 400, {"name": "invalid_idempotency_key"}, {}, REFUSED, "resend_400_invalid_idempotency_key", None),
    ("resend", 413, {}, {}, REFUSED, "resend_413", None),
    ("resend", 451, {"name": "security_error"}, {}, REFUSED, "resend_451_security_error", None),
    ("resend", 408, {}, {}, UNKNOWN, "resend_408", 30),
    ("resend", 409, {"name": "concurrent_idempotent_requests"}, {}, RETRY,
     "resend_409_concurrent_idempotent_requests", 15),
    ("resend", 409, {"name": "concurrent_idempotent_requests"}, {"retry-after": "40"}, RETRY,
     "resend_409_concurrent_idempotent_requests", 40),
    ("resend", 409, {"name": "invalid_idempotent_request"}, {}, UNKNOWN, "resend_409_invalid_idempotent_request", 3600),
    ("resend", 409, {}, {}, UNKNOWN, "resend_409", 30),
    ("resend", 425, {}, {}, RETRY, "resend_425", None),
    ("resend", 429, {"name": "rate_limit_exceeded"}, {"retry-after": "2", "ratelimit-reset": "9"}, THROTTLE,
     "resend_429_rate_limit_exceeded", 2),
    ("resend", 429, {"name": "rate_limit_exceeded"}, {"ratelimit-reset": "7"}, THROTTLE,
     "resend_429_rate_limit_exceeded", 7),
    ("resend", 429, {"name": "rate_limit_exceeded"}, {}, THROTTLE, "resend_429_rate_limit_exceeded", 1),
    ("resend", 429, {"name": "daily_quota_exceeded"}, {"retry-after": "2"}, THROTTLE,
     "resend_429_daily_quota_exceeded", 3600),
    ("resend", 429, {"name": "monthly_quota_exceeded"}, {}, THROTTLE, "resend_429_monthly_quota_exceeded", 21_600),
    ("resend", 500, _RESEND, {}, UNKNOWN, "resend_500_application_error", 30),
    ("resend", 502, {}, {}, UNKNOWN, "resend_502", 30),
    ("resend", 503, {}, {}, UNKNOWN, "resend_503", 30),
    ("resend", 503, {}, {"retry-after": "120"}, RETRY, "resend_503", 120),
    ("resend", 504, {}, {"retry-after": "120"}, UNKNOWN, "resend_504", 120),
    ("resend", 600, {}, {}, UNKNOWN, "resend_600", 30),
    ("postmark", 401, {"ErrorCode": 10}, {}, CONFIG, "postmark_401_10", None),
    ("postmark", 403, {}, {}, CONFIG, "postmark_403", None),
    ("postmark", 422, {"ErrorCode": 300, "Message": "Invalid 'From' address: 'x'."}, {}, CONFIG,
     "postmark_422_300", None),
    ("postmark", 422, {"ErrorCode": 300, "Message": "Error parsing 'To': Illegal email address 'x'."}, {}, ADDRESS,
     "postmark_422_300", None),
    ("postmark", 422, {"ErrorCode": 300, "Message": "Provide either TextBody or HtmlBody"}, {}, REFUSED,
     "postmark_422_300", None),
    ("postmark", 422, {"ErrorCode": 400}, {}, CONFIG, "postmark_422_400", None),
    ("postmark", 422, {"ErrorCode": 402}, {}, REFUSED, "postmark_422_402", None),
    ("postmark", 422, {"ErrorCode": 405}, {}, CONFIG, "postmark_422_405", None),
    ("postmark", 422, {"ErrorCode": 406, "Message": "inactive: ann@example.org"}, {}, ADDRESS, "postmark_406", None),
    ("postmark", 422, {"ErrorCode": 406, "Message": "Somebody."}, {}, ADDRESS, "postmark_422_406", None),
    ("postmark", 422, {"ErrorCode": 411}, {}, REFUSED, "postmark_422_411", None),
    ("postmark", 422, {"ErrorCode": 413}, {}, CONFIG, "postmark_422_413", None),
    ("postmark", 422, {"ErrorCode": 1226}, {}, CONFIG, "postmark_422_1226", None),
    ("postmark", 413, {}, {}, REFUSED, "postmark_413", None),
    ("postmark", 429, {"ErrorCode": 429}, {}, THROTTLE, "postmark_429_429", 1),
    ("postmark", 500, {}, {}, UNKNOWN, "postmark_500", None),
    ("postmark", 503, {"ErrorCode": 100}, {}, RETRY, "postmark_503_100", 300),
    ("postmark", 503, {}, {}, UNKNOWN, "postmark_503", None),
    ("sendgrid", 400, {"errors": [{"field": "from.email", "message": "no"}]}, {}, CONFIG, "sendgrid_400", None),
    ("sendgrid", 403, {"errors": [{"field": "from", "message": "not a verified Sender Identity"}]}, {}, CONFIG,
     "sendgrid_403", None),
    ("sendgrid", 400, {"errors": [{"field": "personalizations.0.to.0.email", "message": "bad"}]}, {}, ADDRESS,
     "sendgrid_400", None),
    ("sendgrid", 400, {"errors": [{"field": "subject", "message": "is required"}]}, {}, REFUSED, "sendgrid_400", None),
    ("sendgrid", 401, {"errors": [{"field": None, "message": "Maximum credits exceeded"}]}, {}, CONFIG,
     "sendgrid_401", None),
    ("sendgrid", 405, {}, {}, CONFIG, "sendgrid_405", None),
    ("sendgrid", 413, {}, {}, REFUSED, "sendgrid_413", None),
    ("sendgrid", 429, {"errors": [{"message": "too many requests"}]}, {}, THROTTLE, "sendgrid_429", 1),
    ("sendgrid", 500, {"errors": []}, {}, UNKNOWN, "sendgrid_500", None),
    ("sendgrid", 503, {"errors": "?"}, {}, UNKNOWN, "sendgrid_503", None),
    ("mailgun", 400, {"message": "'from' parameter is not a valid address. please check documentation"}, {}, CONFIG,
     "mailgun_400", None),
    ("mailgun", 400, {"message": "'to' parameter is not a valid address. please check documentation"}, {}, ADDRESS,
     "mailgun_400", None),
    ("mailgun", 400, {"message": "Sandbox subdomains are for test purposes only."}, {}, CONFIG, "mailgun_400", None),
    ("mailgun", 400, {"message": "Need at least one of 'text' or 'html' parameters"}, {}, REFUSED,
     "mailgun_400", None),
    ("mailgun", 401, {}, {}, CONFIG, "mailgun_401", None),
    ("mailgun", 402, {}, {}, CONFIG, "mailgun_402", None),
    ("mailgun", 404, {"message": "Domain not found"}, {}, CONFIG, "mailgun_404", None),
    ("mailgun", 405, {}, {}, CONFIG, "mailgun_405", None),
    ("mailgun", 413, {}, {}, REFUSED, "mailgun_413", None),
    ("mailgun", 429, {}, {"retry-after": "20"}, THROTTLE, "mailgun_429", 20),
    ("mailgun", 500, {}, {}, UNKNOWN, "mailgun_500", None),
    ("mailgun", 503, {}, {"retry-after": "30"}, RETRY, "mailgun_503", 30),
]  # fmt: skip


@pytest.mark.parametrize("row", STATUSES, ids=lambda row: f"{row[0]} {row[1]} {next(iter(row[2].values()), '')}")
def test_each_status_has_the_meaning_in_the_table(
    row: tuple[str, int, Mapping[str, Any], dict[str, str], str, str, float | None],
) -> None:
    scheme, status, document, headers, kind, code, wait = row
    with receiver([answer(status, headers, **document)]) as peer:
        sent, released = send(scheme, peer.port)
        assert (sent.verdict.kind, sent.verdict.code, sent.verdict.after_seconds) == (kind, code, wait)
        assert (released, len(peer.requests)) == (1, 1)
    assert sent.recipients == {"ann@example.org": sent.verdict}
    assert sent.provider_id is None
    assert (sent.verdict.suppress is not None) == ("406" in code)


FACTS: dict[str, Any] = {
    "resend": Resend(), "postmark": Postmark(), "sendgrid": SendGrid(), "mailgun": Mailgun("mg.example.com"),
}  # fmt: skip


def test_the_table_above_meets_every_row_of_the_tables_in_the_code() -> None:
    met = set()
    for scheme, status, document, headers, *_ in STATUSES:
        facts: Any = FACTS[scheme]
        hinted = wait_of(headers) is not None
        met.add(http_table.find([*facts.rows, *http_table.COMMON], status, facts.said(document), hinted=hinted))
    rows = [row for facts in FACTS.values() for row in facts.rows]
    unmet = [row for row in (*rows, *http_table.COMMON) if row not in met]
    assert [row.reason for row in unmet] == []


def test_some_row_fits_every_status() -> None:
    for status in range(100, 1000):
        assert http_table.find(http_table.COMMON, status, Said())


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"id": 7, "MessageID": [], "Message": {}}', b"\xff\x00"])
def test_a_2xx_is_accepted_even_if_it_cannot_be_read(status: int, body: bytes) -> None:
    for scheme in FACTS:
        with receiver([Answer(status, b"" if status == 204 else body)]) as peer:
            sent, _ = send(scheme, peer.port)
        assert (sent.verdict.kind, sent.provider_id) == ("accepted", None)


_HINTS: list[tuple[dict[str, str], float | None]] = [
    ({}, None),
    ({"retry-after": "0"}, 0),
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after": "9999999"}, 21_600),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "-5"}, None),
    ({"retry-after": "٣"}, None),
    ({"ratelimit-reset": "12"}, 12),
    ({"retry-after": "Fri, 20 Nov 2020 08:00:00 GMT"}, 0),
    ({"retry-after": "Fri, 20 Nov 2099 08:00:00 GMT"}, 21_600),
]


@pytest.mark.parametrize(("headers", "seconds"), _HINTS, ids=str)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_of(headers) == seconds


def test_every_fault_of_the_client_has_a_verdict() -> None:
    codes = set()
    for fault in get_args(Fault):
        exchange = ProviderExchange(lambda: None, 1)
        exchange.fail(fault, "")
        codes.add(exchange.failure)
    assert codes | {"tls_unverified"} == http_table.FAULTS.keys()
    assert {row.kind for row in http_table.FAULTS.values()} == {DOWN, CONFIG, UNKNOWN}


# -- the wire --------------------------------------------------------------------------------------------------------


def hang(peer: list[RawPeer]) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        peer[0].over.wait(20)

    return behave


def cut_in_the_request(connection: socket.socket) -> None:
    connection.recv(10)
    reset(connection)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def cut_after_request(connection: socket.socket) -> None:
    read_request(connection)


def reset_after_request(connection: socket.socket) -> None:
    read_request(connection)
    reset(connection)


def saying(data: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(data)

    return behave


_CUTS: dict[str, tuple[Callable[[socket.socket], None], str, set[str]]] = {
    "cut in the request": (cut_in_the_request, UNKNOWN, {"no_answer"}),
    "cut after the request": (cut_after_request, UNKNOWN, {"no_answer"}),
    "reset after the request": (reset_after_request, UNKNOWN, {"no_answer"}),
    "garbage": (saying(b"220 mail.example.com ESMTP\r\n\r\n"), UNKNOWN, {"bad_answer"}),
    "half a status line": (saying(b"HTTP/1.1 2"), UNKNOWN, {"bad_answer"}),
    "half a head": (saying(b"HTTP/1.1 200 OK\r\ncontent-le"), "accepted", {"resend_200"}),
    "half a body": (saying(b'HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{"id"'), "accepted", {"resend_200"}),
    "half a refusal": (saying(b"HTTP/1.1 422 No\r\ncontent-length: 90\r\n\r\n{"), REFUSED, {"resend_422"}),
    "endless body": (saying(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000), "accepted", {"resend_200"}),
    "early hints": (
        saying(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"), CONFIG, {"resend_401"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _CUTS)
def test_after_the_request_left_no_answer_is_unknown(name: str) -> None:
    behave, kind, codes = _CUTS[name]
    with RawPeer(behave) as peer:
        sent, released = send("resend", peer.port)
        assert (sent.verdict.kind, released, peer.accepted) == (kind, 1, 1)
        assert sent.verdict.code in codes
        if kind == UNKNOWN:
            assert sent.verdict.after_seconds == 30
            for scheme in ("postmark", "sendgrid", "mailgun"):
                keyless, _ = send(scheme, peer.port)
                assert (keyless.verdict.kind, keyless.verdict.after_seconds) == (UNKNOWN, None)


def test_a_stall_ends_with_the_deadline_and_is_unknown() -> None:
    peers: list[RawPeer] = []
    with RawPeer(hang(peers)) as peer:
        peers.append(peer)
        sent, released = send("postmark", peer.port, seconds=0.4)
    assert (sent.verdict.kind, sent.verdict.code, released) == (UNKNOWN, "answer_timeout", 1)


@pytest.mark.slow
def test_a_drip_does_not_outlive_the_deadline() -> None:
    dripped = 0
    peers: list[RawPeer] = []

    def behave(connection: socket.socket) -> None:
        nonlocal dripped
        read_request(connection)
        while not peers[0].over.wait(0.02):
            connection.sendall(b"HTTP/1.1 200 OK" if dripped == 0 else b".")  # a status line that does not end
            dripped += 1

    with RawPeer(behave) as peer:
        peers.append(peer)
        sent, _ = send("postmark", peer.port, seconds=0.6)
    assert (sent.verdict.kind, sent.verdict.code) == (UNKNOWN, "answer_timeout")
    assert dripped > 5


@pytest.mark.slow
def test_a_peer_that_stops_reading_is_unknown_too() -> None:
    peers: list[RawPeer] = []
    with RawPeer(lambda connection: peers[0].over.wait(20)) as peer:
        peers.append(peer)
        sent, released = send("postmark", peer.port, seconds=0.6, text="x" * 20_000_000)
    assert (sent.verdict.kind, sent.verdict.code, released) == (UNKNOWN, "answer_timeout", 1)


def test_an_answer_that_comes_before_the_body_is_read_counts() -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1_000_000):
            pass

    with RawPeer(behave) as peer:
        sent, _ = send("postmark", peer.port, text="x" * 3_000_000)
    assert (sent.verdict.kind, sent.verdict.code) == (REFUSED, "postmark_413")


def test_a_refused_connection_costs_no_release() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    sent, released = send("resend", port)
    assert (sent.verdict.kind, sent.verdict.code, released) == (DOWN, "connect_failed", 0)
    assert sent.verdict.after_seconds is None


def test_no_time_costs_no_release() -> None:
    with receiver([200]) as peer:
        sent, released = send("resend", peer.port, seconds=0)
        assert (sent.verdict.kind, sent.verdict.code, released) == (DOWN, "connect_timeout", 0)
        assert peer.requests == []


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    certificates = trustme.CA()
    folder = tmp_path_factory.mktemp("ca")
    certificates.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificates.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    return folder


@pytest.fixture
def server_context(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem")
    return context


@pytest.fixture
def trusting(authority: Path) -> Iterator[Callable[[int], HttpTransport]]:
    """Opens a transport that trusts our authority."""
    transports: list[HttpTransport] = []

    def open_one(port: int) -> HttpTransport:
        context = ssl.create_default_context(cafile=str(authority / "ca.pem"))
        transports.append(HttpTransport("t", Resend(), TOKEN, origin=f"https://127.0.0.1:{port}", ssl_context=context))
        return transports[-1]

    yield open_one
    for transport in transports:
        transport.close()


def test_a_verified_server_gets_the_message(
    trusting: Callable[[int], HttpTransport], server_context: ssl.SSLContext
) -> None:
    with Receiver([answer(200, id="abc")], ssl_context=server_context) as peer:
        sent = trusting(peer.port).send(outgoing_message(), release=Released(), seconds=10)
    assert (sent.verdict.kind, sent.provider_id) == ("accepted", "abc")
    assert sent.tls in ("TLSv1.2", "TLSv1.3")
    assert "tls" in sent.phases


def test_an_unverified_server_is_sent_nothing(server_context: ssl.SSLContext) -> None:
    released = Released()
    with Receiver([200], ssl_context=server_context) as peer:
        transport = open_transport("test", f"resend://{TOKEN}@?origin=https://127.0.0.1:{peer.port}")
        sent = transport.send(outgoing_message(), release=released, seconds=10)
        transport.close()
        assert peer.requests == []
    assert (sent.verdict.kind, sent.verdict.code, released.calls) == (CONFIG, "tls_unverified", 0)


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad\r\n\r\n", b""], ids=["no TLS", "gone"])
def test_a_handshake_that_fails_costs_no_release(says: bytes, trusting: Callable[[int], HttpTransport]) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(says)

    released = Released()
    with RawPeer(behave) as peer:
        sent = trusting(peer.port).send(outgoing_message(), release=released, seconds=10)
    assert (sent.verdict.kind, sent.verdict.code, released.calls) == (DOWN, "tls_failed", 0)
