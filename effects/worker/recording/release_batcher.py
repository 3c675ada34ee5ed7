"""The point of no return, marked for many threads and tasks in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from effects.errors import StoreConflict, WorkerCannotContinue
from effects.model.job import AttemptId
from effects.model.settlement import Execution
from effects.store.db.faults import Fault
from effects.store.queue.liveness import release
from effects.worker.context import WorkerContext
from effects.worker.machine.runtime import Runtime
from effects.worker.recording.failover_evidence import FailoverEvidence
from effects.worker.recording.observers import Observers
from effects.worker.supervisor import Service, Supervisor

BATCH_MAX = 200


_ABOUT_ONE = (Fault.CONFLICT, Fault.DATA, Fault.LOST, Fault.BUG)  # another attempt's release may succeed


class Released(NamedTuple):
    """Of a batch: the attempts that are marked, and why those that failed alone did."""

    marked: set[AttemptId]
    failures: Mapping[AttemptId, Exception]


class ReleaseBatcher:
    """Group commit: the first thread to come marks for all who came while the last mark was being written.

    Args:
        mark: marks a batch. An error that it raises is that of every attempt in it.
    """

    def __init__(self, mark: Callable[[list[Execution]], Released], runtime: Runtime) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._leader = runtime.lock()
        self._waiting: list[_Waiter] = []

    def release(self, execution: Execution) -> bool:
        """True once the mark is committed; False if the job is no longer this attempt's, or it is not known.

        Raises the error at which the mark of this attempt failed.
        """
        ticket = _Waiter(execution)
        with self._lock:
            self._waiting.append(ticket)
        while not ticket.answered:
            with self._leader:
                if not ticket.answered:
                    self._lead()
        if ticket.failure is not None:
            raise ticket.failure
        return ticket.marked

    def release_soon(self, execution: Execution, answer: Callable[[bool | Exception], None]) -> None:
        """As `release`, for one who does not wait: whoever leads next calls `answer`, with the error if one came."""
        with self._lock:
            self._waiting.append(_Waiter(execution, answer))

    def release_waiting(self) -> bool:
        """Mark a batch of those who have come; False if there was none."""
        if not self._waiting:
            return False
        with self._leader:
            if self._waiting:  # no one else has led meanwhile
                self._lead()
        return True

    def _lead(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        released, failure = Released(set(), {}), None
        try:
            released = self._mark([ticket.execution for ticket in batch])
        except Exception as error:
            failure = error
        finally:
            for ticket in batch:
                attempt = ticket.execution.job.attempt_id
                ticket.marked = attempt in released.marked
                ticket.failure = released.failures.get(attempt) if failure is None else failure
                ticket.answered = True
                if ticket.answer is not None:
                    ticket.answer(ticket.marked if ticket.failure is None else ticket.failure)


class ReleaseThread(Service):
    """The release of attempts; marks for the tasks of the event loop, which cannot wait themselves.

    Its thread is started with the first of those.

    Args:
        bound_seconds: what it may take over one batch, while the database answers.
    """

    name = "releases"

    def __init__(
        self, batcher: ReleaseBatcher, runtime: Runtime, supervisor: Supervisor, *, bound_seconds: float
    ) -> None:
        super().__init__(runtime)
        self._batcher, self._supervisor, self.bound_seconds = batcher, supervisor, bound_seconds
        self._arrived = runtime.event()
        self._starting = threading.Lock()

    def would_block(self) -> bool:
        """Whether whoever waits here keeps an event loop from going on."""
        return self._runtime.on_event_loop()

    def release(self, execution: Execution) -> bool:
        """As `ReleaseBatcher.release`, for a thread."""
        return self._batcher.release(execution)

    async def release_async(self, execution: Execution) -> bool:
        """As `release`, awaited."""
        return await self._runtime.answer(partial(self._ask, execution))

    def _ask(self, execution: Execution, answer: Callable[[bool | Exception], None]) -> None:
        self._batcher.release_soon(execution, answer)
        self._arrived.set()
        with self._starting:
            if self._watch is None:
                self.start(self._supervisor)

    def run(self) -> None:
        while not self._ending.is_set():
            self._arrived.wait(self.bound_seconds / 4)
            self._arrived.clear()
            self.came_round()
            while self._batcher.release_waiting():  # more may come without end
                self.came_round()

    def stop(self) -> None:
        super().stop()
        self._arrived.set()


class ReleaseMarker:
    """Records releases, and tells the evidence and the observers."""

    def __init__(self, context: WorkerContext, evidence: FailoverEvidence, observers: Observers) -> None:
        self._context, self._evidence, self._observers = context, evidence, observers

    def mark(self, executions: list[Execution]) -> Released:
        """Record the release of these attempts; none more once the worker is stopping.

        Raises:
            WorkerCannotContinue: no retry can help.
        """
        released = mark_released(self._context, executions)
        if not released.marked:
            return released
        marked = [execution for execution in executions if execution.job.attempt_id in released.marked]
        try:
            self._evidence.released(marked)
        except Exception as error:
            self._context.supervisor.part_failed("evidence", error)
        self._observers.released(marked)
        return released


def mark_released(context: WorkerContext, executions: list[Execution], *, brisk: bool = False) -> Released:
    """Record the release of these attempts; none more once the worker is stopping.

    Where it fails at one of them the batch is cut in two, until that attempt is alone: it has the error, or is not
    marked where another transaction holds its job. Either way its effect is not begun.

    Raises:
        WorkerCannotContinue: no retry can help.
    """
    try:
        marked = context.outage.retry_until_available(
            lambda: release(context.store, executions, context.ledgers),
            give_up=context.stopping.is_set, passing=_ABOUT_ONE, brisk=brisk,
        )  # fmt: skip
    except WorkerCannotContinue:
        raise
    except Exception as error:
        in_the_way = isinstance(error, StoreConflict)
        if len(executions) == 1:
            return Released(set(), {} if in_the_way else {executions[0].job.attempt_id: error})
    else:
        return Released(marked or set(), {})
    middle = len(executions) // 2
    left, right = (
        mark_released(context, half, brisk=in_the_way) for half in (executions[:middle], executions[middle:])
    )
    return Released(left.marked | right.marked, {**left.failures, **right.failures})


class _Waiter:
    __slots__ = ("answer", "answered", "execution", "failure", "marked")

    def __init__(self, execution: Execution, answer: Callable[[bool | Exception], None] | None = None) -> None:
        self.execution, self.answer = execution, answer
        self.answered = False
        self.marked = False
        self.failure: Exception | None = None
