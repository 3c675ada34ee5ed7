"""A function that is a job: called as it is, or enqueued for a worker to call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack

from effects.errors import EnqueueError
from effects.kit.text.unsafe import nearest
from effects.model.function_type import FunctionJobType
from effects.model.job import NewJob, Receipt
from effects.model.outcome import HandlerAnswer
from effects.retry import OnUnknown
from effects.store.enqueue.enqueuing import EnqueuingApp, enqueue_jobs
from effects.store.sessions.asynchronous import AnyAsyncSession, in_async
from effects.store.sessions.joining import AnySession

P = TypeVar("P")
Rest = ParamSpec("Rest")
Answer = TypeVar("Answer", bound=HandlerAnswer)


class JobOptions(TypedDict, total=False):
    """The options of one job, or of all jobs of a call; see `NewJob` for each."""

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


# What others call an option → its name here.
_CALLED = {
    "countdown": "delay", "delay_seconds": "delay", "eta": "run_at", "schedule_at": "run_at", "expires": "expires_at",
    "idempotency_key": "key", "unique_key": "key", "max_retries": "max_attempts", "retries": "max_attempts",
}  # fmt: skip


class JobFunction(Generic[P, Rest, Answer]):
    """What `@app.job` makes of a function.

    Calling it calls the function, here and now, as tests do (an async one is awaited). `enqueue` writes a job; a worker
    calls the function.
    """

    def __init__(
        self, app: EnqueuingApp, job_type: FunctionJobType[P], function: Callable[Concatenate[P, Rest], Answer]
    ) -> None:
        self._app = app
        self._function = function
        self.job_type = job_type
        update_wrapper(self, function)

    @property
    def name(self) -> str:
        """The name of the job type."""
        return self.job_type.name

    def __call__(self, payload: P, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Answer:
        return self._function(payload, *args, **kwargs)

    def enqueue(
        self, payload: P, *, key: str | None = None, session: AnySession | None = None, **options: Unpack[JobOptions]
    ) -> Receipt:
        """Write one job in the caller's transaction, as `effects.enqueue` does, of the Effects of the decorator.

        Args:
            payload: of the class that the function's first parameter is annotated with.
            key: idempotency key; the same key again gives the first job's receipt.
            session: the caller's transaction, never committed by us. Without one, our own transaction.
            **options: such as `delay=60`; see `NewJob`.

        Raises:
            EnqueueError: as `effects.enqueue`.
        """
        return enqueue_jobs(self._app, [self._job(payload, key, options)], session)[0]

    def enqueue_many(
        self,
        payloads: Iterable[P],
        *,
        key: Callable[[P], str] | None = None,
        session: AnySession | None = None,
        **options: Unpack[JobOptions],
    ) -> list[Receipt]:
        """Write one job for each payload, 1,000 a statement. All are checked before the first is written.

        Args:
            payloads: as of `enqueue`.
            key: gives the idempotency key of a payload: `key=lambda page: f"incident:{page.incident}"`.
            session: as of `enqueue`.
            **options: of all of them.

        Raises:
            EnqueueError: as `effects.enqueue_many`; none of them is written.
        """
        jobs = [self._job(payload, None if key is None else key(payload), options) for payload in payloads]
        return enqueue_jobs(self._app, jobs, session)

    def _job(self, payload: P, key: str | None, options: JobOptions) -> NewJob:
        try:
            return NewJob(job_type=self.name, payload=payload, key=key, **options)
        except TypeError:
            name = next(name for name in options if name not in JobOptions.__annotations__)
            cure = f"; give {_CALLED[name]}=" if name in _CALLED else nearest(name, JobOptions.__annotations__)
            valid = ", ".join(("key", "session", *JobOptions.__annotations__))
            raise EnqueueError(f"{self.name}: enqueue has no option {name!r}{cure} (known: {valid})") from None

    async def enqueue_async(
        self,
        payload: P,
        *,
        key: str | None = None,
        session: AnyAsyncSession | None = None,
        **options: Unpack[JobOptions],
    ) -> Receipt:
        """Write one job in the caller's asynchronous transaction: `enqueue`, awaited.

        Args:
            session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of
                our own, off the event loop's thread: cancelled after it has begun, it may have been committed.

        Raises:
            EnqueueError: as `enqueue`.
        """
        return await in_async(self.enqueue, payload=payload, key=key, session=session, **options)

    async def enqueue_many_async(
        self,
        payloads: Iterable[P],
        *,
        key: Callable[[P], str] | None = None,
        session: AnyAsyncSession | None = None,
        **options: Unpack[JobOptions],
    ) -> list[Receipt]:
        """Write one job for each payload: `enqueue_many`, awaited. `session` is as for `enqueue_async`.

        Raises:
            EnqueueError: as `enqueue_many`.
        """
        return await in_async(self.enqueue_many, payloads=payloads, key=key, session=session, **options)

    def __get__(self, instance: object, owner: Any = None) -> JobFunction[P, Rest, Answer]:
        """Stay the same as an attribute of a class, where a function would become a method."""
        return self

    def __repr__(self) -> str:
        return f"<job {self.name!r}: {self._function.__module__}.{self._function.__qualname__}>"
