"""Partners: so many HTTP receivers in one process, which read each request and answer 204; until it is ended.

They may answer later, and over TLS; close each connection after its answer; or fall silent, all at once, when told to.

On uvloop and without a framework: what the receivers cost, both sides of a comparison pay alike.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import sys
import time
from typing import cast

import uvloop

from benchmarks.processes import await_go

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LAST = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
TELL, MUTE, QUIET, CLOSE = "tell", "mute", "quiet", "close"
TELL_AND_CLOSE = "tell close"


class Partner(asyncio.Protocol):
    """One connection. It may tell the time at which each request came: CLOCK_MONOTONIC is the same in every process.

    Args:
        answers: cleared once all are to be silent.
    """

    def __init__(self, kind: str, seconds: float, answers: asyncio.Event) -> None:
        self._tell, self._close, self._seconds, self._answers = TELL in kind, CLOSE in kind, seconds, answers
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (size := _size(self._data)) is not None and len(self._data) >= size:
            self._data = self._data[size:]
            if self._tell:
                print(time.monotonic_ns(), flush=True)
            if self._seconds:
                asyncio.get_running_loop().call_later(self._seconds, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        if not self._answers.is_set() or self._transport.is_closing():
            return
        self._transport.write(_LAST if self._close else _ANSWER)
        if self._close:
            self._transport.close()


class Mute(asyncio.Protocol):
    """Accepts, reads, and never answers."""


def _size(data: bytes) -> int | None:
    """Bytes of the request that `data` begins with; None while its head is not whole."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(data, 0, end)
    return end + 4 + (int(length[1]) if length else 0)


async def _serve(count: int, kind: str, seconds: float, certificate: str) -> None:
    loop = asyncio.get_running_loop()
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    answers = asyncio.Event()
    answers.set()
    make = Mute if kind == MUTE else lambda: Partner(kind, seconds, answers)
    servers = [await loop.create_server(make, "127.0.0.1", 0, ssl=context, backlog=1024) for _ in range(count)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    loop.add_reader(sys.stdin, _fall_silent, loop, answers)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def _fall_silent(loop: asyncio.AbstractEventLoop, answers: asyncio.Event) -> None:
    """A line has come, or the benchmark has ended."""
    loop.remove_reader(sys.stdin)
    answers.clear()


def ports(line: str) -> list[int]:
    """What `work` printed first."""
    numbers: list[int] = json.loads(line)
    return numbers


def work(count: str, kind: str = QUIET, seconds: str = "0", certificate: str = "") -> None:
    """Prints the ports first, as a JSON list. `certificate`: a file with key and chain, for TLS."""
    await_go()
    uvloop.run(_serve(int(count), kind, float(seconds), certificate))
