"""The reports that an app knows, and where they are read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Engine

from effects.extend import create_engine, described, nearest
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
