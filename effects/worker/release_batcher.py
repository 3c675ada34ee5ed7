"""The point of no return, marked for many threads in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable

from effects.app import Effects
from effects.errors import StoreConflict
from effects.settlement import Execution
from effects.store.db.faults import Fault
from effects.store.queue.liveness import release
from effects.worker.outage import Outage
from effects.worker.runtime import Runtime

BATCH_MAX = 200


class ReleaseBatcher:
    """Group commit: the first thread to come marks for all who came while the last mark was being written.

    Args:
        mark: marks a batch and returns the marked ids; None if the database stayed unavailable.
    """

    def __init__(self, mark: Callable[[list[Execution]], set[int] | None], runtime: Runtime) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._leader = runtime.lock()
        self._waiting: list[_Waiter] = []

    def release(self, execution: Execution) -> bool:
        """True once the mark is committed; False if the job is no longer this attempt's, or it is not known."""
        ticket = _Waiter(execution)
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
            marked = self._mark([ticket.execution for ticket in batch])
        finally:
            for ticket in batch:
                ticket.marked = marked is not None and ticket.execution.job.id in marked
                ticket.answered = True


def mark_released(
    app: Effects, outage: Outage, executions: list[Execution], *, give_up: Callable[[], bool], brisk: bool = False
) -> set[int] | None:
    """Record the release of these attempts; the ids of those that are marked; None once `give_up()` is true.

    Where another transaction holds one of them the batch is cut in two, so that it keeps back that attempt alone: not
    being marked, its effect is not begun.
    """
    try:
        return outage.retry_until_available(
            lambda: release(app.store, executions, app.ledgers), give_up=give_up, passing=(Fault.CONFLICT,), brisk=brisk
        )
    except StoreConflict:
        if len(executions) == 1:
            return set()
    middle = len(executions) // 2
    halves = [
        mark_released(app, outage, half, give_up=give_up, brisk=True)
        for half in (executions[:middle], executions[middle:])
    ]
    return {job_id for half in halves if half is not None for job_id in half}


class _Waiter:
    __slots__ = ("answered", "execution", "marked")

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.answered = False
        self.marked = False
