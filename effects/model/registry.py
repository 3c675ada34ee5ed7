"""The job types of one app, by name: its own, and those that installed packages offer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from effects.errors import ConfigurationError, EnqueueError, PayloadInvalid, UnknownJobType
from effects.logs import error_places
from effects.model.declaration import check_job_type
from effects.model.job_type import JobType
from effects.process.entry_points import entry_points
from effects.scheduling.schedules import PLACEHOLDERS, Schedule
from effects.text.nearest import nearest
from effects.text.placeholders import why_unfilled
from effects.text.scrub import class_name


class Registry:
    """The job types of one Effects, by name."""

    def __init__(self, job_types: Iterable[JobType[Any]] = ()) -> None:
        self._by_name: dict[str, JobType[Any]] = {}
        for job_type in job_types:
            self.add(job_type)

    def add(self, job_type: JobType[Any]) -> None:
        """Register one.

        Raises:
            ConfigurationError: the declaration is wrong, or the name is taken.
        """
        check_job_type(job_type)
        if (before := self._by_name.get(job_type.name)) is not None:
            raise ConfigurationError(
                f"job type {job_type.name!r} is registered twice: {before.declared_at} and {job_type.declared_at}"
            )
        self._by_name[job_type.name] = job_type

    def replace(self, job_type: JobType[Any]) -> None:
        """Register one over the registered one of its name: a built-in type with other policies.

        Raises:
            ConfigurationError: the declaration is wrong.
            UnknownJobType: no job type of this name to replace.
        """
        check_job_type(job_type)
        self.get(job_type.name)
        self._by_name[job_type.name] = job_type

    def remove(self, name: str) -> None:
        """Forget the job type of this name.

        Raises:
            UnknownJobType: no job type of this name.
        """
        self.get(name)
        del self._by_name[name]

    def get(self, name: str) -> JobType[Any]:
        """The job type of this name.

        Raises:
            UnknownJobType: no job type of this name; the message lists the registered ones.
        """
        try:
            return self._by_name[name]
        except KeyError:
            names = ", ".join(sorted(self._by_name)) or "none"
            similar = nearest(name, self._by_name)
            raise UnknownJobType(f"no job type {name!r} is registered (known: {names}){similar}") from None

    def check_schedule(self, schedule: Schedule) -> None:
        """Refuse a schedule of a job type that is not registered, or whose payload does not fit it or holds a secret.

        Raises:
            ConfigurationError: names the schedule and what is wrong.
        """
        try:
            job_type = self.get(schedule.job_type)
            if secret := sorted(set(job_type.sensitive) & set(schedule.payload)):
                raise ConfigurationError(
                    f"the payload's {', '.join(secret)} is sensitive, and a schedule is stored in clear: "
                    "give an id, and let the handler look it up"
                )
            if (
                why := why_unfilled(msgspec.json.decode(schedule.template()), (*PLACEHOLDERS, *job_type.placeholders))
            ) is not None:
                raise ConfigurationError(why)
            job_type.encode(schedule.payload_of(datetime(2000, 1, 1, tzinfo=UTC)))
        except (ConfigurationError, PayloadInvalid) as error:
            raise ConfigurationError(f"schedule {schedule.name!r}: {error}") from None

    def check_declared(self, schedule: Schedule) -> None:
        """Refuse a schedule whose next job its own type would refuse when it runs.

        Raises:
            ConfigurationError: names the schedule and what is wrong.
        """
        self.check_schedule(schedule)
        job_type = self.get(schedule.job_type)
        slot = next(schedule.times.after(datetime.now(UTC)), datetime.now(UTC))
        try:
            job_type.check_declared(job_type.checked(schedule.payload_of(slot))[0])
        except (ConfigurationError, EnqueueError) as error:
            raise ConfigurationError(f"schedule {schedule.name!r}: {error}") from None
        except (Exception, SystemExit, GeneratorExit) as error:  # of the app's own code, which may quote a value
            raised = f"{class_name(error)} at {error_places(error)}"
            raise ConfigurationError(f"schedule {schedule.name!r}: the check of its payload raised {raised}") from error

    def __iter__(self) -> Iterator[JobType[Any]]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def async_queues(self) -> set[str]:
        """The queues whose job types are all async: what they have in flight takes up no threads."""
        kinds: dict[str, set[bool]] = defaultdict(set)
        for job_type in self:
            kinds[job_type.queue].add(job_type.is_async)
        return {queue for queue, is_async in kinds.items() if is_async == {True}}

    def loading_queues(self) -> set[str]:
        """The queues with a job type that loads what a claimed batch needs."""
        return {job_type.queue for job_type in self if type(job_type).load is not JobType.load}


class Unregistered(JobType[Any]):
    """Placeholder for a job type missing from this code, used to settle a lost job of it."""

    on_unknown = "hold"

    def __init__(self, name: str) -> None:
        self.name = name


def installed_job_types(app: Any) -> Iterator[JobType[Any]]:
    """The job types that installed packages offer under the entry point group `effects.job_types`.

    Each entry point is a callable that takes the Effects and returns its job types.
    """
    for entry in entry_points("effects.job_types"):
        offer: Callable[[Any], Iterable[JobType[Any]]] = entry.load()
        yield from offer(app)
