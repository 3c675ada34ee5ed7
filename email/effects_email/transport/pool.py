"""Sessions that are kept open between messages, for all threads of a process.

The one used last is taken first, so that the others grow old and are closed. A session serves 100 messages or 300 s;
idle for 5 s, it is closed; idle for more than 2 s, or left within a transaction, the server is asked before it is used.
One in which the server has sent more than it was asked for serves no more.
After a fork the child has none: the parent continues with its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref

from effects_email.transport.progress import SendProgress
from effects_email.transport.smtp_client import Client
from effects_email.transport.smtp_server import Server

ASK_AFTER_SECONDS = 2.0
_REAPER_SECONDS = 0.5  # between two looks


class SessionPool:
    """Thread-safe. At most `server.connections` sessions are open; who comes then waits for one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(self._server.connections)
        self._idle: list[Client] = []
        self._reaper: threading.Thread | None = None

    def __len__(self) -> int:
        """Idle sessions."""
        return len(self._idle)

    def take(self, progress: SendProgress, *, fresh: bool = False) -> Client | None:
        """A session; None where all places are taken until the time is over. Give it back, or drop it.

        Raises:
            OSError, smtplib.SMTPException, ValueError: no session; `progress.stage` tells how far it came.
        """
        if not self._places.acquire(timeout=max(0.0, progress.remaining_in_all())):
            return None
        try:
            return self._idle_one(progress, fresh=fresh) or Client(self._server, progress)
        except BaseException:
            self._places.release()
            raise

    def give(self, client: Client) -> None:
        """It may serve again."""
        client.messages += 1
        client.idle_since = time.monotonic()
        with self._lock:  # a worn one too: its QUIT is for later, when the outcome of its last message is recorded
            self._idle.append(client)
            self._watch()
        self._places.release()

    def drop(self, client: Client) -> None:
        """Close it without a QUIT: it is in no state for one."""
        try:
            client.close()
        finally:
            self._places.release()

    def close(self) -> None:
        """Close what is idle. Sessions in use end when they are given back and grow old."""
        with self._lock:
            gone, self._idle = self._idle, []
        for client in gone:
            client.quit_quietly()

    def forget(self) -> None:
        """Close inherited sockets silently in a forked child: they are the parent's."""
        idle = self._idle
        self._begin()
        for client in idle:
            client.close()

    # -- which one -------------------------------------------------------------------------------------------

    def _idle_one(self, progress: SendProgress, *, fresh: bool) -> Client | None:
        while not fresh and (client := self._pop()) is not None:
            if not self._worn(client) and client.is_silent and self._serves(client, progress):
                client.progress = progress
                return client
            client.quit_quietly()
        return None

    def _serves(self, client: Client, progress: SendProgress) -> bool:
        idle_seconds = time.monotonic() - client.idle_since
        return (not client.dirty and idle_seconds <= ASK_AFTER_SECONDS) or client.still_there(progress)

    def _pop(self) -> Client | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _worn(self, client: Client) -> bool:
        now = time.monotonic()
        return (
            client.messages >= self._server.messages_per_connection
            or now - client.opened_at > self._server.connection_seconds
            or now - client.idle_since > self._server.idle_seconds
        )

    # -- the reaper ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """A thread that lives as long as there is something idle. Under the lock."""
        if self._reaper is None:
            self._reaper = threading.Thread(target=self._reap, name="effects-email-idle", daemon=True)
            self._reaper.start()

    def _reap(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_REAPER_SECONDS)
            with self._lock:
                gone = [client for client in self._idle if self._worn(client)]
                self._idle = [client for client in self._idle if client not in gone]
                if not self._idle:
                    self._reaper = None
            for client in gone:
                client.quit_quietly()
            if self._reaper is not threading.current_thread():
                return


_pools: weakref.WeakSet[SessionPool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
