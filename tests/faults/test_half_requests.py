"""The two ports of ours, that of the metrics and the dashboard's, under connections that bring no whole request."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from effects import Effects
from effects.operate import metrics
from effects.operate.metrics import MetricsServer, WorkerMetrics
from effects.web import server as web_server
from tests.conftest import AppFactory
from tests.support.processes import effects, fleet
from tests.support.served_metrics import fetch

SECONDS = 0.3  # for a whole request
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
MOST = 60

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[])


def _web(seconds: float) -> None:
    web_server.REQUEST_SECONDS = seconds
    effects("web", "--port", "0")


@pytest.fixture(params=["metrics", "web"])
def served(
    request: pytest.FixtureRequest, app: Effects, database_url: str, tmp_path: Path, seconds: float
) -> Iterator[tuple[int, str]]:
    """A port, and a path that is answered there without a password."""
    with ExitStack() as stack:
        if request.param == "metrics":
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(metrics, "_REQUEST_SECONDS", seconds)
            yield stack.enter_context(MetricsServer(app, WorkerMetrics(), port=0)).port, "/livez"
        else:
            child = stack.enter_context(fleet(database_url, tmp_path)).start(_web, seconds)
            child.wait_logged("(Ctrl-C stops it)")
            address = child.output.partition("http://127.0.0.1:")[2]
            yield int(address.split()[0]), "/-/alive"


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("seconds", [60.0])
def test_of_many_half_requests_few_are_held_and_others_are_answered(served: tuple[int, str], seconds: float) -> None:
    port, path = served
    with ExitStack() as stack:
        half = [stack.enter_context(closing(socket.create_connection(("127.0.0.1", port)))) for _ in range(MOST)]
        for connection in half:
            connection.settimeout(0.01)
            connection.send(HALF)
        assert fetch(port, path)[0] == 200
        closed = sum(map(_is_closed, half))
        assert MOST - 16 <= closed < MOST


@pytest.mark.parametrize("seconds", [SECONDS])
def test_a_byte_now_and_then_keeps_no_connection(served: tuple[int, str], seconds: float) -> None:
    """The first request of a connection, and one that follows an answer."""
    port, path = served
    with closing(socket.create_connection(("127.0.0.1", port))) as new, ExitStack() as stack:
        connections = [new]
        if path == "/-/alive":  # the metrics are served by HTTP/1.0, which keeps none
            kept = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            kept.send(b"GET /-/alive HTTP/1.1\r\nHost: localhost\r\n\r\n")
            kept.settimeout(10)
            assert kept.recv(4096).startswith(b"HTTP/1.1 200")
            connections.append(kept)
        for connection in connections:
            connection.settimeout(0.02)
            bytes_sent = 0
            while not _is_closed(connection):
                try:
                    connection.send((HALF + b"x" * 10_000)[bytes_sent : bytes_sent + 1])
                except ConnectionError:
                    break
                bytes_sent += 1
                assert bytes_sent < 3000  # a minute
