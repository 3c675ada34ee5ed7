"""What the job types of an app do in a test: some are captured, and of all others every exception is noted."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sqlalchemy import Connection

from effects.errors import DeliveryError, LeaseLost
from effects.model.job import Attempt, Job
from effects.model.job_type import JobType
from effects.model.outcome import Apply, Done, Outcome
from effects.model.registry import Registry


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


class Recorder:
    """Stands between the worker and the job types of one registry until `restore`."""

    def __init__(self, registry: Registry) -> None:
        self.captured: dict[str, Captured] = {}
        self.answered: set[str] = set()  # of those, what the test has given an outcome
        self.errors: list[Exception] = []  # of handlers, oldest first, each with a note of its job
        self._registry = registry
        self._before: dict[str, JobType[Any] | None] = {}  # None: added by the test
        self._placed: dict[str, JobType[Any]] = {}

    def start(self) -> None:
        """Capture what a package wants captured, and watch the rest; types registered since the last call too."""
        for job_type in list(self._registry):
            if self._placed.get(job_type.name) is job_type:
                continue
            self._before[job_type.name] = job_type
            if job_type.captured_in_tests:
                self.capture(job_type.name)
            else:
                self._place(_watched(job_type, self.errors))

    def restore(self) -> None:
        """Put every job type back as it was, and remove those that the test added."""
        for name, job_type in self._before.items():
            if job_type is None:
                self._registry.remove(name)
            else:
                self._registry.replace(job_type)

    def add(self, job_type: JobType[Any]) -> None:
        """Register one for this test, in place of the registered one of its name; it is carried out.

        Raises:
            ConfigurationError: the declaration is wrong.
        """
        self.captured.pop(job_type.name, None)
        if job_type.name in self._registry:
            self._before.setdefault(job_type.name, self._registry.get(job_type.name))
        else:
            self._registry.add(job_type)
            self._before[job_type.name] = None
        self._place(_watched(job_type, self.errors))

    def capture(self, name: str, outcome: Outcome | None = None) -> Captured:
        """Record this type's jobs from now on, and settle them with `outcome` (default `Done()`).

        Raises:
            UnknownJobType: no job type has this name.
        """
        current = self._registry.get(name)
        self._before.setdefault(name, current)
        captured = self.captured[name] = Captured(name)
        (self.answered.discard if outcome is None else self.answered.add)(name)
        recording = copy.copy(current)

        def perform(payload: Any, attempt: Attempt) -> Outcome:
            captured.payloads.append(payload)
            captured.loaded.append(attempt.loaded)
            return Done() if outcome is None else outcome

        recording.perform = perform  # type: ignore[method-assign]
        recording.worker_starts = recording.worker_ends = _nothing  # type: ignore[method-assign]
        self._place(recording)
        return captured

    def _place(self, job_type: JobType[Any]) -> None:
        self._registry.replace(job_type)
        self._placed[job_type.name] = job_type


def _nothing() -> None:
    """What a captured type needs at a worker's start and end: it sends nothing."""


def _watched(job_type: JobType[Any], errors: list[Exception]) -> JobType[Any]:
    """A copy whose methods are those of the original, so that what they keep on `self` stays there."""
    watching = copy.copy(job_type)

    def noting(attempt: Attempt) -> AbstractContextManager[None]:
        return _noting(errors, f"job {attempt.job.id} ({job_type.name}), attempt {attempt.number}")

    def watched(answer: Any) -> Any:
        if isinstance(answer, Done) and answer.apply is not None:
            return replace(answer, apply=_watched_apply(job_type.name, answer.apply, errors))
        return answer

    def perform(payload: Any, attempt: Attempt) -> Any:
        with noting(attempt):
            answer = job_type.perform(payload, attempt)
        return watched(answer)

    async def perform_async(payload: Any, attempt: Attempt) -> Any:
        with noting(attempt):
            answer = await cast("Awaitable[Any]", job_type.perform(payload, attempt))
        return watched(answer)

    def load(connection: Connection, jobs: Sequence[tuple[Job, Any]]) -> Mapping[int, Any]:
        with _noting(errors, f"`load` of {job_type.name}, for {len(jobs)} jobs"):
            return job_type.load(connection, jobs)

    watching.perform = perform_async if job_type.is_async else perform  # type: ignore[method-assign]
    watching.load = load  # type: ignore[method-assign]
    return watching


def _watched_apply(name: str, apply: Apply, errors: list[Exception]) -> Apply:
    def run(connection: Connection) -> None:
        with _noting(errors, f"`apply` of a Done of {name}"):
            apply(connection)

    return run


@contextmanager
def _noting(errors: list[Exception], where: str) -> Iterator[None]:
    """Note an exception on its way through. Outcomes are answers, not errors; so is a lost lease."""
    try:
        yield
    except (DeliveryError, LeaseLost):
        raise
    except Exception as error:
        error.add_note(f"raised by {where}")
        errors.append(error)
        raise
