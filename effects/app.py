"""The composition root: settings, engine, tables, job types, keys, joined once and checked when made."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from effects.alerts import ALERTS_SCHEDULE, Alert
from effects.crashpoints import point
from effects.errors import ConfigurationError, EnqueueError, SchemaMismatch
from effects.hints import Hints
from effects.job_type import JobType
from effects.keys import KeyRing
from effects.packages import package_settings, split_options
from effects.prune import Prune
from effects.registry import Registry, installed_job_types
from effects.schedules import Schedule
from effects.settings import Settings
from effects.storage import Storage, open_storage
from effects.store.engine import autocommit_twin, create_engine
from effects.store.ledger import CORE_LEDGER, Ledger
from effects.store.store import Store, TableBuilder

AnySession: TypeAlias = Session | Connection


class Effects:
    """One database and the job types that it serves.

    Args:
        database_url: SQLite or PostgreSQL; default EFFECTS_DATABASE_URL, else `sqlite:///effects.db`.
        settings: all settings at once; else the environment's, with the keyword arguments on top.
        engine: the app's own engine instead of one made from the URL.
        job_types: the app's own, beside those that installed packages offer.
        schedules: the app's own; `effects init` registers them.
        alerts: what to watch, and which job says so. With any, the schedule `effects.alerts` checks them every minute.
        **options: single settings, such as `schema="jobs"` (see Settings), those of installed packages too:
            `templates="emails"`. With `settings`, the environment is not read for those either.

    Raises:
        ConfigurationError: a setting or a job type is wrong; names it.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        settings: Settings | None = None,
        engine: Engine | None = None,
        job_types: Iterable[JobType[Any]] = (),
        schedules: Iterable[Schedule] = (),
        alerts: Iterable[Alert] = (),
        **options: Any,
    ) -> None:
        own, others = split_options(options)
        self.settings = settings or Settings.from_environment(os.environ, database_url=database_url, **own)
        self.packages = package_settings({} if settings is not None else os.environ, others)
        self.keys = KeyRing(self.settings.keys)
        self.engine = engine or create_engine(self.settings.database_url)
        self.store = Store(
            self.engine,
            schema=self.settings.schema,
            builders=list(installed_tables()),
            autocommit=autocommit_twin(self.engine) if engine is None else None,
        )
        self.hints = Hints(self.store)
        self._adopted: list[Engine] = []
        self.job_types = Registry()
        self.schedules: dict[str, Schedule] = {}
        self._built_in: list[Schedule] = []
        self.add(Prune(self), *installed_job_types(self), *job_types)
        self.add_schedules(*schedules)
        self.alerts: list[Alert] = []
        self.add_alerts(*alerts)

    @cached_property
    def storage(self) -> Storage:
        """Where files are kept (EFFECTS_STORAGE_URL), opened when first asked for.

        Raises:
            ConfigurationError: it is object storage, and the extra `effects[s3]` is not installed.
        """
        return open_storage(self.settings.storage_url)

    def add(self, *job_types: JobType[Any]) -> None:
        """Register further job types, and the schedules that come with them.

        Raises:
            ConfigurationError: a declaration is wrong, or its name is taken.
        """
        for job_type in job_types:
            self.job_types.add(job_type)
            if job_type.schedule is not None:
                self.add_schedules(job_type.schedule)
                self._built_in.append(job_type.schedule)

    def add_schedules(self, *schedules: Schedule) -> None:
        """Declare further schedules; `effects init` registers them in the database.

        One of a built-in schedule's name (`effects.prune`) takes its place.

        Raises:
            ConfigurationError: a job type is not registered, a payload does not fit it, or a name is taken.
        """
        for schedule in schedules:
            schedule.check(self.job_types)
            known = self.schedules.get(schedule.name)
            if known is not None and known not in self._built_in:
                raise ConfigurationError(f"schedule {schedule.name!r} is declared twice")
            self.schedules[schedule.name] = schedule

    def add_alerts(self, *alerts: Alert) -> None:
        """Declare further alerts.

        Raises:
            ConfigurationError: a job type is not registered, a payload does not fit it, or a name is taken.
        """
        for alert in alerts:
            alert.check(self.job_types)
            if any(known.name == alert.name for known in self.alerts):
                raise ConfigurationError(f"alert {alert.name!r} is declared twice")
            self.alerts.append(alert)
        if self.alerts and ALERTS_SCHEDULE.name not in self.schedules:
            self.add_schedules(ALERTS_SCHEDULE)

    @property
    def ledgers(self) -> Mapping[str, Ledger]:
        """Job type → the ledger that records its effects."""
        return {job_type.name: job_type.ledger or CORE_LEDGER for job_type in self.job_types}

    @contextmanager
    def writing(self, session: AnySession | None, queues: Iterable[str] = ()) -> Iterator[Connection]:
        """The caller's connection, or a transaction of our own where the caller has none.

        Never commits the caller's. Workers of `queues` are hinted once it is committed.

        Raises:
            EnqueueError: `session` is nothing that we can write with; says what to pass.
            SchemaMismatch: the database has no tables of effects.
        """
        with _schema_errors():
            if session is None:
                with self.store.begin() as connection:
                    yield connection
                    point("enqueue.before_commit")
                point("enqueue.committed")
                self.hints.send(queues)
                return
            connection = self._connection_of(session)
            yield connection
            if isinstance(session, Session):
                self.hints.after_commit(session, queues)

    def _connection_of(self, session: AnySession) -> Connection:
        if isinstance(session, Session):
            connection = session.connection()
        elif isinstance(session, Connection):
            connection = session
        else:
            raise EnqueueError(
                f"session is a {type(session).__name__}; pass a SQLAlchemy Session or Connection (in async code: "
                "await session.run_sync(lambda s: enqueue(…, session=s)))"
            )
        if connection.dialect.name != self.engine.dialect.name:
            raise EnqueueError(
                f"session speaks to {connection.dialect.name} and effects is set up for {self.engine.dialect.name}"
            )
        return connection

    def adopt(self, engine: Engine) -> Engine:
        """Close this engine's connections in `dispose` too: a package made it for this Effects."""
        self._adopted.append(engine)
        return engine

    def dispose(self) -> None:
        """Send waiting hints and close the connections."""
        self.hints.close()
        self.store.dispose()
        for engine in self._adopted:
            engine.dispose()

    def __repr__(self) -> str:
        return f"Effects({self.settings!r}, job_types={self.job_types.names()!r})"


@contextmanager
def _schema_errors() -> Iterator[None]:
    """A missing table is the operator's to mend, and the error says how."""
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        said = str(error.orig)
        tables = ("no such table: effects_", "no such table: sqlite_sequence")  # the latter where there are none
        if getattr(error.orig, "sqlstate", None) == "42P01" or any(said.startswith(name) for name in tables):
            raise SchemaMismatch("the database has no tables of effects: run `effects init`") from error
        raise


def installed_tables() -> Sequence[TableBuilder]:
    """The tables of installed packages, from the entry points `effects.tables`."""
    entries = sorted(entry_points(group="effects.tables"), key=lambda entry: entry.name)
    builders: list[Callable[..., Any]] = [entry.load() for entry in entries]
    return builders


_default: Effects | None = None
_default_lock = threading.Lock()


def default() -> Effects:
    """The process's Effects: the one given to `set_default`, else one built from the environment now."""
    global _default  # noqa: PLW0603 - the one global there is
    with _default_lock:
        if _default is None:
            _default = Effects()
        return _default


def set_default(effects: Effects | None) -> None:
    """Make this the process's Effects; None forgets it."""
    replace_default(effects)


def replace_default(effects: Effects | None) -> Effects | None:
    """`set_default`, and what was the default before; None if there was none."""
    global _default
    with _default_lock:
        before, _default = _default, effects
        return before
