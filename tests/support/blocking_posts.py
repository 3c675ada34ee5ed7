"""WebhookTransports for tests that wait: an event loop of their own, run by a thread, on which every post is made."""

from __future__ import annotations

import asyncio
import ssl
import threading
import weakref
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from effects.kit.guarded import GuardedNetwork
from effects_webhooks.transport.exchange import WebhookExchange
from effects_webhooks.transport.http import WebhookTransports

Answer = TypeVar("Answer")


class BlockingTransports:
    """Thread-safe. `close` ends the loop as a worker does: what is left on it is cancelled."""

    def __init__(
        self, network: GuardedNetwork, *, ssl_context: ssl.SSLContext | None = None, **options: int | float
    ) -> None:
        self.transports = WebhookTransports(network, ssl_context=ssl_context, **options)  # type: ignore[arg-type]
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="posts", daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _end, self._loop, thread)

    def __len__(self) -> int:
        return len(self.transports)

    def post(self, url: str, headers: Mapping[str, str], body: bytes, *, seconds: float) -> WebhookExchange:
        return self.run(self.transports.post(url, headers, body, seconds=seconds))

    def run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """What it returns on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
