"""The point of no return, marked for many threads in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable

from effects.job import Job

BATCH_MAX = 200


class Releaser:
    """Group commit: the first thread to come marks for all who came while the last mark was being written.

    Args:
        mark: marks a batch and returns the ids that are marked; None if the database stayed away.
    """

    def __init__(self, mark: Callable[[list[Job]], set[int] | None]) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._leader = threading.Lock()
        self._waiting: list[_Ticket] = []

    def release(self, job: Job) -> bool:
        """True once the mark is committed; False if the job is no longer this attempt's, or it is not known."""
        ticket = _Ticket(job)
        with self._lock:
            self._waiting.append(ticket)
        while not ticket.answered:
            with self._leader:
                if not ticket.answered:
                    self._lead()
        return ticket.marked

    def _lead(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        marked: set[int] | None = None
        try:
            marked = self._mark([ticket.job for ticket in batch])
        finally:
            for ticket in batch:
                ticket.marked = marked is not None and ticket.job.id in marked
                ticket.answered = True


class _Ticket:
    __slots__ = ("answered", "job", "marked")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.answered = False
        self.marked = False
