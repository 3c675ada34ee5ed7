"""What reports keep of one Effects: settings, definitions by name, and the databases that they read from."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from effects import Effects
from effects.extend.sql import create_engine
from effects.extend.text import described, nearest
from effects_reports.definitions.definition import ReportDefinition
from effects_reports.errors import DefinitionInvalid, ReportInvalid
from effects_reports.settings import ReportSettings
from effects_reports.source.replica import Replica, ReportSource

if TYPE_CHECKING:
    from effects import Effects


class ReportRegistry:
    """Definitions and engines by their names: what the job types of one Effects share.

    Raises:
        DefinitionInvalid: a definition is wrong, two have one name, or one reads from a missing engine.
    """

    def __init__(self, app: Effects, settings: ReportSettings) -> None:
        self._app = app
        engines = settings.report_engines
        self._replicas = {name: engine for name, engine in engines.items() if isinstance(engine, Replica)}
        for name, replica in self._replicas.items():
            _check_replica(app, name, replica)
        self._engines = {name: _engine(app, engine) for name, engine in engines.items()}
        self._definitions: dict[str, ReportDefinition] = {}
        for definition in settings.reports:
            self._add(definition)

    def _add(self, definition: ReportDefinition) -> None:
        if not isinstance(definition, ReportDefinition):
            raise DefinitionInvalid(f"reports holds {described(definition)}; give functions decorated by @report")
        definition.check()
        if definition.name in self._definitions:
            raise DefinitionInvalid(f"two reports are called {definition.name!r}")
        if definition.engine is not None and definition.engine not in self._engines:
            raise DefinitionInvalid(
                f"report {definition.name!r} reads from the engine {definition.engine!r}: give it to "
                f'Effects(report_engines={{"{definition.engine}": …}})'
            )
        self._definitions[definition.name] = definition

    def get(self, name: str) -> ReportDefinition:
        """The definition of this name.

        Raises:
            ReportInvalid: no report has this name; the message lists the names.
        """
        try:
            return self._definitions[name]
        except KeyError:
            names = ", ".join(sorted(self._definitions)) or "none: give yours to Effects(reports=[…])"
            near = nearest(name, self._definitions)
            raise ReportInvalid(f"no report {name!r} is known (known: {names}){near}") from None

    def engine_of(self, definition: ReportDefinition) -> Engine:
        """The database that the report reads from; by default the app's own."""
        return self._app.engine if definition.engine is None else self._engines[definition.engine]

    def source_of(self, definition: ReportDefinition) -> ReportSource:
        """How the report is read: by that database, or by a replica that is looked at first."""
        return ReportSource(self.engine_of(definition), self._replicas.get(definition.engine or ""), self._app.engine)

    @property
    def engines(self) -> list[Engine]:
        """Every database that reports may be read from."""
        return [self._app.engine, *self._engines.values()]

    def is_encoded_by_python(self, name: str) -> bool:
        """Whether all chunks of a report are, whatever is requested. One that is not known here has none."""
        definition = self._definitions.get(name)
        if definition is None:
            return False
        by_copy = self.engine_of(definition).dialect.name == "postgresql" and not definition.sheets
        return definition.iterable or definition.mapped or not by_copy

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def __len__(self) -> int:
        return len(self._definitions)


def _engine(app: Effects, engine: Engine | str | Replica) -> Engine:
    address = engine.url if isinstance(engine, Replica) else engine
    return app.own_engine(create_engine(address)) if isinstance(address, str) else address


def _check_replica(app: Effects, name: str, replica: Replica) -> None:
    replica.check(name)
    if app.engine.dialect.name != "postgresql":
        raise DefinitionInvalid(f"report_engines: {name!r} is a Replica, and only PostgreSQL has replicas")


_MIB = 1024 * 1024
# What a chunk's buffers take at most, of rows of some KB: `benchmarks/report_memory`.
_PYTHON_BYTES, _COPY_BYTES = 48 * _MIB, 12 * _MIB
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class ChunkRoom:
    """Which chunks this process makes at a time.

    Of those that Python encodes, which take turns on its interpreter, as many as there are cores; of all as many as
    their buffers fit into the memory. One at least. Thread-safe.
    """

    def __init__(self, memory_bytes: int, cores: int) -> None:
        self._memory, self._cores = memory_bytes, cores
        self._freed = threading.Condition()
        self._held: Counter[tuple[str, bool]] = Counter()  # (report, whether Python encodes it) → chunks
        self._by_python: dict[str, bool] = {}  # report → of its newest chunk here

    def most(self, report: str, *, by_python: bool) -> int:
        """How many chunks of a report may be held: those that are, and those for which there is room.

        Args:
            by_python: what is to be thought of a report of which none was made here.
        """
        with self._freed:
            held = self._held[report, True] + self._held[report, False]
            return held + self._free(self._by_python.get(report, by_python))

    @contextmanager
    def hold(self, report: str, *, by_python: bool, seconds: float) -> Iterator[bool]:
        """Make a chunk inside the block; False if there was no room within `seconds`."""
        key = (report, by_python)
        with self._freed:
            self._by_python[report] = by_python
            has_room = self._freed.wait_for(lambda: self._free(by_python) > 0, seconds)
            self._held[key] += has_room
        try:
            yield has_room
        finally:
            with self._freed:
                self._held[key] -= has_room
                self._freed.notify_all()

    def _free(self, by_python: bool) -> int:
        python = sum(count for (_, is_python), count in self._held.items() if is_python)
        copied = self._held.total() - python
        if not python + copied:
            return max(1, self._cores) if by_python else 1
        bytes_free = self._memory - python * _PYTHON_BYTES - copied * _COPY_BYTES
        fit = max(0, bytes_free // (_PYTHON_BYTES if by_python else _COPY_BYTES))
        return min(fit, max(0, self._cores - python)) if by_python else fit


def count_cores() -> int:
    """How many cores this process may use: those that it is bound to, and no more than its container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = map(int, _QUOTA.read_text(encoding="ascii").split())
        return max(1, min(bound, math.ceil(quota / period)))
    return bound


class ReportState:
    """Of one Effects; made once, when first needed.

    Raises:
        DefinitionInvalid: a definition is wrong, two have one name, or one reads from an engine that is not set.
    """

    def __init__(self, app: Effects) -> None:
        self.settings: ReportSettings = app.packages["reports"]
        self.bucket_networks = self.settings.bucket_networks()
        self.registry = ReportRegistry(app, self.settings)
        self.room = ChunkRoom(self.settings.report_memory * _MIB, count_cores())


def state_of(app: Effects) -> ReportState:
    """The state of reports in this Effects."""
    return app.state(ReportState)
