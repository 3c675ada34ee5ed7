"""A function as an ASGI and as a WSGI app: what it is given, and what it is spared."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest

from effects.kit.web_apps import Answer, Handle, Request, asgi_app, send_pieces, wsgi_app
from tests.support.web_clients import BigFile, WebClient, asgi_client, gone, left, lifespan, wsgi_client

METHODS = ("GET", "HEAD", "POST")


class StubServer:
    """Keeps the requests that reach it."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer = Answer(200, b"taken", {"x-mark": "1"})

    def __call__(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answer


def opened(protocol: str, handle: Handle) -> AbstractContextManager[WebClient]:
    if protocol == "asgi":
        return asgi_client(asgi_app(handle, methods=METHODS, body_bytes_max=10))
    return wsgi_client(wsgi_app(handle, methods=METHODS, body_bytes_max=10))


@pytest.fixture
def stub_server() -> StubServer:
    return StubServer()


@pytest.fixture(params=["asgi", "wsgi"])
def web_client(request: pytest.FixtureRequest, stub_server: StubServer) -> Iterator[WebClient]:
    with opened(request.param, stub_server) as client:
        yield client


def test_a_request_arrives_whole_and_its_response_is_sent(stub_server: StubServer, web_client: WebClient) -> None:
    answer = web_client("POST", "/any/where?a=%20b", content=b"0123456789", headers={"X-Of-Theirs": "Yes"})
    assert (answer.status_code, answer.content, answer.headers["x-mark"]) == (200, b"taken", "1")
    assert answer.headers["content-length"] == "5"
    [request] = stub_server.requests
    assert (request.method, request.query, request.body) == ("POST", "a=%20b", b"0123456789")
    assert request.headers["x-of-theirs"] == "Yes"
    assert "a=" not in repr(request)
    assert "0123" not in repr(request)


def test_head_and_204_have_no_body(stub_server: StubServer, web_client: WebClient) -> None:
    head = web_client("HEAD", "/")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "5")
    stub_server.answer = Answer(204)
    none = web_client("POST", "/", content=b"")
    assert (none.status_code, none.content) == (204, b"")
    assert none.headers.get("content-length", "0") == "0"  # the library's WSGI server writes one of its own
    assert [request.body for request in stub_server.requests] == [b"", b""]


def test_other_methods_and_longer_bodies_are_refused(stub_server: StubServer, web_client: WebClient) -> None:
    refused = web_client("PUT", "/", content=b"x" * 11)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert web_client("POST", "/", content=b"x" * 11).status_code == 413
    assert stub_server.requests == []


def test_a_server_may_start_and_stop_it(stub_server: StubServer) -> None:
    app = asgi_app(stub_server, methods=METHODS)
    assert lifespan(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_client_that_disconnects_in_its_body_is_not_handled(stub_server: StubServer) -> None:
    assert gone(asgi_app(stub_server, methods=METHODS)) == []
    assert stub_server.requests == []


def sent_pieces(file: BigFile, left_after: int) -> list[dict[str, Any]]:
    return left(lambda scope, receive, send: send_pieces(file.pieces(), receive, send), {}, left_after)


def test_a_body_in_pieces_arrives_whole() -> None:
    file = BigFile()
    sent = sent_pieces(file, 1000)
    assert b"".join(message["body"] for message in sent) == b"x" * 100
    assert [message.get("more_body", False) for message in sent] == [True] * 100 + [False]
    assert file.is_closed


def test_a_body_in_pieces_is_read_no_further_for_a_client_that_has_left() -> None:
    file = BigFile()
    assert len(sent_pieces(file, 2)) == 2
    assert (file.count, file.is_closed) == (3, True)


def test_a_body_whose_sending_is_cancelled_is_closed() -> None:
    file, reading, go_on = BigFile(), threading.Event(), threading.Event()

    def slow() -> Generator[bytes, None, None]:
        with closing(file.pieces()) as pieces:
            for piece in pieces:
                reading.set()
                go_on.wait()
                yield piece

    async def visit() -> None:
        never = asyncio.Event()

        async def receive() -> Mapping[str, Any]:
            await never.wait()
            return {}

        async def send(message: dict[str, Any]) -> None:
            """Nothing gets here."""

        sending = asyncio.create_task(send_pieces(slow(), receive, send))
        await asyncio.to_thread(reading.wait)
        sending.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await sending
        finally:
            go_on.set()

    asyncio.run(visit())  # its end waits for the thread
    gc.collect()
    assert (file.count, file.is_closed) == (1, True)


@pytest.mark.parametrize("length", ["-1", "1.0", "x", "٣"])
def test_an_invalid_content_length_is_refused(length: str, stub_server: StubServer) -> None:
    said: list[Any] = []
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(b"abc")}
    app: Any = wsgi_app(stub_server, methods=METHODS)
    assert list(app(environ, lambda status, headers: said.append(status))) == [b""]
    assert (said, stub_server.requests) == (["400 Bad Request"], [])


@pytest.mark.parametrize(
    ("length", "status"), [("9" * 5000, 413), ("0" * 5000 + "3", 200), ("9" * 19, 413), ("0" * 5000, 200)]
)
def test_a_length_of_thousands_of_digits_is_a_number_too(length: str, status: int, stub_server: StubServer) -> None:
    seen: list[Any] = []
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(b"abc")}
    app: Any = wsgi_app(stub_server, methods=METHODS)
    list(app(environ, lambda line, headers: seen.append(line[:3])))
    assert seen == [str(status)]


def test_204_has_no_length_of_ours(stub_server: StubServer) -> None:
    stub_server.answer = Answer(204)
    with opened("asgi", stub_server) as web_client:
        assert "content-length" not in web_client("POST", "/").headers
