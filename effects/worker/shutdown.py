"""The end of a worker: give back what was not begun, let the rest end, record what is left, deregister.

Where a part hangs that cannot be ended, the last resort is the end of the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from effects.app import Effects
from effects.exit_codes import ExitCode
from effects.logs import error_places
from effects.store.workers.registration import deregister, end
from effects.worker.machine.runtime import Runtime
from effects.worker.parts import Parts
from effects.worker.supervision.supervisor import Service

FLUSH_SECONDS = 30.0
JOIN_SECONDS = 2.0
HOOKS_SECONDS = 2.0  # for hooks that have not returned
LOOK_SECONDS = 0.02

_log = logging.getLogger("effects.worker")


class Shutdown:
    """The shutdown, performed once, by the dispatcher's thread or by one that takes over if that stalls.

    Args:
        grace_seconds: for running handlers after a requested stop; at the end of a drain they have their
            own deadlines.
        stop_asked: whether a stop was requested.
        aborting: set when there is no grace any more.
    """

    def __init__(
        self,
        app: Effects,
        parts: Parts,
        runtime: Runtime,
        *,
        grace_seconds: float,
        stop_asked: Callable[[], bool],
        aborting: threading.Event,
    ) -> None:
        self._app, self._parts, self._now = app, parts, runtime.monotonic
        self._grace_seconds, self._stop_asked = grace_seconds, stop_asked
        self._aborting, self._came_round = aborting, parts.supervisor.came_round
        self._begun, self._is_interrupt = threading.Lock(), runtime.is_interrupt
        self.over = runtime.event()

    @property
    def _of_async_handlers(self) -> tuple[Service, ...]:
        return (self._parts.loop, self._parts.releases)

    @property
    def begun(self) -> bool:
        return self._begun.locked()

    def conduct(self, *, fault: tuple[ExitCode, str] | None) -> bool:
        """False if another thread has begun it.

        Args:
            fault: the exit code and the reason, where the end is not in order. Then claimed jobs that the part which
                failed left without a holder are returned, and the worker's row keeps both.
        """
        if not self._begun.acquire(blocking=False):
            return False
        try:
            self._conduct(fault)
        finally:
            self.over.set()
        return True

    def _conduct(self, fault: tuple[ExitCode, str] | None) -> None:
        parts = self._parts
        for service in parts.others:
            service.stop()
        parts.queues.give_back_unstarted()
        self._wait_for_running()
        parts.queues.cut_short()
        parts.queues.close()
        for part in self._of_async_handlers:
            part.stop()
        if fault is not None:
            self._try("give_back", lambda: parts.claimer.give_back(parts.heartbeat.worker.id))
        self._flush()
        parts.heartbeat.stop()
        self._join()
        self._app.hooks.finish(0.0 if self._aborting.is_set() else HOOKS_SECONDS)
        self._try("numbers", parts.heartbeat.write_numbers)
        for job_type in self._app.job_types:
            self._try("worker_ends", job_type.worker_ends)
        self._try("deregister", lambda: self._deregister(fault))
        if fault is None and not parts.outage.under_way and not parts.settler.unwritten:
            self._try("evidence", parts.evidence.close)

    def _deregister(self, fault: tuple[ExitCode, str] | None) -> None:
        store, worker = self._app.store, self._parts.heartbeat.worker.id
        last = partial(deregister, store, worker) if fault is None else partial(end, store, worker, *fault)
        self._parts.outage.retry_until_available(last, give_up=lambda: True)

    def _try(self, step: str, call: Callable[[], object]) -> None:
        """Log a failure and leave the rest to rescue: the process ends in any case."""
        self._came_round()
        try:
            call()
        except BaseException as error:
            if self._is_interrupt(error):
                raise
            fields = {"step": step, "error": type(error).__name__, "at": error_places(error)}
            _log.warning("worker.end_failed", extra=fields)

    def _wait_for_running(self) -> None:
        queues, asked_at = self._parts.queues, None
        while queues.busy() and not self._aborting.is_set():
            self._came_round()
            asked_at = asked_at or (self._now() if self._stop_asked() else None)
            if asked_at is not None and self._now() - asked_at > self._grace_seconds:
                return
            queues.give_up_overdue()
            self._aborting.wait(LOOK_SECONDS)

    def _flush(self) -> None:
        """Have what was answered written. After the time what is left is left to rescue."""
        settler = self._parts.settler
        settler.close()
        until = self._now() + FLUSH_SECONDS
        while settler.is_alive() and self._now() < until:
            self._came_round()
            settler.join(0.05)
            if self._aborting.is_set() and self._parts.outage.under_way:
                break
        settler.abandon()

    def _join(self) -> None:
        """They hold connections, and a heartbeat under way would find us gone; one that hangs is left behind."""
        until = self._now() + JOIN_SECONDS
        for service in (self._parts.heartbeat, *self._of_async_handlers, *self._parts.others):
            service.join(max(0.0, until - self._now()))
        self._came_round()


class LastResort:
    """Threads that wait for the worker's end, and end the process where it does not come.

    Args:
        hard_end: ends the process with a code, at once; None where the process is not ours to end.
    """

    def __init__(self, runtime: Runtime, hard_end: Callable[[int], object] | None) -> None:
        self._runtime, self._hard_end = runtime, hard_end
        self._returned = runtime.event()

    def within(self, seconds: float, code: ExitCode) -> None:
        """The worker returns within so many seconds from now, or the process ends with the code."""
        hard_end = self._hard_end
        if hard_end is None:
            return

        def guard() -> None:
            if not self._returned.wait(seconds):
                hard_end(code)

        self._runtime.start(guard, "effects-last-resort")

    def returned(self) -> None:
        """The worker's caller has the process again."""
        self._returned.set()
