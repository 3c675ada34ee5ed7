"""Responses of a raw peer, byte by byte."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tests.peers.raw import RawPeer, read_request

Behave = Callable[[RawPeer, socket.socket], None]


def says(data: bytes) -> Behave:
    """Answer with these bytes and close."""

    def behave(peer: RawPeer, connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(data)

    return behave


def goes_on(head: bytes, piece: bytes, pause: float = 0.03) -> Behave:
    """Answer with `head`, then with pieces until the other side leaves."""

    def behave(peer: RawPeer, connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head)
        while not peer.over.wait(pause):
            connection.sendall(piece)

    return behave


HEAD = b"HTTP/1.1 200 OK\r\n"
