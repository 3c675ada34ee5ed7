"""The toolkit itself, and how it crashes workers: see `effects.testing`."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from sqlalchemy import MetaData

from effects.app.default import default, replace_default
from effects.app.effects import Effects, installed_tables
from effects.errors import ConfigurationError
from effects.keys.sealing import open_payload
from effects.kit import crashpoints
from effects.kit.importing import entry_points
from effects.kit.network import replace_network_rule
from effects.kit.text.redact import HIDDEN
from effects.kit.text.unsafe import nearest
from effects.kit.text.wording import described
from effects.model.job_type import JobType
from effects.model.outcome import Outcome
from effects.store import schedules
from effects.store.queue.job_rows import dead_letters, payloads
from effects.store.sessions.joining import AnySession
from effects.testing.databases import (
    SharedTransaction,
    check_name,
    choose_database,
    empty_tables,
    redirected,
    restart_schedules,
)
from effects.testing.loops import ToolkitRuntime
from effects.testing.recorder import Captured, Recorder
from effects.worker import DrainResult, Worker


def check_point(name: str) -> None:
    """
    Raises:
        ValueError: no crash point has this name; lists those there are.
    """
    if name not in crashpoints.POINTS:
        raise ValueError(
            f"no crash point {name!r} is declared{nearest(name, crashpoints.POINTS)} (there are "
            f"{', '.join(sorted(crashpoints.POINTS))}; an app declares its own by effects.crashpoints.declare)"
        )


def crash_worker(app: Effects, point: str, nth: int, max_seconds: float, runtime: ToolkitRuntime) -> None:
    """Let a forked worker do what is due, and be killed (SIGKILL) where it passes `point` for the n-th time.

    Raises:
        AssertionError: it ended without passing it.
    """
    runtime.before_fork()
    app.engine.dispose()  # a SQLite connection must not be carried over a fork
    with warnings.catch_warnings():
        # Python 3.12 warns of threads. The child starts its own and takes no lock of ours.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _work(app, point, nth, max_seconds, runtime)
    _, status = os.waitpid(child, 0)
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise AssertionError(f"the worker ended without passing {point} {f'{nth} times' if nth > 1 else ''}".strip())


def _work(app: Effects, point: str, nth: int, max_seconds: float, runtime: ToolkitRuntime) -> None:
    """The child's whole life; it never returns."""
    try:
        crashpoints.install(crashpoints.plan(point, nth=nth))
        Worker(app, runtime=runtime).drain(max_seconds)
    finally:
        os._exit(0)


_DRAIN_SECONDS = 30.0
_UPKEEP = "effects."
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that was enqueued, live or ended. `payload` is typed, its sensitive fields in clear."""

    job_id: int
    job_type: str
    status: str
    key: str | None
    queue: str
    payload: Any


class Toolkit:
    """An app's Effects on a test's database, as a context manager; afterwards everything is as it was before.

    Whoever holds the Effects, or its engine, uses that database meanwhile: calls with `effects=app`, sessions made of
    `app.engine` or bound to it long before, and calls that name no Effects, because it is the process's default, too.
    Files go to a temporary folder. Job types that send something (mail, webhooks) are captured: their jobs are
    recorded and settled as done; no transport connects to anywhere. The app's own job types are carried out. Where
    the app has no keys, it has fresh ones. Its schedules are registered, `effects.prune` and `effects.alerts` excepted:
    `move_clock` makes them due, and the time that the test takes does not.

    Args:
        app: the Effects of the app. Default: the process's own.
        database: where the test's rows go. Default: a temporary SQLite file. A URL of the test's own database, or `own`
            for the one that the app is set up with: its name must contain `test`, because the rows of effects in it are
            deleted. Its tables are created if they are missing.
        connection: instead of a database, a connection to one (PostgreSQL, psycopg 3; SQLAlchemy's, Django's or the
            driver's) in a transaction that the test rolls back: the app's transactions are savepoints of it, and
            nothing is deleted. The database's name must contain `test` too: jobs that are in it are run. There is no
            `crash_at` then.
        metadata: the app's own tables, to be created there: `Base.metadata`.
        allow_loopback: whether transports may connect to this machine, for a server of the test's own.

    Raises:
        ConfigurationError: the database is not called a test's, or the connection is no usable one.
    """

    def __init__(
        self,
        app: Effects | None = None,
        *,
        database: str | None = None,
        connection: AnySession | None = None,
        metadata: MetaData | None = None,
        allow_loopback: bool = False,
    ) -> None:
        if app is not None and not isinstance(app, Effects):
            raise ConfigurationError(f"app is {described(app)}; give the Effects of the app")
        if database is not None and connection is not None:
            raise ConfigurationError("database and connection are given; give one of the two")
        self.app = app or default()
        self._database = database
        self._outer = connection
        self._shared: SharedTransaction | None = None
        self._metadata = metadata
        self._allow_loopback = allow_loopback
        self._recorder = Recorder(self.app.job_types)
        self._runtime = ToolkitRuntime()
        self._stack = ExitStack()
        self._clock_moved = False  # since the last drain

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="effects-toolkit-")))
            stack.enter_context(self._redirected(folder))
            stack.callback(replace_network_rule, replace_network_rule(self._admits))
            stack.callback(replace_default, replace_default(self.app))
            stack.callback(self._prepare(self.app))
            self._register_schedules()
            if self._metadata is not None:
                self._metadata.create_all(self.app.engine)
            stack.callback(self._recorder.restore)
            self._recorder.start()
            stack.enter_context(self._runtime)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _prepare(self, app: Effects) -> Callable[[], object]:
        """Make the database ready for a test, and return what undoes it."""
        if self._shared is not None:
            app.create_tables()
        elif self._database is not None:
            empty_tables(app.store)
        return lambda: None

    def _register_schedules(self) -> None:
        """As `effects init` does. Upkeep's own (`effects.prune`) stay out: a test counts the jobs of the app."""
        declared = [schedule for schedule in self.app.schedules.values() if not schedule.name.startswith(_UPKEEP)]
        schedules.register(self.app.store, declared)
        restart_schedules(self.app.store)

    def _redirected(self, folder: Path) -> AbstractContextManager[None]:
        builders = tuple(installed_tables())
        if self._outer is None:
            url = choose_database(self._database, self.app.engine.url, folder, builders)
            return redirected(self.app, url, folder, builders)
        self._shared = SharedTransaction(self._outer)
        check_name(self._shared.url.database)
        return redirected(self.app, self._shared.url, folder, builders, self._shared.connect)

    def _admits(self, host: str) -> bool:
        return self._allow_loopback and host in _LOOPBACK

    # -- job types ---------------------------------------------------------------------------------------

    def add(self, *job_types: JobType[Any]) -> None:
        """Register job types for this test; one of a known name takes its place, and is carried out.

        Raises:
            ConfigurationError: a declaration is wrong.
        """
        for job_type in job_types:
            self._recorder.add(job_type)

    def capture(self, job_type: str, outcome: Outcome | None = None) -> Captured:
        """Carry out this type's jobs no more: record them, and settle them with `outcome` (default `Done()`).

        Raises:
            UnknownJobType: no job type has this name.
        """
        return self._recorder.capture(job_type, outcome)

    def captured(self, job_type: str) -> Captured:
        """The attempts of a captured type so far.

        Raises:
            KeyError: this type is carried out, not captured.
        """
        return self._recorder.captured[job_type]

    def __getattr__(self, name: str) -> Any:
        """What an installed package shows to tests, by the name of its entry point in `effects.testing`."""
        for entry in entry_points("effects.testing"):
            if entry.name == name:
                return entry.load()(self)
        raise AttributeError(name)

    # -- what was enqueued -------------------------------------------------------------------------------

    @property
    def jobs(self) -> list[Enqueued]:
        """Every job, live or ended, oldest first. The payload of a type that the app does not know is as stored."""
        return [self._enqueued(row) for row in payloads(self.app.store)]

    def _enqueued(self, row: Any) -> Enqueued:
        payload: Any = msgspec.json.decode(row.payload)
        if row.job_type in self.app.job_types:
            registered = self.app.job_types.get(row.job_type)
            payload = registered.decode(open_payload(self.app.keys, row.job_type, row.payload))
        return Enqueued(row.id, row.job_type, row.status, row.idempotency_key, row.queue, payload)

    def enqueued(self, job_type: str) -> list[Enqueued]:
        """The jobs of a type, live and ended, oldest first.

        Raises:
            UnknownJobType: no job type has this name.
        """
        self.app.job_types.get(job_type)
        return [job for job in self.jobs if job.job_type == job_type]

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
            expected = (
                f"{'at least one' if times is None else times} {job_type}{self._conditions(job_type, key, payload)}"
            )
            there = "".join(f"\n  {job!r}" for job in jobs) or " none of this type"
            raise AssertionError(f"expected {expected}; there are:{there}")
        return matching

    def _conditions(self, job_type: str, key: str | None, payload: Mapping[str, Any]) -> str:
        """` with team='db' and key 'k'`: what a job had to have; sensitive fields hidden."""
        hidden = self.app.job_types.get(job_type).sensitive
        fields = [f"{name}={HIDDEN if name in hidden else repr(value)}" for name, value in payload.items()]
        conditions = [*([", ".join(fields)] if fields else []), *([f"key {key!r}"] if key is not None else [])]
        return f" with {' and '.join(conditions)}" if conditions else ""

    # -- time and work -----------------------------------------------------------------------------------

    def drain(
        self, max_seconds: float = _DRAIN_SECONDS, *, raises: bool = True, expect_dead: str | Collection[str] = ()
    ) -> DrainResult:
        """Let a worker do everything that is due, in this process. Retries due later wait: see `move_clock`.

        Args:
            raises: whether an exception of a handler, which a worker would record, is raised here at the end, and a
                dead letter is an error.
            expect_dead: job types of which a job is to end dead (refused, out of attempts, or held as unknown) in this
                drain. What was captured with an outcome of the test's own may.

        Raises:
            Exception: the first that a handler raised, with a note that names its job.
            AssertionError: something was still due after `max_seconds`; a job ended dead that was not expected to; or
                none of an expected type did.
        """
        if self._shared is not None and self._shared.is_open:
            raise AssertionError("a session of the app is in a transaction: commit or close it before the drain")
        self._recorder.start()
        errors = self._recorder.errors
        errors.clear()
        self._skip_slots_of_meanwhile()
        self._clock_moved = False
        before = {letter.id for letter in dead_letters(self.app.store)}
        result = Worker(self.app, runtime=self._runtime).drain(max_seconds)
        if raises and errors:
            if len(errors) > 1:
                errors[0].add_note(f"and {len(errors) - 1} more of this drain; see drain(raises=False)")
            raise errors[0]
        if raises and not result.finished:
            raise AssertionError(f"jobs were still due after {max_seconds:g} s")
        if raises:
            self._check_dead(
                [letter for letter in dead_letters(self.app.store) if letter.id not in before], expect_dead
            )
        return result

    def _check_dead(self, letters: Sequence[Any], expect_dead: str | Collection[str]) -> None:
        """Fail for a dead letter that the test did not expect, and for one that it did and that is not there."""
        expected = {expect_dead} if isinstance(expect_dead, str) else set(expect_dead)
        surprises = [letter for letter in letters if letter.job_type not in expected | self._recorder.answered]
        if surprises:
            lines = [f"job {each.id} {each.job_type} ({each.error_code}): {each.last_error}" for each in surprises]
            types = ", ".join(repr(name) for name in sorted({letter.job_type for letter in surprises}))
            jobs = "\n  ".join(lines)
            raise AssertionError(f"ended dead:\n  {jobs}\nIf the test is about that: drain(expect_dead=[{types}])")
        if missing := expected - {letter.job_type for letter in letters}:
            raise AssertionError(f"expected to end dead, and no job did: {', '.join(sorted(missing))}")

    async def drain_async(
        self, max_seconds: float = _DRAIN_SECONDS, *, raises: bool = True, expect_dead: str | Collection[str] = ()
    ) -> DrainResult:
        """`drain` in a thread, so that the event loop, which the app under test may need, goes on meanwhile.

        Raises:
            As `drain`.
        """
        return await asyncio.to_thread(self.drain, max_seconds, raises=raises, expect_dead=expect_dead)

    def move_clock(self, seconds: float) -> None:
        """Move the database's clock as effects sees it; every time in the queue is by that clock."""
        self._skip_slots_of_meanwhile()
        self._clock_moved = True
        self.app.store.shift_clock(seconds)

    def _skip_slots_of_meanwhile(self) -> None:
        """A test at the full hour has no more jobs than one a minute before: only a moved clock makes slots due."""
        if not self._clock_moved:
            restart_schedules(self.app.store)

    def crash_at(self, point: str, *, nth: int = 1) -> None:
        """Let a worker be killed (SIGKILL) where it passes `point`, then move the clock by a lease: its jobs are lost.

        The worker is a forked child: what it wrote to the database stays, what it held in memory is gone, this
        test's lists included. The next `drain` rescues what it left. At `perform.before` the handler has not begun, at
        `perform.after` it has returned and nothing is recorded; `effects.kit.crashpoints.POINTS` has all. An app adds
        its own by `declare({"invoice.charged": "…"})` and passes them by `point("invoice.charged")`. POSIX only.

        Raises:
            ValueError: no such point is declared, or the toolkit has a `connection`.
            AssertionError: the worker ended without passing it.
        """
        if self._shared is not None:
            raise ValueError(
                "a worker that is killed would take the test's connection with it: give `database` instead"
            )
        check_point(point)
        crash_worker(self.app, point, nth, _DRAIN_SECONDS, self._runtime)
        self.move_clock(self.app.settings.lease_seconds + 1)


def _fits(payload: Any, expected: Mapping[str, Any]) -> bool:
    facts = msgspec.to_builtins(payload, str_keys=True)
    plain = msgspec.to_builtins(dict(expected), str_keys=True)
    return all(name in facts and facts[name] == value for name, value in plain.items())
