"""The dashboard in each host, on a socket: by itself, behind HAProxy with TLS, in FastAPI, Starlette, Flask, Django."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import fastapi
import flask
import httpx
import trustme
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from effects import Effects
from effects.operate.tables.sign_ins import mint_link
from effects.web import PageRequest, Person, dashboard
from effects.web.server import KEEP_ALIVE_SECONDS, DashboardServer
from tests.support import needs
from tests.support.waiting import wait_until
from tests.support.web_clients import wsgi_client
from tests.web.browsing import Visitor

MOUNT, PUBLIC_NAME = "/a/b", "ops.example.com"
ROOT = Path(__file__).parents[2]
KEYS = "k=NmfSUMJAzjXe3sRREtbmVsmQEjbVQLmiQdzs5Ej7u8s="
_HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s

frontend public
    bind 127.0.0.1:{port} ssl crt {certificate}
    http-request set-header X-Forwarded-Proto https
    http-request set-header X-Forwarded-For 203.0.113.9
    default_backend effects

backend effects
    server web 127.0.0.1:{behind}
"""


@dataclass(frozen=True)
class Place:
    """Where a dashboard is served.

    Args:
        url: of the socket.
        base: how a browser calls it.
        stranger: what an unknown person is answered.
    """

    app: Effects
    url: str
    mount: str = ""
    base: str = ""
    stranger: int = 404
    tls: ssl.SSLContext | None = None

    def visitor(self, name: str | None, *, role: str = "admin") -> WebVisitor:
        """Someone who is known, with the capability `personal`; None: a stranger."""
        visitor = WebVisitor(self)
        if name is None:
            return visitor
        if self.stranger == 404:
            visitor.headers["x-user"] = f"{name} {role}"
            return visitor
        secret = mint_link(
            self.app.store, person=name, role=role, personal=True, session_seconds=3_600.0, actor="cli:root"
        )
        assert visitor.post("/sign-in/enter", {"token": secret}).status_code == 303
        return visitor


class WebVisitor(Visitor):
    """A person with a browser's cookies, over HTTP."""

    def __init__(self, place: Place) -> None:
        super().__init__(None, base=place.base or place.url, mount=place.mount)
        self.headers = {"host": self.base.partition("//")[2]}
        self._client = httpx.Client(base_url=place.url, verify=place.tls or True, trust_env=False, timeout=60)

    def __del__(self) -> None:
        self._client.close()

    def ask(self, method: str, path: str, headers: dict[str, str], options: dict[str, Any]) -> httpx.Response:
        self._client.cookies.clear()
        below = path if path.startswith(f"{self.mount}/") else f"{self.mount}{path}"
        return self._client.request(method, below, headers={**self.headers, **headers}, **options)


def guard(request: PageRequest) -> Person | None:
    """Believes the header that the host's own session would be."""
    name, _, role = request.headers.get("x-user", "").partition(" ")
    return Person(name, role=role, personal=True) if name else None  # type: ignore[arg-type]


@contextmanager
def served(app: Any, listener: socket.socket) -> Iterator[str]:
    """An ASGI app by uvicorn in a thread; its address."""
    config = uvicorn.Config(
        app, log_level="error", lifespan="off", ws="none", proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_SECONDS
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def by_itself(app: Effects) -> Iterator[Place]:
    server = DashboardServer(app, host="127.0.0.1", port=0, public_url=None, title="ops")
    with closing(server.dashboard), served(server.dashboard, server.socket) as url:
        yield Place(app, url, stranger=303)


@contextmanager
def behind_haproxy(app: Effects) -> Iterator[Place]:
    program = needs.program("haproxy")
    server = DashboardServer(app, host="127.0.0.1", port=0, public_url=f"https://{PUBLIC_NAME}", title="ops")
    authority = trustme.CA()
    with ExitStack() as stack:
        stack.enter_context(closing(server.dashboard))
        stack.enter_context(served(server.dashboard, server.socket))
        certificate = stack.enter_context(authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.tempfile())
        port = stack.enter_context(_haproxy(program, certificate, server.port))
        tls = ssl.create_default_context()
        authority.configure_trust(tls)
        yield Place(app, f"https://127.0.0.1:{port}", base=f"https://{PUBLIC_NAME}", stranger=303, tls=tls)


@contextmanager
def _haproxy(program: str, certificate: str, behind: int) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    file = Path(certificate).with_suffix(".cfg")
    file.write_text(_HAPROXY.format(port=port, certificate=certificate, behind=behind))
    process = subprocess.Popen([program, "-db", "-f", str(file)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _is_open(port))
        yield port
    finally:
        process.kill()
        process.wait()
        file.unlink()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def in_asgi(app: Effects, host: Callable[[Any], Any]) -> Iterator[Place]:
    with closing(dashboard(guard=guard, effects=app)) as board:
        listener = socket.create_server(("127.0.0.1", 0))
        with served(host(board), listener) as url:
            yield Place(app, url, mount=MOUNT)


def _fastapi(board: Any) -> Any:
    host = fastapi.FastAPI()
    host.mount(MOUNT, board)
    return host


def _starlette(board: Any) -> Any:
    return Starlette(routes=[Mount(MOUNT, board)])


@contextmanager
def in_flask(app: Effects) -> Iterator[Place]:
    host = flask.Flask("host")
    with closing(dashboard(guard=guard, effects=app)) as board:
        mounted = DispatcherMiddleware(host.wsgi_app, {MOUNT: board.wsgi})
        with wsgi_client(mounted) as send:
            yield Place(app, str(send("GET", "/").url).rstrip("/"), mount=MOUNT)


@contextmanager
def in_django(app: Effects) -> Iterator[Place]:
    """In a process of its own: Django's settings are a process's."""
    url = app.engine.url.render_as_string(hide_password=False)
    folder = Path(app.settings.storage_url).parent
    command = [sys.executable, "-m", "tests.web.django_host", url, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Place(app, f"http://127.0.0.1:{port}", mount="/ops/all")
    finally:
        process.communicate()  # it ends with its input


Opening: TypeAlias = Callable[[Effects], Any]
PLACES: dict[str, Opening] = {
    "alone": by_itself,
    "haproxy": behind_haproxy,
    "fastapi": lambda app: in_asgi(app, _fastapi),
    "starlette": lambda app: in_asgi(app, _starlette),
    "flask": in_flask,
    "django": in_django,
}
