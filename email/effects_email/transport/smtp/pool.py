"""Sessions that are kept open between messages, for all threads of a process.

The one used last is taken first, so that the others grow old and are closed. A session serves 100 messages or 300 s;
idle for 5 s, it is closed; idle for more than 2 s, or left within a transaction, the server is asked before it is used.
One in which the server has sent more than it was asked for serves no more. Where all places are taken, a message that
waits for one may be announced on a session behind the message that is under way there (`turn`).
After a fork the child has none: the parent continues with its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref

from effects_email.transport.progress import SendProgress
from effects_email.transport.smtp.client import Client
from effects_email.transport.smtp.envelope import Envelope
from effects_email.transport.smtp.order import CommandOrder
from effects_email.transport.smtp.server import Server
from effects_email.transport.smtp.turn import Turn

ASK_AFTER_SECONDS = 2.0
_REAPER_SECONDS = 0.5  # between two looks


class SessionPool:
    """Thread-safe. At most `server.connections` sessions are open; who comes then waits for one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._order = CommandOrder(server.name)
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._free = self._server.connections
        self._waiting: list[Turn] = []  # for a place, the first come first
        self._idle: list[Client] = []
        self._reaper: threading.Thread | None = None

    def __len__(self) -> int:
        """Idle sessions."""
        return len(self._idle)

    def take(self, progress: SendProgress, envelope: Envelope | None = None, *, fresh: bool = False) -> Turn | None:
        """A turn on a session; None where all places are taken until too little time is left for a session. End it.

        Args:
            envelope: what may be announced behind another message, where all places are taken.
            fresh: a new session only, after another one's that came to nothing.

        Raises:
            OSError, smtplib.SMTPException, ValueError: no session; `progress.stage` tells how far it came.
        """
        turn = Turn(self._lock, envelope, self._order, find_next=self._find_next, leave=self._leave)
        if not self._admit(turn, max(0.0, progress.remaining_in_all())):
            return None
        if turn.behind:
            return turn
        if (turn.waited or fresh) and progress.is_late:  # that the server does not answer in time would be our doing
            self._free_place()
            return None
        try:
            turn.client = self._idle_one(progress, fresh=fresh) or Client(self._server, progress)
        except BaseException:
            self._free_place()
            raise
        return turn

    def _admit(self, turn: Turn, seconds: float) -> bool:
        """Wait for a place, or until another thread announces the message."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn.admitted, turn.waited = threading.Event(), True
            self._waiting.append(turn)
        turn.admitted.wait(seconds)
        with self._lock:
            if turn.admitted.is_set():
                return True
            self._waiting.remove(turn)
            return False

    def _free_place(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.pop(0).admitted.set()
            else:
                self._free += 1

    def _find_next(self, client: Client) -> Turn | None:
        """Who has waited longest, if it may be announced on this session, behind the message that is under way there.

        No one is passed over: that turn's session is then the next that comes free.
        """
        if client.messages + 1 >= self._server.messages_per_connection or self._is_old(client):
            return None
        with self._lock:
            envelope = self._waiting[0].envelope if self._waiting else None
            if envelope is None or not envelope.fits(client):
                return None
            turn = self._waiting.pop(0)
            turn.follow(client)
            return turn

    def _leave(self, client: Client, usable: bool) -> None:
        """A session comes back. One that is in no state for a QUIT is closed without."""
        try:
            if not usable:
                client.close()
                return
            client.messages += 1
            client.idle_since = time.monotonic()
            with self._lock:  # a worn one too: its QUIT is for later, when the outcome of its last message is recorded
                self._idle.append(client)
                self._watch()
        finally:
            self._free_place()

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
        return (
            client.messages >= self._server.messages_per_connection
            or self._is_old(client)
            or time.monotonic() - client.idle_since > self._server.idle_seconds
        )

    def _is_old(self, client: Client) -> bool:
        return time.monotonic() - client.opened_at > self._server.connection_seconds

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
