"""The reports that an app knows, and where they read and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, cast

from sqlalchemy import Engine

from effects.schedules import Schedule
from effects.storage import open_storage
from effects.storage.base import Storage
from effects.store.engine import create_engine
from effects_reports.definition import ReportDefinition
from effects_reports.errors import DefinitionInvalid, ReportInvalid

if TYPE_CHECKING:
    from effects.app import Effects

PLAN_TYPE, CHUNK_TYPE, ASSEMBLE_TYPE = "report.plan", "report.chunk", "report.assemble"
CLEAN_TYPE, SWEEP_TYPE = "report.clean", "report.sweep"
QUEUE = "reports"
SWEEP_SCHEDULE = Schedule("reports.sweep", SWEEP_TYPE, cron="*/5 * * * *", catch_up="none")


class Catalogue:
    """Definitions by name, engines by name, one storage: what the job types of one Effects share."""

    def __init__(self, app: Effects) -> None:
        self._app = app
        self._definitions: dict[str, ReportDefinition] = {}
        self._engines: dict[str, Engine] = {}

    @cached_property
    def storage(self) -> Storage:
        """The one that EFFECTS_STORAGE_URL names."""
        return open_storage(self._app.settings.storage_url)

    def add(self, definition: ReportDefinition) -> None:
        """Check a definition and keep it.

        Raises:
            DefinitionInvalid: it is wrong, its name is taken, or nobody gave the engine that it reads from.
        """
        definition.check()
        if definition.name in self._definitions:
            raise DefinitionInvalid(f"report {definition.name!r} is added twice")
        if definition.engine is not None and definition.engine not in self._engines:
            raise DefinitionInvalid(
                f"report {definition.name!r} reads from the engine {definition.engine!r}: give it to "
                f'add_reports(…, engines={{"{definition.engine}": …}})'
            )
        self._definitions[definition.name] = definition

    def add_engine(self, name: str, engine: Engine | str) -> None:
        self._engines[name] = create_engine(engine) if isinstance(engine, str) else engine

    def get(self, name: str) -> ReportDefinition:
        """The definition of this name.

        Raises:
            ReportInvalid: there is none; lists those that there are.
        """
        try:
            return self._definitions[name]
        except KeyError:
            known = ", ".join(sorted(self._definitions)) or "none: give yours to add_reports"
            raise ReportInvalid(f"no report {name!r} is known (known: {known})") from None

    def engine_of(self, definition: ReportDefinition) -> Engine:
        """The database that the report reads from; the app's own where it names none."""
        return self._app.engine if definition.engine is None else self._engines[definition.engine]

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def __iter__(self) -> Iterator[ReportDefinition]:
        return iter(self._definitions.values())


def catalogue_of(app: Effects) -> Catalogue:
    """The catalogue that the report job types of this Effects share."""
    return cast(Catalogue, app.job_types.get(PLAN_TYPE).catalogue)  # type: ignore[attr-defined]


def add_reports(
    app: Effects, *definitions: ReportDefinition, engines: Mapping[str, Engine | str] | None = None
) -> None:
    """Make reports known to an app: to whoever requests them, and to the workers that `effects --app` starts.

    With the first, the schedule `reports.sweep` is declared, which repairs every five minutes what a lost job left
    behind; `effects --app … init` registers it.

    Args:
        engines: other databases by the names that definitions give as `engine`: SQLAlchemy engines, or URLs.

    Raises:
        DefinitionInvalid: a definition is wrong; names the report and the argument.
    """
    catalogue = catalogue_of(app)
    for name, engine in (engines or {}).items():
        catalogue.add_engine(name, engine)
    for definition in definitions:
        catalogue.add(definition)
    if SWEEP_SCHEDULE.name not in app.schedules:
        app.add_schedules(SWEEP_SCHEDULE)
