"""The job types of one app, by name: its own, and those that installed packages offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

from effects.errors import ConfigurationError, UnknownJobType
from effects.job_type import JobType


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
        job_type.check()
        if job_type.name in self._by_name:
            raise ConfigurationError(f"job type {job_type.name!r} is registered twice")
        self._by_name[job_type.name] = job_type

    def replace(self, job_type: JobType[Any]) -> None:
        """Register one over the registered one of its name: a built-in type with other policies.

        Raises:
            ConfigurationError: the declaration is wrong.
            UnknownJobType: there is none to replace.
        """
        job_type.check()
        self.get(job_type.name)
        self._by_name[job_type.name] = job_type

    def get(self, name: str) -> JobType[Any]:
        """The job type of this name.

        Raises:
            UnknownJobType: nothing of this name is registered; lists what is.
        """
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise UnknownJobType(f"no job type {name!r} is registered (known: {known})") from None

    def __iter__(self) -> Iterator[JobType[Any]]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def names(self) -> list[str]:
        return sorted(self._by_name)


def installed_job_types(app: Any) -> Iterator[JobType[Any]]:
    """The job types that installed packages offer under the entry point group `effects.job_types`.

    Each entry point is a callable that takes the Effects and returns its job types.
    """
    for entry in sorted(entry_points(group="effects.job_types"), key=lambda entry: entry.name):
        offer: Callable[[Any], Iterable[JobType[Any]]] = entry.load()
        yield from offer(app)
