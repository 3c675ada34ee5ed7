"""Functions of the app that a worker calls once it has recorded that a job died, may have had its effect, or paused.

A hook is a notice, not an effect: it is called at most once, and a crash between the commit and the call loses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, Full, Queue
from typing import Literal, TypeAlias, get_args

import msgspec

from effects.errors import ConfigurationError
from effects.kit.arguments import shown
from effects.kit.logs import RateLimitedLogger, error_places, own_logger
from effects.kit.text.redact import repr_without
from effects.kit.text.wording import described
from effects.model.settlement import Settlement

HookName: TypeAlias = Literal["dead", "unknown", "paused"]

WAITING_MAX = 1000  # events; more are dropped and logged, so that a hook that hangs fills no memory
REST_SECONDS = 10.0  # the thread ends after so long without an event

_NAMES = get_args(HookName)
_log = own_logger("effects.hooks")


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook is told: facts of one recorded attempt.

    `ended`: the job has ended; else it will be tried again. `attempt`: counted from 1; 0 where none was made.
    `code`: the error code. `pause_seconds`: of "paused", how long `limit_key` (or its parent) starts no job.
    """

    event: HookName
    job_id: int
    job_type: str
    queue: str
    attempt: int
    ended: bool
    key: str | None = None
    limit_key: str | None = None
    code: str | None = None
    pause_seconds: float = 0.0

    def __repr__(self) -> str:
        """Without the keys, which may be personal."""
        return repr_without(self, ("key", "limit_key"))


Hook: TypeAlias = Callable[[HookEvent], object]


class Hooks:
    """The hooks of one Effects, called one after another by their own thread that starts with the first event."""

    def __init__(self) -> None:
        self._hooks: dict[HookName, list[Hook]] = {}
        self._waiting: Queue[HookEvent] = Queue(WAITING_MAX)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed = RateLimitedLogger(_log, "hook.failed")
        self._dropped = RateLimitedLogger(_log, "hook.dropped")

    def add(self, name: HookName, hook: Hook) -> None:
        """Call `hook` for each such event from now on.

        Raises:
            ConfigurationError: there is no such event, or `hook` cannot be called.
        """
        if name not in _NAMES:
            raise ConfigurationError(f"app.on: the event is {shown(name)}; give one of {', '.join(_NAMES)}")
        if not callable(hook):
            raise ConfigurationError(
                f"app.on({name!r}): the hook is {described(hook)}; give a function of one HookEvent"
            )
        self._hooks.setdefault(name, []).append(hook)

    def recorded(self, settlement: Settlement) -> None:
        """Have the hooks called for what this recorded outcome means; waits for nothing."""
        if not self._hooks:
            return
        for name in _events_of(settlement):
            if name in self._hooks:
                self._put(_event(name, settlement))

    def finish(self, seconds: float) -> None:
        """Wait at most so long until the hooks of all events have returned."""
        with self._lock:
            thread = self._thread
        if thread is None:
            return
        with self._waiting.all_tasks_done:
            self._waiting.all_tasks_done.wait_for(lambda: not self._waiting.unfinished_tasks, seconds)
        if left := self._waiting.unfinished_tasks:
            self._dropped.error(f"{left} events were not told before the worker's end")

    def _put(self, event: HookEvent) -> None:
        try:
            with self._lock:  # the thread ends under it, and only where nothing waits
                self._waiting.put_nowait(event)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="effects-hooks", daemon=True)
                    self._thread.start()
        except Full:
            self._dropped.error(f"{WAITING_MAX} events wait: the hooks are slower than what they are told")

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._call(event)
            finally:
                self._waiting.task_done()

    def _next(self) -> HookEvent | None:
        while True:
            try:
                return self._waiting.get(timeout=REST_SECONDS)
            except Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._thread = None
                        return None

    def _call(self, event: HookEvent) -> None:
        for hook in self._hooks[event.event]:
            try:
                hook(event)
            except BaseException as error:  # it ends neither this thread nor a worker
                self._failed.error(f"{event.event}: {type(error).__name__} at {error_places(error)}")


def _events_of(settlement: Settlement) -> Iterator[HookName]:
    if settlement.verdict == "unknown":
        yield "unknown"
    if settlement.status == "dead":
        yield "dead"
    if settlement.pause_seconds > 0 and settlement.job.limit_key is not None:
        yield "paused"


def _event(name: HookName, settlement: Settlement) -> HookEvent:
    job = settlement.job
    return HookEvent(
        event=name, job_id=job.id, job_type=job.job_type, queue=job.home_queue, attempt=job.attempts,
        ended=settlement.ends, key=job.key, limit_key=job.limit_key, code=settlement.error_code,
        pause_seconds=settlement.pause_seconds,
    )  # fmt: skip
