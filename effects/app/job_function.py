"""A function that is a job: called as it is, or enqueued for a worker to call it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from effects.errors import EnqueueError
from effects.kit.text.unsafe import nearest
from effects.model.function_type import FunctionJobType
from effects.model.job import Attempt, NewJob, OnConflict, Receipt
from effects.model.outcome import HandlerAnswer
from effects.retry import OnUnknown
from effects.store.enqueue.enqueuing import EnqueuingApp, enqueue_job
from effects.store.sessions.asynchronous import AnyAsyncSession, run_in_async
from effects.store.sessions.joining import AnySession

P = ParamSpec("P")  # the arguments
Call = ParamSpec("Call")  # what the function itself is called with
Answer = TypeVar("Answer", bound=HandlerAnswer)
Result = TypeVar("Result")  # what the function returns, whether it is an outcome or kept
SessionT = TypeVar("SessionT", bound="AnySession | AnyAsyncSession | None")
SessionT_co = TypeVar("SessionT_co", bound="AnySession | AnyAsyncSession | None", covariant=True)


class JobOptions(TypedDict, total=False):
    """The options of one job; see `NewJob` for each."""

    key: str | None
    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay: timedelta | float | None
    expires_at: datetime | None
    group_key: str | None
    limit_key: str | None
    max_attempts: int | None
    trace_context: str | None
    on_unknown: OnUnknown | None
    on_conflict: OnConflict | None


# What others call an option → its name here.
_CALLED = {
    "countdown": "delay", "delay_seconds": "delay", "eta": "run_at", "schedule_at": "run_at", "expires": "expires_at",
    "idempotency_key": "key", "unique_key": "key", "max_retries": "max_attempts", "retries": "max_attempts",
}  # fmt: skip


class JobCall(Generic[P, SessionT_co]):
    """A job function with the options of one job: what `JobFunction.using` returns."""

    def __init__(self, app: EnqueuingApp, job_type: FunctionJobType, session: SessionT_co, options: JobOptions) -> None:
        self._app, self._job_type = app, job_type
        self._session, self._options = session, options

    def enqueue(self: JobCall[P, AnySession | None], *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Write one job in the caller's transaction, as `effects.enqueue` does, of the Effects of the decorator.

        Its arguments are those of the function, but for its Attempt.

        Raises:
            EnqueueError: as `effects.enqueue`.
        """
        return enqueue_job(self._app, self._new_job(args, kwargs), self._session)

    async def enqueue_async(self: JobCall[P, AnyAsyncSession | None], *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Write one job in the caller's asynchronous transaction: `enqueue`, awaited.

        Without a session: in our own transaction, off the event loop's thread; cancelled after it has begun, it may
        have been committed.

        Raises:
            EnqueueError: as `enqueue`.
        """
        app, job = self._app, self._new_job(args, kwargs)

        def enqueue(session: AnySession | None = None) -> Receipt:
            return enqueue_job(app, job, session)

        session = app.current_session() if self._session is None else self._session
        return await run_in_async(enqueue, session=session)

    def job(self: JobCall[P, None], *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Make the job, and write nothing: for `enqueue_many`, which takes the session.

        Raises:
            PayloadInvalid: the function could not be called with these arguments.
        """
        if self._session is not None:
            raise EnqueueError(f"{self._job_type.name}: a session writes; give it to enqueue_many, not to job")
        return self._new_job(args, kwargs)

    def _new_job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        options = ", ".join(
            f"{name}=…" for name in kwargs if name in _OPTIONS and name not in self._job_type.argument_names
        )
        if options:
            raise EnqueueError(f"{self._job_type.name}: write .using({options}).enqueue(…): it is no argument")
        payload = self._job_type.arguments(args, kwargs)
        return NewJob(job_type=self._job_type.name, payload=payload, **self._options)


_OPTIONS = ("session", *JobOptions.__annotations__)


class JobFunction(Generic[P, Call, Result]):
    """What `@app.job` makes of a function.

    Calling it calls the function, here and now, as tests do (an async one is awaited). `enqueue` writes a job; a worker
    calls the function.
    """

    def __init__(self, app: EnqueuingApp, job_type: FunctionJobType, function: Callable[Call, Result]) -> None:
        self._app = app
        self._function = function
        self.job_type = job_type
        update_wrapper(self, function)

    @property
    def name(self) -> str:
        """The name of the job type."""
        return self.job_type.name

    def __call__(self, *args: Call.args, **kwargs: Call.kwargs) -> Result:
        return self._function(*args, **kwargs)

    @overload
    def using(self, *, session: SessionT, **options: Unpack[JobOptions]) -> JobCall[P, SessionT]: ...

    @overload
    def using(self, **options: Unpack[JobOptions]) -> JobCall[P, None]: ...

    def using(self, *, session: Any = None, **options: Unpack[JobOptions]) -> JobCall[P, Any]:
        """Give what is not an argument: `label.using(session=session, key="label:3", delay=60).enqueue(order=3)`.

        Args:
            session: the caller's transaction, never committed by us. Without one, our own transaction. For
                `enqueue_async` an AsyncSession or AsyncConnection.
            **options: see `NewJob`.

        Raises:
            EnqueueError: there is no such option.
        """
        for name in options:
            if name not in JobOptions.__annotations__:
                raise EnqueueError(f"{self.name}: {self._why_no_option(name)}")
        return JobCall(self._app, self.job_type, session, options)

    def _why_no_option(self, name: str) -> str:
        if name in self.job_type.argument_names:
            return f"{name} is an argument; write .using(…).enqueue({name}=…)"
        cure = f"; give {_CALLED[name]}=" if name in _CALLED else nearest(name, _OPTIONS)
        return f"there is no option {name!r}{cure} (known: {', '.join(_OPTIONS)})"

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Write one job; see `JobCall.enqueue`. What is not an argument goes before it: see `using`."""
        return self.using().enqueue(*args, **kwargs)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Write one job: `enqueue`, awaited; see `JobCall.enqueue_async`."""
        return await self.using().enqueue_async(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Make the job, and write nothing; see `JobCall.job`."""
        return self.using().job(*args, **kwargs)

    def __get__(self, instance: object, owner: Any = None) -> JobFunction[P, Call, Result]:
        """Stay the same as an attribute of a class, where a function would become a method."""
        return self

    def __repr__(self) -> str:
        return f"<job {self.name!r}: {self._function.__module__}.{self._function.__qualname__}>"


class JobDecorator(Protocol):
    """What `app.job(…)` returns: it makes a job function of a function, whose first parameter may be an Attempt."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Attempt, P], Answer], /
    ) -> JobFunction[P, Concatenate[Attempt, P], Answer]: ...

    @overload
    def __call__(self, function: Callable[P, Answer], /) -> JobFunction[P, P, Answer]: ...


class ResultDecorator(Protocol):
    """`JobDecorator` of functions whose return value is kept: it may be anything."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Attempt, P], Result], /
    ) -> JobFunction[P, Concatenate[Attempt, P], Result]: ...

    @overload
    def __call__(self, function: Callable[P, Result], /) -> JobFunction[P, P, Result]: ...
