"""What a test needs to make one part of a worker alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from effects import Effects, JobType
from effects.model.settlement import Execution, Settlement
from effects.worker.attempts.attempt import AttemptContext, RunningAttempt
from effects.worker.context import WorkerContext
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.handler_loop import HandlerLoop
from effects.worker.queues.worker_queues import WorkerQueues
from effects.worker.supervisor import PartFault, Supervisor


def context_of(
    app: Effects | None = None, runtime: Runtime | None = None, faults: list[PartFault] | None = None
) -> WorkerContext:
    """The context of a worker without parts; `faults` has those that its supervisor is told of.

    Without an app there is no database behind it either.
    """
    app = app or Effects("sqlite:///none.db")
    runtime, failed = runtime or Runtime(), [] if faults is None else faults
    return WorkerContext(app, runtime, Supervisor(runtime, failed=failed.append))


class Releasing:
    """Records no release, and says what it is told to: default, that each is recorded."""

    def __init__(self, release: Callable[[Execution], bool] = lambda execution: True) -> None:
        self.release = release

    def would_block(self) -> bool:
        return False

    async def release_async(self, execution: Execution) -> bool:
        return self.release(execution)


def attempt_of(
    execution: Execution,
    job_type: JobType[Any],
    *,
    release: Callable[[Execution], bool] = lambda execution: True,
    runtime: Runtime | None = None,
) -> RunningAttempt:
    return RunningAttempt(execution, AttemptContext(job_type, Releasing(release), runtime or Runtime()))


class KeptSettlements:
    """Takes settlements and writes none."""

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []

    def add(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)

    def wait_written(self, settlement: Settlement) -> None:
        """None is written."""


def no_queues(context: WorkerContext) -> WorkerQueues:
    """The queues of a worker that serves none."""
    return WorkerQueues(context, [], HandlerLoop(context), KeptSettlements())


class NothingHeld:
    """A worker that has no jobs in its hands, but these outcomes."""

    attempts: Sequence[RunningAttempt] = ()

    def __init__(self, unwritten: Callable[[], list[Settlement]] = list) -> None:
        self._unwritten = unwritten

    @property
    def unwritten(self) -> list[Settlement]:
        return self._unwritten()


class HardEnd:
    """A process that notes the codes it was to end with, and goes on."""

    def __init__(self, codes: list[int], *, is_on_terminal: bool = False) -> None:
        self._codes = codes
        self.is_on_terminal = is_on_terminal

    def end(self, code: int) -> None:
        self._codes.append(code)

    def came_round(self) -> None:
        """It goes on."""

    def put_off(self, seconds: float) -> None:
        """It goes on."""
