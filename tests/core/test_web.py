"""A function as an ASGI and as a WSGI app: what it is given, and what it is spared."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from effects.web import Answer, Handle, Request, asgi_app, wsgi_app
from tests.support.doors import Door, asgi_door, gone, lifespan, wsgi_door

METHODS = ("GET", "HEAD", "POST")


class Desk:
    """Keeps the requests that reach it."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer = Answer(200, b"taken", {"x-mark": "1"})

    def __call__(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answer


def opened(protocol: str, handle: Handle) -> AbstractContextManager[Door]:
    if protocol == "asgi":
        return asgi_door(asgi_app(handle, methods=METHODS, body_bytes_max=10))
    return wsgi_door(wsgi_app(handle, methods=METHODS, body_bytes_max=10))


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(params=["asgi", "wsgi"])
def door(request: pytest.FixtureRequest, desk: Desk) -> Iterator[Door]:
    with opened(request.param, desk) as made:
        yield made


def test_a_request_comes_whole_and_its_answer_goes_back(desk: Desk, door: Door) -> None:
    answer = door("POST", "/any/where?a=%20b", content=b"0123456789", headers={"X-Of-Theirs": "Yes"})
    assert (answer.status_code, answer.content, answer.headers["x-mark"]) == (200, b"taken", "1")
    assert answer.headers["content-length"] == "5"
    [request] = desk.requests
    assert (request.method, request.query, request.body) == ("POST", "a=%20b", b"0123456789")
    assert request.headers["x-of-theirs"] == "Yes"
    assert "a=" not in repr(request)
    assert "0123" not in repr(request)


def test_head_and_204_have_no_body(desk: Desk, door: Door) -> None:
    head = door("HEAD", "/")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "5")
    desk.answer = Answer(204)
    none = door("POST", "/", content=b"")
    assert (none.status_code, none.content) == (204, b"")
    assert none.headers.get("content-length", "0") == "0"  # the library's WSGI server writes one of its own
    assert [request.body for request in desk.requests] == [b"", b""]


def test_another_method_and_a_longer_body_do_not_come_through(desk: Desk, door: Door) -> None:
    refused = door("PUT", "/", content=b"x" * 11)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert door("POST", "/", content=b"x" * 11).status_code == 413
    assert desk.requests == []


def test_a_server_may_start_and_stop_it(desk: Desk) -> None:
    app = asgi_app(desk, methods=METHODS)
    assert lifespan(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_client_that_goes_in_the_midst_of_its_body_gets_nothing_done(desk: Desk) -> None:
    assert gone(asgi_app(desk, methods=METHODS)) == []
    assert desk.requests == []


@pytest.mark.parametrize("length", ["-1", "1.0", "x", "٣"])
def test_a_length_that_is_none_is_refused(length: str, desk: Desk) -> None:
    said: list[Any] = []
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(b"abc")}
    app: Any = wsgi_app(desk, methods=METHODS)
    assert list(app(environ, lambda status, headers: said.append(status))) == [b""]
    assert (said, desk.requests) == (["400 Bad Request"], [])


def test_204_has_no_length_of_ours(desk: Desk) -> None:
    desk.answer = Answer(204)
    with opened("asgi", desk) as door:
        assert "content-length" not in door("POST", "/").headers
