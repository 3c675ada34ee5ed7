"""How a send waits: in a thread for whatever takes its time, or on the event loop while a thousand others go on.

The steps of a send are written once, as a coroutine. In a thread its awaits return at once (`run_in_thread`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from effects import Attempt
from effects_email.message.source import MessageSource
from effects_email.transport.base import OutgoingMessage, SendResult, Transport

if TYPE_CHECKING:
    from effects_email.transport.base import LoopTransport

BYTES_IN_FLIGHT_MAX = 64 * 1024 * 1024  # of the messages that an event loop has at hand, with their files
Answer = TypeVar("Answer")


class Waits(Protocol):
    """What a send waits for."""

    async def call(self, function: Callable[[], Answer]) -> Answer:
        """The result of a function that reads files or asks the database."""
        ...

    async def send(
        self, transport: Transport, outgoing: OutgoingMessage, attempt: Attempt, seconds: float
    ) -> SendResult:
        """See `Transport.send`; the attempt is released by it."""
        ...

    async def ask(self, transport: Transport, outgoing: OutgoingMessage) -> bool | None:
        """See `Transport.ask`."""
        ...


class InThread:
    """Each wait is that of the calling thread."""

    async def call(self, function: Callable[[], Answer]) -> Answer:
        return function()

    async def send(
        self, transport: Transport, outgoing: OutgoingMessage, attempt: Attempt, seconds: float
    ) -> SendResult:
        return transport.send(outgoing, release=attempt.release, seconds=seconds)

    async def ask(self, transport: Transport, outgoing: OutgoingMessage) -> bool | None:
        return transport.ask(outgoing)


class OnLoop:
    """Other attempts go on meanwhile. For a `LoopTransport`."""

    async def call(self, function: Callable[[], Answer]) -> Answer:
        return await asyncio.to_thread(function)

    async def send(
        self, transport: Transport, outgoing: OutgoingMessage, attempt: Attempt, seconds: float
    ) -> SendResult:
        return await cast("LoopTransport", transport).send_on_loop(
            outgoing, release=attempt.release_async, seconds=seconds
        )

    async def ask(self, transport: Transport, outgoing: OutgoingMessage) -> bool | None:
        return await cast("LoopTransport", transport).ask_on_loop(outgoing)


def run_in_thread(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """What a coroutine returns that waits by `InThread` only."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise AssertionError("it waited for an event loop")


class RoomInMemory:
    """How many bytes of messages one event loop has at hand; the others wait, first come first served.

    Args:
        most: so many. A message of more goes alone.
    """

    def __init__(self, most: int = BYTES_IN_FLIGHT_MAX) -> None:
        self._most = self._free = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, source: MessageSource, *, seconds: float) -> AsyncIterator[bool]:
        """While the message is built and sent; False if there was no room within `seconds`."""
        count = min(self._most, _bytes_of(source))
        try:
            async with asyncio.timeout(seconds):
                await self._take(count)
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self._free += count
            self._admit()

    async def _take(self, count: int) -> None:
        if count <= self._free and not self._waiting:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free += count
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting:
            count, turn = self._waiting[0]
            if not turn.done() and count > self._free:
                return
            self._waiting.popleft()
            if not turn.done():
                self._free -= count
                turn.set_result(None)


def _bytes_of(source: MessageSource) -> int:
    """Of its words, its bytes and its request together, roughly."""
    words = len(source.text) + len(source.html or "")
    return 4 * (words + sum(attachment.size_bytes for attachment in source.attachments))
