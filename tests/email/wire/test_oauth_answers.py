"""Goal: each response of a token service, however it comes, is tokens or a failure that says who can mend it.
Method: the bytes of each response over TLS on loopback, one connection a request; no database.
"""

from __future__ import annotations

import gzip
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from socket import socket
from typing import Any, TypeAlias

import pytest

from effects_email.oauth import service
from effects_email.oauth.registration import OAuthClient, TokenFailure, Tokens
from tests.peers.raw import RawPeer, read_request

GOOD = {"access_token": "token-x", "refresh_token": "refresh-x", "expires_in": 60}
TOKENS = Tokens("token-x", "refresh-x", 60)
DAY = 86_400
Client: TypeAlias = Callable[..., OAuthClient]


@pytest.fixture
def client(ca_file: Path) -> Client:
    def client_of(port: int, **more: Any) -> OAuthClient:
        return OAuthClient(
            user="u", grant="refresh", token_url=f"https://localhost:{port}/token", device_url="", scope="mail",
            client_id="app", ca_file=str(ca_file), private_network=True, **more,
        )  # fmt: skip

    return client_of


def response(
    body: bytes | dict[str, Any] = b"",
    status: str = "200 OK",
    *headers: str,
    version: str = "1.1",
    length: int | None = 0,
) -> bytes:
    """A response; `length` is what it claims beyond its body, None for none."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/{version} {status}",
        *headers,
        *([] if length is None else [f"content-length: {len(data) + length}"]),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return response(b"", "200 OK", "transfer-encoding: chunked", length=None) + chunks + end


@contextmanager
def speaking(tls: ssl.SSLContext, *pieces: bytes, hold: bool = False) -> Iterator[RawPeer]:
    """A service that sends these pieces to whoever asks, each by itself, and hangs up; with `hold` it does not."""

    def behave(connection: socket) -> None:
        with tls.wrap_socket(connection, server_side=True) as wire:
            read_request(wire)
            for piece in pieces:
                wire.sendall(piece)
            if hold:
                peer.over.wait(10)

    with RawPeer(behave) as peer:
        yield peer


BODY = json.dumps(GOOD).encode()
HALVES = (BODY[:25], BODY[25:])  # within the access token


@pytest.mark.parametrize("pieces", [
    [response(GOOD)],
    [response(GOOD, version="1.0", length=None)],
    [response(GOOD, length=None)],
    [response(GOOD, "200 OK", "content-type: text/html")],
    [response(GOOD, "200 OK", "date: Mon, 29 Nov 2027 10:00:00 GMT")],
    [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + response(GOOD)],
    [response(GOOD).replace(b"\r\n", b"\n")],
    [response(b"\xef\xbb\xbf" + BODY)],
    [response(GOOD, length=100)],
    [chunked(*HALVES)],
    [chunked(BODY, end=b"")],
    [bytes([byte]) for byte in response(GOOD)],
    [response(gzip.compress(BODY), "200 OK", "content-encoding: gzip")],
    [chunked(gzip.compress(BODY))],
    [response(b'{"access_token": "of-yesterday",' + BODY[1:])],
    [response(BODY + b" " * 60_000)],
    [response({**GOOD, "token_type": "bEARER"})],
], ids=[
    "1.1", "1.0", "no length", "html", "of next year", "103", "LF", "BOM", "cut behind it", "chunked",
    "chunked without an end", "drops", "gzip", "gzip chunked", "duplicate key", "60 KB", "type"
])  # fmt: skip
def test_tokens_come_in_any_form_of_http(pieces: list[bytes], client: Client, server_tls: ssl.SSLContext) -> None:
    with speaking(server_tls, *pieces) as peer:
        assert service.request_tokens(client(peer.port), {}) == TOKENS


LIFETIMES = [
    (3600, 3600), ("3600", 3600), (3600.5, 3600.5), (1e-9, 1e-9), (0, 3600), (-5, 3600), ("0", 3600), (True, 1),
    (None, 3600), ("soon", 3600), ([], 3600), ("nan", 3600), ("1e999", 30 * DAY), (1e300, 30 * DAY), (10**400, 3600),
]  # fmt: skip


def test_a_lifetime_of_any_form_is_taken(client: Client, server_tls: ssl.SSLContext) -> None:
    """Where it says nothing, or nonsense, an hour."""
    responses = iter(
        [response({**GOOD, "expires_in": sent}) for sent, _ in LIFETIMES] + [response({"access_token": "x"})]
    )

    def behave(connection: socket) -> None:
        with server_tls.wrap_socket(connection, server_side=True) as wire:
            read_request(wire)
            wire.sendall(next(responses))

    with RawPeer(behave) as peer:
        for sent, seconds in LIFETIMES:
            tokens = service.request_tokens(client(peer.port), {})
            assert isinstance(tokens, Tokens), sent
            assert tokens.seconds == seconds, sent
        assert service.request_tokens(client(peer.port), {}) == Tokens("x", None, 3600)


REFUSED, UNREADABLE = "refuses this client", "HTTP 200 without an access token"
FAILURES = [
    (response({"error": "invalid_grant"}, "400 Bad"), "login_needed", "invalid_grant", "no longer accepts the login"),
    (response({"error": "interaction_required"}, "400 Bad"), "login_needed", "interaction_required", "no longer"),
    (response({"error": "invalid_client"}, "400 Bad"), "config", "invalid_client", REFUSED),
    (response({"error": "invalid_client"}, "401 Bad"), "config", "invalid_client", REFUSED),
    (response({"error": "invalid_scope", "error_description": "refresh-x"}, "400 Bad"), "config", "invalid_scope",
     REFUSED),
    (response({"error": "no \x1b[31msuch"}, "400 Bad"), "config", "http_400", "(HTTP 400)"),
    (response(b"", "403 No"), "config", "http_403", "(HTTP 403)"),
    (response(gzip.compress(b'{"error":"invalid_grant"}'), "400 Bad"), "login_needed", "invalid_grant", "no longer"),
    (response(b"", "429 Slow", "retry-after: 7"), "unavailable", "http_429", "HTTP 429"),
    (response(b"", "500 Down"), "unavailable", "http_500", "HTTP 500"),
    (response({"error": "temporarily_unavailable"}, "503 Down"), "unavailable", "http_503", "HTTP 503"),
    (response(GOOD, "302 Found", "location: https://localhost/"), "unavailable", "http_302", "HTTP 302"),
    (response(GOOD, "201 Created"), "unavailable", "http_201", "HTTP 201"),
    (response(b"", "204 Empty", length=None), "unavailable", "http_204", "HTTP 204"),
    (response({}), "unavailable", "http_200", UNREADABLE),
    (response([GOOD]), "unavailable", "http_200", UNREADABLE),  # type: ignore[arg-type]
    (response(b"null"), "unavailable", "http_200", UNREADABLE),
    (response(b"<html>"), "unavailable", "http_200", UNREADABLE),
    (response(b"[" * 60_000), "unavailable", "http_200", UNREADABLE),
    (response(BODY.decode().encode("utf-16")), "unavailable", "http_200", UNREADABLE),
    (response(BODY[:-1] + b"\xff"), "unavailable", "http_200", UNREADABLE),
    (response({**GOOD, "access_token": 7}), "unavailable", "http_200", UNREADABLE),
    (response({**GOOD, "access_token": ""}), "unavailable", "http_200", UNREADABLE),
    (response({**GOOD, "access_token": "a b\r\nc"}), "unavailable", "http_200", UNREADABLE),
    (response({**GOOD, "access_token": "x" * 20_000}), "unavailable", "http_200", UNREADABLE),
    (response({**GOOD, "token_type": "DPoP"}), "config", "token_type", "gives 'DPoP' tokens; mail servers take Bearer"),
    (response({**GOOD, "token_type": "mac\x1b"}), "config", "token_type", "gives tokens of another type"),
    (response({**GOOD, "token_type": "refresh-x" * 9}), "config", "token_type", "gives tokens of another type"),
    (response({**GOOD, "token_type": ""}), "config", "token_type", "gives tokens of another type"),
    (response({**GOOD, "token_type": ["Bearer"]}), "config", "token_type", "gives tokens of another type"),
    (response({**GOOD, "refresh_token": ["r"]}), "unavailable", "http_200", UNREADABLE),
    (response(b" " * 10_000_000 + BODY), "unavailable", "http_200", "more than 65536 bytes"),
    (response(gzip.compress(b" " * 10_000_000 + BODY)), "unavailable", "http_200", UNREADABLE),
    (response(gzip.compress(BODY)[:-20]), "unavailable", "http_200", UNREADABLE),
    (response(HALVES[0], length=50), "unavailable", "http_200", "a response that breaks off"),
    (chunked(HALVES[0], end=b""), "unavailable", "http_200", "a response that breaks off"),
    (chunked(HALVES[0], end=b"no number\r\n"), "unavailable", "http_200", "a response that breaks off"),
    (b"", "unavailable", "no_answer", "ended without an answer"),
    (b"HTTP/1.1 2", "unavailable", "bad_answer", "not HTTP"),
    (b"220 mail.example.com ESMTP\r\n", "unavailable", "bad_answer", "not HTTP"),
    (b"HTTP/1.1 200 OK\r\n" + b"x-header: y\r\n" * 100_000, "unavailable", "http_200", "a response that breaks off"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "kind", "code", "words"), FAILURES, ids=range(len(FAILURES)))
def test_each_other_response_has_its_failure(
    sent: bytes, kind: str, code: str, words: str, client: Client, server_tls: ssl.SSLContext
) -> None:
    with speaking(server_tls, sent) as peer:
        failure = service.request_tokens(client(peer.port), {"refresh_token": "refresh-x"})
    assert isinstance(failure, TokenFailure)
    assert (failure.kind, failure.code) == (kind, f"oauth_{code}")
    assert words in failure.reason
    assert "refresh-x" not in failure.reason
    assert failure.after_seconds == (7 if b"retry-after" in sent else None)


@pytest.mark.parametrize(("sent", "code"), [
    (b"", "answer_timeout"), (b"HTTP/1.1 200 OK", "answer_timeout"), (b"HTTP/1.1 200 OK\r\n", "http_200"),
    (response(BODY[:9], length=9), "http_200"),
])  # fmt: skip
def test_no_response_is_waited_for_beyond_its_time(
    sent: bytes, code: str, client: Client, server_tls: ssl.SSLContext
) -> None:
    with speaking(server_tls, sent, hold=True) as peer:
        failure = service.request_tokens(client(peer.port), {}, seconds=0.5)
    assert isinstance(failure, TokenFailure)
    assert (failure.kind, failure.code) == ("unavailable", f"oauth_{code}")


@pytest.mark.parametrize(("signs", "ahead", "words"), [
    (True, -DAY, r"this machine's clock is 86[34]\d\d s ahead of the service's"),
    (True, DAY, r"this machine's clock is 86[34]\d\d s behind the service's"),
    (True, 60, ""), (False, DAY, ""), (True, None, ""),
])  # fmt: skip
def test_a_signed_assertion_that_another_clock_refuses_names_the_clock(
    signs: bool, ahead: float | None, words: str, client: Client, server_tls: ssl.SSLContext
) -> None:
    date = [] if ahead is None else [f"date: {formatdate(time.time() + ahead, usegmt=True)}"]
    with speaking(server_tls, response({"error": "invalid_client"}, "401 No", *date)) as peer:
        failure = service.request_tokens(client(peer.port, assertion_key="key" if signs else None), {})
    assert isinstance(failure, TokenFailure)
    assert re.search(words, failure.reason)
    assert ("clock" in failure.reason) is bool(words)
