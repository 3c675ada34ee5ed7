"""Goal: mounted anywhere, the dashboard is the same. Method: one journey in each host, at a mount of two parts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import fastapi
import flask
import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from effects.store.web_sessions.sign_ins import mint_link
from effects.web import Dashboard, PageRequest, Person, dashboard
from effects.web.server import DashboardServer
from tests.support.web_clients import wsgi_client
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


def journey(send: Callable[..., httpx.Response], shop: Shop) -> None:
    """Look, follow a link, act by a form; a stranger gets nothing."""
    ann = {"x-user": "ann", "sec-fetch-site": "same-origin"}
    assert send("GET", f"{MOUNT}/").status_code == 404
    overview = send("GET", f"{MOUNT}/", headers=ann)
    assert overview.status_code == 200
    assert f'href="{MOUNT}/needs"' in overview.text
    style = overview.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    assert send("GET", style).headers["content-type"] == "text/css; charset=utf-8"
    path = f"{MOUNT}/jobs/{shop.dead}/ignore"
    ann["cookie"] = overview.headers["set-cookie"].partition(";")[0]
    page = send("GET", path, headers=ann)
    token = page.text.partition('name="form_token" value="')[2].partition('"')[0]
    answer = send("POST", path, data={"form_token": token, "reason": "x"}, headers=ann)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{MOUNT}/jobs/{shop.dead}?did=ignored")
    again = send("POST", path, data={"form_token": token, "reason": "x"}, headers=ann)
    assert again.status_code == 409


@pytest.mark.parametrize("host", [in_fastapi, in_starlette], ids=["fastapi", "starlette"])
def test_in_an_asgi_app(host: Host, shop: Shop, board: Dashboard) -> None:
    visitor = Visitor(host(board))

    def send(method: str, path: str, **options: Any) -> httpx.Response:
        visitor.cookies.clear()
        return visitor.send(method, path, **options)

    journey(send, shop)


def test_in_flask(shop: Shop, board: Dashboard) -> None:
    host = flask.Flask("host")
    with wsgi_client(DispatcherMiddleware(host.wsgi_app, {MOUNT: board.wsgi})) as send:
        journey(send, shop)


def test_in_django(shop: Shop, database_url: str) -> None:
    """In a process of its own: Django's settings are a process's."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.web.django_host", database_url, str(shop.dead)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "stranger": 404, "overview": 200, "link": True, "ignored": [303, f"/ops/jobs/{shop.dead}?did=ignored"],
        "again": 409, "frames": "DENY",
    }  # fmt: skip


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


def test_a_guard_that_returns_something_else_admits_no_one(shop: Shop) -> None:
    board = dashboard(guard=lambda request: True, effects=shop.app)  # type: ignore[arg-type, return-value]
    with closing_after(board):
        assert Visitor(board).get("/").status_code == 500


def test_by_itself_behind_a_proxy_that_ends_tls(shop: Shop) -> None:
    """As a proxy calls it: by plain http on loopback, with the public name. Forwarded headers are not believed."""
    server = DashboardServer(shop.app, host="127.0.0.1", port=0, public_url="https://ops.example.com", title="ops")
    config = uvicorn.Config(server.dashboard, log_level="error", lifespan="off", ws="none", proxy_headers=False)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server.socket]})
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers={"host": "ops.example.com"}) as proxy:
            _behind_a_proxy(proxy, shop)
    finally:
        running.should_exit = True
        thread.join()
        server.dashboard.close()
        server.socket.close()


def _behind_a_proxy(proxy: httpx.Client, shop: Shop) -> None:
    secret = mint_link(
        shop.app.store, person="ann", role="operator", personal=False, session_seconds=60.0, actor="cli:root"
    )
    own = {"sec-fetch-site": "same-origin"}
    assert proxy.get("/jobs", headers={"x-forwarded-user": "ann", "host": "ops.example.com"}).status_code == 303
    assert proxy.get("/", headers={"host": "evil.test"}).status_code == 400
    entered = proxy.post("/sign-in/enter", data={"token": secret}, headers=own)
    assert entered.headers["set-cookie"].startswith("__Host-effects-session=")
    cookie = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
    path = f"/jobs/{shop.dead}/ignore"
    page = proxy.get(path, headers=cookie).text
    token = page.partition('name="form_token" value="')[2].partition('"')[0]
    form = {"form_token": token, "reason": "x"}
    assert (
        proxy.post(path, data=form, headers={**cookie, "origin": "http://ops.example.com.evil.test"}).status_code == 403
    )
    answer = proxy.post(path, data=form, headers={**cookie, "origin": "https://ops.example.com"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{shop.dead}?did=ignored")
