"""For the tests of apps that use effects: a whole effects on a temporary database, its clock, and its crashes.

    def test_a_page_goes_out_once() -> None:
        with Toolkit(job_types=[PageOnCall()]) as toolkit:
            alert("disk full")                                     # the app's code, which enqueues
            toolkit.assert_enqueued("pager.page", team="db")
            toolkit.drain()

Under pytest the fixture `effects_toolkit` gives one. The database is a real one, SQLite, with the real worker.
"""

from __future__ import annotations

import copy
import os
import signal
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from effects import crashpoints
from effects.app import Effects
from effects.attempt import Attempt
from effects.default_app import replace_default
from effects.entry_points import entry_points
from effects.job_type import JobType
from effects.keys import generate_key
from effects.outcome import Done, Outcome
from effects.packages import split_options
from effects.sealing import open_payload
from effects.settings import Settings
from effects.store.queue.job_rows import payloads
from effects.worker import DrainResult, Worker

__all__ = ["Captured", "Enqueued", "Toolkit"]

_DRAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that was enqueued, live or ended. `payload` is typed, its sensitive fields in clear."""

    job_id: int
    status: str
    key: str | None
    queue: str
    payload: Any


@dataclass(slots=True)
class Captured:
    """The attempts of a captured job type, one entry each.

    `loaded` has what the type's `load` fetched for each.
    """

    job_type: str
    payloads: list[Any] = field(default_factory=list)
    loaded: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.payloads)


class Toolkit:
    """Effects on a SQLite file of its own, which is also the process's default until the end.

    Job types of installed packages are captured: their jobs are recorded and settled as done, and nothing leaves
    the process. Those given here, or by `add`, are carried out. The environment's settings are not read; the
    keys are fresh ones. Code that names an Effects of its own (`enqueue(…, effects=app)`) does not come here: let it
    use the default, `toolkit.app`, or take the Effects as an argument.

    Args:
        job_types: the app's own.
        **options: settings, such as `threads=2` (see `effects.Settings`), or of a package: `templates="emails"`.

    Raises:
        ConfigurationError: a setting or a job type is wrong; names it.
    """

    def __init__(self, *, job_types: Iterable[JobType[Any]] = (), **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="effects-toolkit-")
        values: dict[str, Any] = {
            "database_url": f"sqlite:///{Path(self._folder.name) / 'effects.db'}",
            "keys": f"test={generate_key()},digest={generate_key()}",
            **options,
        }
        self._captured: dict[str, Captured] = {}
        own, others = split_options(values)
        self.app = Effects(settings=Settings(**own), **others)
        for name in self.app.job_types.names():
            self.capture(name)
        self.add(*job_types)
        self._before: Effects | None = None

    def __enter__(self) -> Self:
        self.app.create_tables()
        self._before = replace_default(self.app)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        replace_default(self._before)
        self.app.dispose()
        self._folder.cleanup()

    # -- job types ---------------------------------------------------------------------------------------

    def add(self, *job_types: JobType[Any]) -> None:
        """Register the app's own job types; one of a known name takes its place, and is carried out.

        Raises:
            ConfigurationError: a declaration is wrong.
        """
        for job_type in job_types:
            self._captured.pop(job_type.name, None)
            if job_type.name in self.app.job_types:
                self.app.job_types.replace(job_type)
            else:
                self.app.add(job_type)

    def capture(self, job_type: str, outcome: Outcome | None = None) -> Captured:
        """Carry out this type's jobs no more: record them, and settle them with `outcome` (default `Done()`).

        Raises:
            UnknownJobType: no job type has this name.
        """
        captured = Captured(job_type)
        recorder = copy.copy(self.app.job_types.get(job_type))

        def perform(payload: Any, attempt: Attempt) -> Outcome:
            captured.payloads.append(payload)
            captured.loaded.append(attempt.loaded)
            return Done() if outcome is None else outcome

        recorder.perform = perform  # type: ignore[method-assign]
        self.app.job_types.replace(recorder)
        self._captured[job_type] = captured
        return captured

    def captured(self, job_type: str) -> Captured:
        """The attempts of a captured type so far.

        Raises:
            KeyError: this type is carried out, not captured.
        """
        return self._captured[job_type]

    def __getattr__(self, name: str) -> Any:
        """What an installed package shows to tests, by the name of its entry point in `effects.testing`."""
        for entry in entry_points("effects.testing"):
            if entry.name == name:
                return entry.load()(self)
        raise AttributeError(name)

    # -- what was enqueued -------------------------------------------------------------------------------

    def enqueued(self, job_type: str) -> list[Enqueued]:
        """The jobs of a type, live and ended, oldest first.

        Raises:
            UnknownJobType: no job type has this name.
        """
        registered = self.app.job_types.get(job_type)
        return [
            Enqueued(
                row.id,
                row.status,
                row.idempotency_key,
                row.queue,
                registered.decode(open_payload(self.app.keys, job_type, row.payload)),
            )
            for row in payloads(self.app.store, job_type)
        ]

    def assert_enqueued(
        self, job_type: str, *, times: int | None = None, key: str | None = None, **payload: Any
    ) -> list[Enqueued]:
        """Fail unless jobs of this type with these payload fields were enqueued (`times` of them, if given).

        Returns:
            Those that match.

        Raises:
            AssertionError: no such job; the message lists the jobs there are. Sensitive fields stay hidden.
            UnknownJobType: there is no such type.
        """
        jobs = self.enqueued(job_type)
        matching = [job for job in jobs if (key is None or job.key == key) and _fits(job.payload, payload)]
        if (times is None and not matching) or (times is not None and len(matching) != times):
            expected = f"{'at least one' if times is None else times} {job_type} with {sorted(payload)}"
            there = "".join(f"\n  {job!r}" for job in jobs) or " none of this type"
            raise AssertionError(f"expected {expected}{f' and key {key!r}' if key else ''}; there are:{there}")
        return matching

    # -- time and work -----------------------------------------------------------------------------------

    def drain(self, max_seconds: float = _DRAIN_SECONDS) -> DrainResult:
        """Let a worker do everything that is due, in this process. Retries due later wait: see `move_clock`."""
        return Worker(self.app).drain(max_seconds)

    def move_clock(self, seconds: float) -> None:
        """Move the database's clock as effects sees it; every time in the queue is by that clock."""
        self.app.store.shift_clock(seconds)

    def crash_at(self, point: str, *, nth: int = 1) -> None:
        """Let a worker be killed (SIGKILL) where it passes `point`, then move the clock until its jobs count as lost.

        The worker is a forked child: what it wrote to the database stays, what it held in memory is gone, this
        test's lists included. The next `drain` rescues what it left. Points of effects are in
        `effects.crashpoints.POINTS`; an app adds its own by `declare({"invoice.charged": "…"})` and passes them by
        `point("invoice.charged")`. POSIX only.

        Raises:
            ValueError: no such point is declared.
            AssertionError: the worker ended without passing it.
        """
        if point not in crashpoints.POINTS:
            raise ValueError(f"no crash point {point!r} is declared (see effects.crashpoints.declare)")
        self.app.engine.dispose()  # a SQLite connection must not be carried over a fork
        with warnings.catch_warnings():
            # Python 3.12 warns of threads. The child starts its own and takes no lock of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            self._crash(point, nth)
        _, status = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise AssertionError(
                f"the worker ended without passing {point} {f'{nth} times' if nth > 1 else ''}".strip()
            )
        limits = [job_type.time_limit_seconds for job_type in self.app.job_types]
        self.move_clock(self.app.settings.lease_seconds + max(limits) + 1)

    def _crash(self, point: str, nth: int) -> None:
        """The child's whole life; it never returns."""
        try:
            crashpoints.install(crashpoints.plan(point, nth=nth))
            Worker(self.app).drain(_DRAIN_SECONDS)
        finally:
            os._exit(0)


def _fits(payload: Any, expected: Mapping[str, Any]) -> bool:
    facts = msgspec.to_builtins(payload, str_keys=True)
    plain = msgspec.to_builtins(dict(expected), str_keys=True)
    return all(name in facts and facts[name] == value for name, value in plain.items())
