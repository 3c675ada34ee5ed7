"""A server of several addresses: those that do not answer keep nothing from those that do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from effects_email.transport.smtp.client import connect
from effects_email.transport.smtp.server import SendProgress, Timeouts

NO_FAMILY = 255  # which no kernel has, as an old one has no IPv6


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listening(sockets: ExitStack) -> Any:
    return sockets.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()


def refusing(sockets: ExitStack) -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()


def silent(sockets: ExitStack) -> Any:
    """Its backlog is full: no further connection is answered."""
    server = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(8):
        client = sockets.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    return server.getsockname()


@pytest.mark.parametrize("first", ["refusing", "silent", "without a family"])
def test_the_next_address_is_tried(first: str, sockets: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    live = listening(sockets)
    family, address = {
        "refusing": (socket.AF_INET, refusing(sockets)),
        "silent": (socket.AF_INET, silent(sockets)),
        "without a family": (NO_FAMILY, live),
    }[first]
    answers = [(family, socket.SOCK_STREAM, 6, "", address), (socket.AF_INET, socket.SOCK_STREAM, 6, "", live)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    progress = SendProgress(20.0, Timeouts(connect_seconds=0.8))
    progress.enter("connect")
    with connect("mail.shop.example", 25, progress) as connection:
        assert connection.getpeername() == live


def test_without_an_address_that_answers_the_last_failure_is_told(
    sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", refusing(sockets)) for _ in range(2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    progress = SendProgress(20.0, Timeouts())
    progress.enter("connect")
    with pytest.raises(ConnectionRefusedError):
        connect("mail.shop.example", 25, progress)
