"""The composition root: settings, engine, tables, job types, keys, joined once and checked when made."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from effects.app.command_line import command_line
from effects.app.hooks import Hook, HookName, Hooks
from effects.app.job_function import JobDecorator, JobFunction, ResultDecorator
from effects.app.packages import package_settings, split_options
from effects.errors import ConfigurationError, StoreRejected
from effects.keys.encryption import KeyRing
from effects.kit.arguments import called, each_of, instance_of, listed, optional, queue_name, require, shown
from effects.kit.crashpoints import point
from effects.kit.files import Storage, open_storage
from effects.kit.importing import entry_points, refuse_while_importing
from effects.model.alerts import ALERTS_SCHEDULE, Alert
from effects.model.function_type import FunctionJobType, JobPolicies, Release, local_names
from effects.model.job import DEFAULT_QUEUE, QUARANTINE_QUEUE
from effects.model.job_type import JobType, ResultPolicy
from effects.model.ledger import Ledger
from effects.model.registry import Registry, installed_job_types
from effects.model.schedules import Schedule
from effects.model.settlement import Telemetry
from effects.settings import EffectsOptions, Settings
from effects.store.audit_log import AuditAction, note
from effects.store.db.engine import autocommit_engine, close_for_good, create_engine
from effects.store.db.location import TableBuilder
from effects.store.db.store import Store, begin_to_write
from effects.store.limits.holds import KnownQueues
from effects.store.notifier import Notifier
from effects.store.queue.table_ledger import CORE_LEDGER
from effects.store.sessions.asynchronous import ALONE
from effects.store.sessions.databases import (
    CallersDatabase,
    callers_engine,
    can_carry,
    refuse_other_database,
    register,
    url_of,
)
from effects.store.sessions.forgotten import check_not_forgotten, watch
from effects.store.sessions.joining import AnySession, hint_after_commit, joined, refuse_missing_tables

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # greenlet may not be installed

    from effects.store.sessions.asynchronous import AnyAsyncSession

State = TypeVar("State")
_MIGRATE = AuditAction("database", "migrate")


class Effects:
    """One database and the job types that it serves.

    Args:
        database_url: SQLite or PostgreSQL; default EFFECTS_DATABASE_URL, else `sqlite:///effects.db`.
        settings: all settings at once; else the environment's, with the keyword arguments on top.
        engine: the app's own engine instead of one made from the URL. EFFECTS_DATABASE_URL may not name another
            database beside it. Of an asynchronous one, or one of another driver
            than psycopg and sqlite3, only the URL is used, and sessions on it are known by it.
        job_types: the app's own, in addition to those of installed packages.
        schedules: the app's own; `effects init` registers them.
        alerts: rules, each with the job to notify. The schedule `effects.alerts` checks them each minute.
        current: gives the session of the transaction that a call without `session=` joins, such as Flask's `db.session`
            or the `get` of a ContextVar. None means no transaction, and so do LookupError and (as Flask raises it
            without an app's context) RuntimeError.
        **options: single settings, such as `schema="jobs"`, those of installed packages too: `templates="emails"`.
            `EffectsOptions` lists them. With `settings`, the environment is not read for those either. A list of
            `queues` names further ones beside EFFECTS_QUEUES, that calls may put jobs into and workers serve.

    Raises:
        ConfigurationError: a setting or a job type is wrong; names it.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        settings: Settings | None = None,
        engine: Engine | AsyncEngine | None = None,
        job_types: Iterable[JobType[Any]] = (),
        schedules: Iterable[Schedule] = (),
        alerts: Iterable[Alert] = (),
        current: Callable[[], AnySession | AnyAsyncSession | None] | None = None,
        **options: Unpack[EffectsOptions],
    ) -> None:
        own, others = split_options(options)
        is_setting = isinstance(own.get("queues"), str | None)
        self._named_queues = () if is_setting else _queue_names(own.pop("queues"))
        require("settings", settings, optional(instance_of(Settings)), ConfigurationError)
        callers = None if engine is None else callers_engine(engine)
        if callers is not None and database_url is None:
            refuse_other_database(callers, os.environ.get("EFFECTS_DATABASE_URL"))
            database_url = url_of(callers)
        self.settings = settings or Settings.from_environment(os.environ, database_url=database_url, **own)
        require("current", current, optional(called), ConfigurationError)
        self._current = current
        self.packages = package_settings({} if settings is not None else os.environ, others)
        self.keys = KeyRing(self.settings.keys)
        carrying = callers if callers is not None and can_carry(callers) else None
        self.engine = carrying or create_engine(database_url or self.settings.database_url)
        self.store = Store(
            self.engine,
            schema=self.settings.schema,
            builders=list(installed_tables()),
            autocommit=autocommit_engine(self.engine) if carrying is None else None,
        )
        self.store.init_command = partial(_init_command, weakref.ref(self))
        self.database = CallersDatabase(self.store, callers or self.engine)
        watch(self.database.engine)
        self.notifier = Notifier(self.store)
        self.known_queues = KnownQueues(self.store, lambda: self.queues, self.settings.lease_seconds)
        self.disposed = False  # threads of packages end
        self.hooks = Hooks()
        self.telemetry: Telemetry | None = None  # see `effects.contrib.opentelemetry`
        self._adopted: list[Engine] = []
        self._states: dict[Callable[[Effects], Any], Any] = {}
        self._states_lock = threading.RLock()  # making one state may ask for another
        self.job_types = Registry()
        self.schedules: dict[str, Schedule] = {}
        self._built_in: list[Schedule] = []
        require("job_types", job_types, listed, ConfigurationError)
        self.add(*installed_job_types(self), *job_types)
        self.add_schedules(*each_of(schedules, Schedule, "schedules", ConfigurationError))
        self.alerts: list[Alert] = []
        self.add_alerts(*each_of(alerts, Alert, "alerts", ConfigurationError))
        register(self)

    @property
    def command_line(self) -> str:
        """`effects`, with the options that a shell needs to work on this database; never with a password."""
        return command_line(self, self.engine.url, self.store.schema)

    def create_tables(self, *, actor: str = "app", reason: str | None = None) -> list[str]:
        """Create the tables, or migrate them to this version; `effects init` registers the schedules, too.

        Args:
            actor, reason: who and why, for the audit log, where something was applied.

        Returns:
            The revisions that were applied, oldest first; empty if the database was up to date, or is newer than this
            version and says that it works with it.

        Raises:
            SchemaMismatch: a newer version migrated it, and it no longer works with this one; or a worker that runs now
                is too old for what a revision takes away.
            StoreConflict: a transaction held a lock that a revision needs for five minutes; names it.
        """
        from effects.store.migrations import migrate  # noqa: PLC0415 - Alembic takes a while to import

        def _record(connection: Connection, applied: list[str]) -> None:
            note(self.store, connection, _MIGRATE, "tables", actor=actor, reason=reason, detail={"applied": applied})

        return migrate.init(self.store, _record)

    @cached_property
    def storage(self) -> Storage:
        """The file storage (EFFECTS_STORAGE_URL), opened on first use.

        Raises:
            ConfigurationError: it is object storage, and the extra `effects-toolkit[s3]` is not installed.
        """
        return open_storage(self.settings.storage_url)

    @overload
    def job(
        self,
        name: str,
        *,
        result: Literal[True, "sealed"],
        release: Release = "before",
        **policies: Unpack[JobPolicies],
    ) -> ResultDecorator: ...

    @overload
    def job(
        self,
        name: str,
        *,
        result: Literal[False] = False,
        release: Release = "before",
        **policies: Unpack[JobPolicies],
    ) -> JobDecorator: ...

    def job(
        self,
        name: str,
        *,
        result: ResultPolicy = False,
        release: Release = "before",
        **policies: Unpack[JobPolicies],
    ) -> JobDecorator | ResultDecorator:
        """Register a function as a job type. Its parameters are the job's arguments, each with its type.

            @app.job("pager.page", on_unknown="hold")
            def page_on_call(attempt: Attempt, team: str, floor: int = 1) -> None: ...

            page_on_call.using(key="incident:7", session=session).enqueue(team="db")

        A first parameter that is annotated `Attempt` gets the attempt, and is no argument.

        Args:
            name: dotted lower-case name, stored in every row.
            result: `True`: what the function returns is kept, as JSON of at most 64 KiB, and `status`, `wait` and
                `effects why` show it; `"sealed"`: under EFFECTS_KEYS. See `JobType.result`. Default: it returns an
                outcome, or None.
            release: `before`: each attempt is recorded as released before the function is called, so that a crash in it
                leaves the effect unknown. `manual`: the function calls `attempt.release()` itself, or awaits
                `attempt.release_async()`.
            **policies: of the job type, such as `retry=` and `queue=`; see `JobType`.

        Raises:
            ConfigurationError: the function cannot be a job (a generator, a method, a parameter without a type), a
                policy is wrong, or the name is taken; says where.
        """
        if not isinstance(name, str):
            raise ConfigurationError("@app.job needs a name: write @app.job('pager.page')")
        names = local_names(1)

        def register(function: Callable[..., Any]) -> JobFunction[..., ..., Any]:
            job_type = FunctionJobType(name, function, release=release, result=result, policies=policies, names=names)
            self.add(job_type)
            return JobFunction(self, job_type, function)

        return cast("JobDecorator | ResultDecorator", register)

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
            self.job_types.check_schedule(schedule)
            registered = self.schedules.get(schedule.name)
            if registered is not None and registered not in self._built_in:
                raise ConfigurationError(f"schedule {schedule.name!r} is declared twice")
            self.schedules[schedule.name] = schedule

    def add_alerts(self, *alerts: Alert) -> None:
        """Declare further alerts.

        Raises:
            ConfigurationError: a job type is not registered, a payload does not fit it, or a name is taken.
        """
        for alert in alerts:
            alert.check(self.job_types)
            if any(registered.name == alert.name for registered in self.alerts):
                raise ConfigurationError(f"alert {alert.name!r} is declared twice")
            self.alerts.append(alert)
        if self.alerts and ALERTS_SCHEDULE.name not in self.schedules:
            self.add_schedules(ALERTS_SCHEDULE)

    def on(self, event: HookName, hook: Hook) -> None:
        """Call a function in the worker's process once it has recorded such an event; see `effects.app.hooks`.

            app.on("dead", lambda event: pager.notify(event.job_type, event.code))

        Args:
            event: `dead`, a job ended dead; `unknown`, an attempt's effect may have happened; `paused`, its answer
                paused its limit key. A held job is both `unknown` and `dead`.
            hook: gets a `HookEvent`, on its own thread. What it raises is logged, and holds up no job. A crash, or
                more than 1,000 waiting events, lose calls: what must arrive is an `Alert`.

        Raises:
            ConfigurationError: there is no such event, or `hook` cannot be called.
        """
        self.hooks.add(event, hook)

    @property
    def ledgers(self) -> Mapping[str, Ledger]:
        """Job type → the ledger that records its effects."""
        return {job_type.name: job_type.ledger or CORE_LEDGER for job_type in self.job_types}

    @property
    def queues(self) -> Sequence[str]:
        """Queues of job types, settings and `Effects(queues=[…])`, whether they hold jobs or not."""
        of_types = (job_type.queue for job_type in self.job_types)
        named = (*self._named_queues, *self.settings.queue_threads())
        return tuple(dict.fromkeys((DEFAULT_QUEUE, *of_types, *named, QUARANTINE_QUEUE)))

    @contextmanager
    def writing(self, session: AnySession | None, queues: Iterable[str] = ()) -> Iterator[Connection]:
        """The connection of the caller's transaction, or of one of our own.

        Never commits the caller's. Workers of `queues` are hinted once it is committed.

        Args:
            session: as the caller gave it; without one, the current one is joined (see `Effects`), if there is one.

        Raises:
            EnqueueError: `session` has an unusable type (the message names the accepted ones) or another database; no
                one serves one of `queues`; or a command is importing the app: each command would write it again.
            SessionForgotten: without a session, inside a transaction of the caller that has written, where
                EFFECTS_SESSIONS is `required`, or the database is SQLite, whose lock the caller holds.
            SchemaMismatch: the database has no tables of effects.
        """
        refuse_while_importing()
        try:
            session = self._joinable() if session is None else session
            if session is None or session is ALONE:
                check_not_forgotten(self.database, "off" if session is ALONE else self.settings.sessions)
                with self.store.begin() as connection:
                    self.known_queues.check(connection, queues)
                    yield connection
                    point("enqueue.before_commit")
                point("enqueue.committed")
                self.notifier.send(queues)
                return
            with joined(session, self.database) as connection:
                begin_to_write(connection)
                self.known_queues.check(connection, queues)
                yield connection
                self._hint(session, connection, queues)
        except (DBAPIError, StoreRejected) as error:
            refuse_missing_tables(error, self.database)
            raise

    def current_session(self) -> Any:
        """The session of the transaction that a call without `session=` joins, or None."""
        try:
            return None if self._current is None else self._current()
        except (LookupError, RuntimeError):
            return None

    def _joinable(self) -> AnySession | None:
        """The current session, for a call that writes."""
        session: AnySession | None = self.current_session()
        return session

    @contextmanager
    def reading(self, session: AnySession | None) -> Iterator[Connection]:
        """The connection of the caller's transaction, to see what it has written; else one of our own.

        Raises:
            EnqueueError, SchemaMismatch: as `writing`.
        """
        session = self.current_session() if session is None else session
        if session is None or session is ALONE:
            with self.store.read() as connection:
                yield connection
            return
        try:
            with joined(session, self.database) as connection:
                yield connection
        except (DBAPIError, StoreRejected) as error:
            refuse_missing_tables(error, self.database)
            raise

    def _hint(self, session: AnySession, connection: Connection, queues: Iterable[str]) -> None:
        if hint_after_commit(self.notifier, session, queues) or not self.settings.notify_in_transaction:
            return
        if (statement := self.notifier.note(queues)) is not None:
            connection.execution_options(no_parameters=True).exec_driver_sql(statement)

    def own_engine(self, engine: Engine) -> Engine:
        """Close this engine's connections in `dispose` too: a package made it for this Effects."""
        self._adopted.append(engine)
        return engine

    def state(self, make: Callable[[Effects], State]) -> State:
        """Return a package's state for this Effects, created once, on first use, by any thread.

        Args:
            make: usually a class whose constructor takes the Effects: `app.state(PackageState)`. An exception is
                passed on; nothing is stored then, and the next call tries again.
        """
        with self._states_lock:
            if make not in self._states:
                self._states[make] = make(self)
            state: State = self._states[make]
            return state

    def dispose(self) -> None:
        """Send waiting hints and close the connections; one that a thread still uses, when that thread gives it back.

        This Effects still works, but keeps no connection open between two statements.
        """
        self.disposed = True
        self.notifier.close()
        self.store.dispose()
        for engine in self._adopted:
            close_for_good(engine)

    def __repr__(self) -> str:
        return f"Effects({self.settings!r}, job_types={self.job_types.names()!r})"


def _queue_names(queues: Any) -> tuple[str, ...]:
    names = tuple(each_of(queues, str, "queues", ConfigurationError))
    for name in names:
        require(f"queues: {shown(name)}", name, queue_name, ConfigurationError)
    return names


def installed_tables() -> Sequence[TableBuilder]:
    """The tables of installed packages, from the entry points `effects.tables`."""
    return [entry.load() for entry in entry_points("effects.tables")]


def _init_command(reference: weakref.ref[Effects]) -> str:
    app = reference()
    return f"{'effects' if app is None else app.command_line} init"
