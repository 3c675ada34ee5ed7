"""The stand-alone dashboard: its own server, for people who sign in by links from the command line."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any
from urllib.parse import urlsplit

from effects.app.effects import Effects
from effects.errors import ConfigurationError
from effects.kit.arguments import optional, printable, require
from effects.web.application import Dashboard
from effects.web.doors import load
from effects.web.security import LOOPBACK_ADDRESSES, LOOPBACK_NAMES
from effects.web.sessions import SignIn

# Longer than proxies keep theirs (60 in nginx) and than a page waits before it asks again: else the server closes a
# connection while a request is on its way.
KEEP_ALIVE_SECONDS = 75
REQUEST_SECONDS = 5.0  # for all of a request, from its first byte; of a new connection, from the connect
UNFINISHED_MAX = 16  # connections that have brought no whole request
IDLE_MAX = 100  # that are kept after an answer; a browser keeps six
_URL_CHARS_MAX = 500


class PageServer:
    """A dashboard behind a socket that listens."""

    def __init__(self, dashboard: Dashboard, listening: socket.socket) -> None:
        self.dashboard, self.socket = dashboard, listening
        self._server: Any = None
        self._stopped = False

    def run(self) -> None:
        """Serve until SIGINT, SIGTERM or `stop`; requests under way are answered first."""
        uvicorn: Any = load("uvicorn")
        config = uvicorn.Config(
            self.dashboard, log_config=None, log_level="warning", access_log=False, proxy_headers=False,
            server_header=False, ws="none", lifespan="off", timeout_graceful_shutdown=10,
            timeout_keep_alive=KEEP_ALIVE_SECONDS, backlog=128,
            http=_bounded(load("uvicorn.protocols.http.auto").AutoHTTPProtocol),
        )  # fmt: skip
        before = signal.getsignal(signal.SIGTERM)
        if before is signal.SIG_DFL:  # the server raises it again when it has ended
            signal.signal(signal.SIGTERM, lambda *_: self.stop())
        try:
            self._server = uvicorn.Server(config)
            self._server.should_exit = self._stopped
            self._server.run(sockets=[self.socket])
        finally:
            signal.signal(signal.SIGTERM, before)
            self.dashboard.close()
            self.socket.close()

    def stop(self) -> None:
        """End `run`, from any thread and in a signal's handler; where it has not begun, it ends at once."""
        self._stopped = True
        if self._server is not None:
            self._server.should_exit = True


class DashboardServer(PageServer):
    """The dashboard on an address of this machine, for people who sign in by links.

    Args:
        host: the address to listen on. Anything but loopback needs `public_url`.
        port: 0: any that is free.
        public_url: how people call it, such as `https://effects.example.com`: where a proxy in front of it ends TLS.

    Raises:
        ConfigurationError: another address without an https `public_url`, a URL with a path, or a port that is taken.
    """

    def __init__(self, app: Effects, *, host: str, port: int, public_url: str | None, title: str) -> None:
        require("--public-url", public_url, optional(printable(_URL_CHARS_MAX)), ConfigurationError)
        secure = public_url is not None
        if public_url is not None:
            _check_public(public_url)
        elif host not in LOOPBACK_ADDRESSES:
            raise ConfigurationError(
                f"--host is {host}, which is not loopback: give --public-url https://…, by which people call it"
            )
        listening = listen(host, port)
        self.port = int(listening.getsockname()[1])
        local = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self.url = public_url.rstrip("/") if public_url is not None else local
        hosts = LOOPBACK_NAMES if public_url is None else (*LOOPBACK_NAMES, str(urlsplit(public_url).netloc))
        sign_in = SignIn(app, port=self.port, secure=secure)
        board = Dashboard(app, None, title=title, hosts=hosts, sign_in=sign_in, https=secure)
        super().__init__(board, listening)


def _bounded(base: type[Any]) -> type[Any]:
    """A protocol of uvicorn's that holds few connections with nothing to answer: of too many, the oldest is closed.

    A byte now and then keeps none of them.
    """
    unfinished: dict[Any, asyncio.TimerHandle] = {}
    idle: dict[Any, None] = {}

    class Bounded(base):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._expect_request()

        def data_received(self, data: bytes) -> None:
            if self in idle:
                del idle[self]
                self._expect_request()
            super().data_received(data)
            if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
                self._forget()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete and self not in unfinished and not self.transport.is_closing():
                idle[self] = None
                _close_oldest(idle, IDLE_MAX)

        def connection_lost(self, error: Exception | None) -> None:
            self._forget()
            super().connection_lost(error)

        def _expect_request(self) -> None:
            unfinished[self] = self.loop.call_later(REQUEST_SECONDS, self.drop)
            # Each may bring what has arrived already, before it is one too many.
            self.loop.call_soon(self.loop.call_soon, _close_oldest, unfinished, UNFINISHED_MAX)

        def drop(self) -> None:
            self._forget()
            self.transport.abort()

        def _forget(self) -> None:
            idle.pop(self, None)
            if (timer := unfinished.pop(self, None)) is not None:
                timer.cancel()

    return Bounded


def _close_oldest(connections: dict[Any, Any], most: int) -> None:
    while len(connections) > most:
        next(iter(connections)).drop()


def _check_public(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:  # such as https://[::1
        parts = urlsplit("")
    is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme != "https" or not parts.netloc or "@" in parts.netloc or not is_bare:
        raise ConfigurationError(f"--public-url is {url!r}; give https:// and a name, such as https://ops.example.com")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigurationError: the port is taken, or the address is not this machine's.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror}") from None
