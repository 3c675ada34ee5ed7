"""Peers for thousands of requests, on one event loop in a thread: a word in what they are sent says how they answer.

`refused` a definite no, `later` a temporary one, `cut` nothing: the connection is closed. Else they accept.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Self

WORDS = (b"refused", b"later", b"cut")


def _word(data: bytes) -> bytes:
    return next((word for word in WORDS if word in data), b"")


class _Peer(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self._unread = transport, b""
        self.begin()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (rest := self.take(self._unread)) is not None:
            self._unread = rest

    def begin(self) -> None:
        """The connection is there."""

    def take(self, data: bytes) -> bytes | None:
        """Answer what is whole; what follows it, or None."""
        raise NotImplementedError


class HttpWords(_Peer):
    """Answers POST requests as Resend does, and keeps connections."""

    _STATUS = {b"": b"200 OK", b"refused": b"422 No", b"later": b"409 Later"}  # noqa: RUF012

    def take(self, data: bytes) -> bytes | None:
        head, ended, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if not ended or len(body) < length:
            return None
        word = _word(head + body[:length])
        if word == b"cut":
            self.transport.abort()
        else:
            answer = b'{"id": "1", "name": "validation_error", "message": "Invalid `to`"}'
            self.transport.write(
                b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (self._STATUS[word], len(answer), answer)
            )
        return body[length:]


class SmtpWords(_Peer):
    """Takes messages, or refuses them at RCPT or after the dot."""

    _REPLIES = {b"": b"250 2.0.0 ok", b"refused": b"550 5.1.1 no", b"later": b"451 4.7.1 later"}  # noqa: RUF012

    def begin(self) -> None:
        self._in_body = False
        self._say(b"220 peer")

    def _say(self, reply: bytes) -> None:
        self.transport.write(reply + b"\r\n")

    def take(self, data: bytes) -> bytes | None:
        end = b"\r\n.\r\n" if self._in_body else b"\r\n"
        whole, ended, rest = data.partition(end)
        if not ended:
            return None
        if self._in_body:
            self._in_body = False
            if b"cut" in whole:
                self.transport.abort()
            else:
                self._say(self._REPLIES[b""])
        else:
            self._command(whole)
        return rest

    def _command(self, line: bytes) -> None:
        verb = line[:4].upper()
        if verb == b"EHLO":
            self._say(b"250-peer\r\n250-PIPELINING\r\n250 8BITMIME")
        elif verb == b"RCPT":
            word = _word(line)
            self._refused = word in (b"refused", b"later")
            self._say(self._REPLIES[word] if self._refused else b"250 2.1.5 ok")
        elif verb == b"DATA":
            self._in_body = not self._refused
            self._say(b"354 go ahead" if self._in_body else b"554 5.5.1 no recipients")
        elif verb == b"QUIT":
            self._say(b"221 bye")
            self.transport.close()
        else:
            self._say(b"250 2.0.0 ok")


class WordedPeer:
    """`with WordedPeer(HttpWords) as peer: … peer.port`."""

    def __init__(self, protocol: Callable[[], _Peer]) -> None:
        self._protocol = protocol
        self._loop = asyncio.new_event_loop()
        self._ready, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(self._protocol, "127.0.0.1", 0, backlog=512)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        await self._end.wait()
        server.close()
