"""A proxy in front of an HTTP server that cuts chosen requests, before it hears them or after it has answered."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import TypeAlias
from urllib.parse import urlsplit

from tests.peers.serving import Serving

Fate: TypeAlias = bytes | str | None  # what is answered instead; "unheard", "cut", "unanswered"; None: passed on
Judge: TypeAlias = Callable[[str, str, int], Fate]  # given method, target and the number of the request, from 0 on


class Request:
    """One that came: its line, headers and body."""

    def __init__(self, head: bytes, body: bytes) -> None:
        line, _, rest = head.decode("latin-1").partition("\r\n")
        self.method, self.target, _ = line.split(" ")
        self.headers = dict(re.findall(r"^([^:\r\n]+): *(.*?)\r?$", rest, re.MULTILINE))
        self.body = body


class CutS3(Serving):
    """`with CutS3(url) as proxy: proxy.judge = …; … proxy.url … proxy.requests`"""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.target = (str(parts.hostname), int(parts.port or 80))
        self.requests: list[Request] = []
        self.judge: Judge = lambda method, target, number: None
        server = ThreadingTCPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        server.peer = self  # type: ignore[attr-defined]
        super().__init__(server)
        self.url = f"http://127.0.0.1:{self.port}"

    def calls(self) -> list[str]:
        """What came, in short: `GET`, `PUT`, `POST ?uploads`, …"""
        return [f"{request.method} {_short(request.target)}".strip() for request in self.requests]


class _Handler(StreamRequestHandler):
    def handle(self) -> None:
        peer: CutS3 = self.server.peer  # type: ignore[attr-defined]
        with suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = self.rfile.readline()
                if not line:
                    return
                head += line
            length = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
            body = self.rfile.read(int(length.group(1)) if length else 0)
            request = Request(head, body)
            number = len(peer.requests)
            peer.requests.append(request)
            fate = peer.judge(request.method, request.target, number)
            if isinstance(fate, bytes):
                self.wfile.write(fate)
            elif fate != "unheard":
                answer = _pass_on(peer.target, head, body if fate != "cut" else body[: len(body) // 2])
                if fate is None:
                    self.wfile.write(answer)


def _pass_on(target: tuple[str, int], head: bytes, body: bytes) -> bytes:
    with closing(socket.create_connection(target)) as server:
        server.sendall(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + body)
        server.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := server.recv(65_536):
            answer += piece
    return answer


def _short(target: str) -> str:
    query = target.partition("?")[2]
    return " ".join(sorted({part.partition("=")[0] for part in query.split("&") if part}))
