"""Goal: no dashboard is open by mistake. Method: guards that are missing, wrong or say no; headers of proxies."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import fastapi
import pytest
from django.core.handlers.asgi import ASGIRequest
from starlette.applications import Starlette
from starlette.routing import Mount

from effects import ConfigurationError
from effects.web import Dashboard, PageRequest, Person, dashboard
from effects.web.doors import asgi_door, django_urls
from effects.web.exchange import PageAnswer
from effects.web.sessions import SignIn
from tests.support.django_setup import set_up_django
from tests.support.web_clients import BigFile, left
from tests.web.browsing import Visitor
from tests.web.conftest import Shop

MOUNT = "/a/b"
ROOT = Path(__file__).parents[2]
Host: TypeAlias = Callable[[Dashboard], Any]


def by_header(request: PageRequest) -> Person | None:
    name = request.headers.get("x-user")
    return Person(name, role="operator") if name else None


def in_fastapi(board: Dashboard) -> Any:
    host = fastapi.FastAPI()
    host.mount(MOUNT, board)
    return host


def in_starlette(board: Dashboard) -> Any:
    return Starlette(routes=[Mount(MOUNT, board)])


@pytest.fixture
def board(shop: Shop) -> Iterator[Dashboard]:
    board = dashboard(guard=by_header, effects=shop.app)
    yield board
    board.close()


@contextmanager
def closing_after(board: Dashboard) -> Iterator[Dashboard]:
    yield board
    board.close()


def test_the_mount_without_its_slash_leads_there(shop: Shop, board: Dashboard) -> None:
    visitor = Visitor(in_fastapi(board))
    answer = visitor.get(MOUNT, headers={"x-user": "ann"})
    assert answer.status_code in (307, 308)
    assert answer.headers["location"].endswith(f"{MOUNT}/")


def test_a_person_who_is_not_known_is_sent_to_the_hosts_sign_in(shop: Shop) -> None:
    board = dashboard(guard=lambda request: None, effects=shop.app, sign_in_url="/login")
    with closing_after(board):
        answer = Visitor(board).get("/")
        posted = Visitor(board).post("/jobs/1/cancel", {})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert posted.status_code == 404


def test_without_a_guard_it_refuses_to_start(shop: Shop) -> None:
    with pytest.raises(TypeError):
        dashboard(effects=shop.app)  # type: ignore[call-arg]
    with pytest.raises(Exception, match="without a guard the dashboard would be open to all"):
        dashboard(guard=None, effects=shop.app)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"hosts": "ops.example.com"}, "hosts is a str"), ({"hosts": [80]}, "hosts"), ({"sign_in_url": "/für"}, "ASCII")],
)
def test_arguments_that_would_fail_each_request_are_refused(wrong: dict[str, Any], says: str, shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match=says):
        dashboard(guard=by_header, effects=shop.app, **wrong)


def test_a_guard_that_returns_something_else_admits_no_one(shop: Shop) -> None:
    board = dashboard(guard=lambda request: True, effects=shop.app)  # type: ignore[arg-type, return-value]
    with closing_after(board):
        assert Visitor(board).get("/").status_code == 500


def test_forwarded_headers_are_not_believed(shop: Shop) -> None:
    sign_in = SignIn(shop.app, port=80, secure=True)
    board = Dashboard(shop.app, None, sign_in=sign_in, https=True, hosts=["ops.example.com"])
    with closing_after(board):
        visitor = Visitor(board, base="http://ops.example.com")
        forwarded = {"x-forwarded-user": "ann", "x-forwarded-host": "ops.example.com", "forwarded": "for=127.0.0.1"}
        assert visitor.get("/jobs", headers=forwarded).status_code == 303
        assert visitor.get("/", headers={**forwarded, "host": "evil.test"}).status_code == 400


def test_a_file_is_read_no_further_for_a_client_that_has_left() -> None:
    file = BigFile()
    scope = {"type": "http", "method": "GET", "headers": [], "path": "/"}
    with ThreadPoolExecutor(1) as threads:
        sent = left(asgi_door(lambda request: PageAnswer(200, pieces=file.pieces()), threads), scope, 3)
    assert (len(sent), file.count, file.is_closed) == (3, 3, True)


def test_django_under_asgi_holds_one_piece_of_a_file_at_a_time() -> None:
    set_up_django()
    file = BigFile()

    async def first(response: Any) -> bytes:
        piece: bytes = await anext(aiter(response))
        return piece

    with ThreadPoolExecutor(1) as threads:
        answer = PageAnswer(200, pieces=file.pieces())
        [urls] = django_urls(lambda request, person: answer, lambda request: None, threads)
        request = ASGIRequest({"type": "http", "method": "GET", "path": "/", "headers": []}, io.BytesIO())
        assert asyncio.run(first(urls.callback(request, path=""))) == b"x"
    assert (file.count, file.is_closed) == (1, True)
