"""A real SMTP server on loopback that keeps what it is given."""

from __future__ import annotations

import asyncio
import email.message
import email.policy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from effects.errors import ConfigurationError

STOP_SECONDS = 5.0


class Mailbox:
    """The messages that the server answered 250 to, in the order of their arrival."""

    def __init__(self) -> None:
        self.port = 0
        self._messages: list[email.message.EmailMessage] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    @property
    def messages(self) -> list[email.message.EmailMessage]:
        with self._lock:
            return list(self._messages)

    def keep(self, data: bytes) -> None:
        parsed = email.message_from_bytes(data, policy=email.policy.default)
        with self._lock:
            self._messages.append(parsed)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        self.keep(envelope.content)
        return "250 OK"


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    """The server, listening on a free port until the block ends."""
    from aiosmtpd.smtp import SMTP  # noqa: PLC0415 - of the extra `demo`

    kept, loop = Mailbox(), asyncio.new_event_loop()
    listening = loop.create_server(lambda: SMTP(kept, hostname="127.0.0.1", loop=loop), "127.0.0.1", 0)
    server = loop.run_until_complete(listening)
    kept.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, name="demo-mailbox", daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(STOP_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    """Close the listener and every connection, and let their tasks end."""
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def require_mail_server() -> None:
    """Say early what the demo needs.

    Raises:
        ConfigurationError: the extra `demo` is not installed.
    """
    try:
        import aiosmtpd  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigurationError("the demo needs aiosmtpd: run `make demo`") from None
