"""A job as the app gives it, as the app gets it back, and as a handler sees it. Facts only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from effects.kit.text.redact import repr_without
from effects.kit.text.wording import shown_status
from effects.retry import OnUnknown

OnConflict: TypeAlias = Literal["replace"]  # what becomes of a job that waits under the same key
ON_CONFLICT: tuple[OnConflict, ...] = ("replace",)
JobStatus: TypeAlias = Literal["queued", "running", "failed", "succeeded", "dead", "cancelled"]
LIVE: tuple[JobStatus, ...] = ("queued", "running", "failed")
ENDED: tuple[JobStatus, ...] = ("succeeded", "dead", "cancelled")
LIVE_SHOWN = tuple(map(shown_status, LIVE))  # what people and scripts say

DEFAULT_QUEUE = "default"  # of blocking job types that name none
ASYNC_QUEUE = "async"  # of `async def` ones
HOUSEKEEPING_QUEUE = "effects"  # of our own jobs; every worker serves it, unless it is told not to
QUARANTINE_QUEUE = "quarantine"  # a job whose worker vanished runs here next, one at a time
DEFAULT_PRIORITY = 5
PRIORITY_MIN, PRIORITY_MAX = -32_000, 32_000

PAYLOAD_BYTES_MAX = 64 * 1024
POISON = "poison"  # the error code of a job that lost as many workers as it may
POISON_LOSSES = 5  # workers a job may lose before it is dead-lettered as poison

AttemptId: TypeAlias = tuple[int, int]  # of the job, and the lease token
Loaded: TypeAlias = Mapping[int, Any]  # job id → what `JobType.load` fetched for it


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job to enqueue.

    Args:
        job_type: name of a registered job type, such as `webhook.deliver`.
        payload: an instance of the type's payload class, or a mapping that converts to it. At most
            64 KiB as JSON: give ids and options, reference large things.
        key: idempotency key, at most 255 characters. The same key with the same payload gives the first
            job's receipt; with another payload it raises IdempotencyConflict.
        queue, priority, max_attempts: override the job type's own. Lower priority numbers run first.
        run_at: not before this time (aware). Default: now.
        delay: not before this long from now, by the clock of the database: a timedelta or seconds, 0 (now) to a
            hundred years. Not together with `run_at`.
        expires_at: an attempt never starts after this time (aware); the job ends cancelled, code `expired`.
        group_key: jobs of one group run strictly in the order of enqueue, one in flight.
        limit_key: jobs of one key share a cap in flight and a pause (table `effects_limits`).
        trace_context: W3C `traceparent`, stored and handed to the handler, at most 255 characters. With
            `effects.contrib.opentelemetry` it need not be given; where there are more such headers (`baggage`), that
            writes a JSON object of them.
        on_unknown: `repeat`, `repeat_once` or `hold`, instead of the job type's policy.
        on_conflict: `replace`, with a key: a job of this key that no attempt has begun gets this payload, this time and
            these options, within its group; any other is left as it is. The receipt tells which. Default: as `key`.
    """

    job_type: str
    payload: Any
    key: str | None = None
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: timedelta | float | None = None
    expires_at: datetime | None = None
    group_key: str | None = None
    limit_key: str | None = None
    max_attempts: int | None = None
    trace_context: str | None = None
    on_unknown: OnUnknown | None = None
    on_conflict: OnConflict | None = None

    def __repr__(self) -> str:
        """Without the payload."""
        return repr_without(self, ("payload",))


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What enqueue gives back. It becomes true when the caller's transaction commits.

    `existing`: the key was already used, and `job_id` is its first job's. `replaced`: that job waited, and has the new
    payload and time (`on_conflict="replace"`).
    """

    job_id: int
    job_type: str
    key: str | None = None
    existing: bool = False
    replaced: bool = False


class Job(msgspec.Struct, frozen=True, gc=False):
    """A claimed job. `attempts` counts this attempt; `lease_token` is the fence of every write about it.

    The fields up to `on_unknown` are columns of its row (`effects.store.queue.job_rows`), in this order.
    """

    id: int
    job_type: str
    payload: str  # JSON text, decoded by `JobType.decode`
    queue: str
    priority: int
    attempts: int
    max_attempts: int | None
    lease_token: int
    lost_count: int
    unknown_count: int
    routed: bool
    cancel_requested: bool
    age_seconds: float  # since the job first fell due, by the database's clock, at the claim
    key: str | None = None
    group_key: str | None = None
    limit_key: str | None = None
    quarantined_from: str | None = None
    has_attempts: bool = False  # earlier ones, each with its own row
    requeued_from: int | None = None
    trace_context: str | None = None
    on_unknown: OnUnknown | None = None
    expired: bool = False  # claimed after its `expires_at`
    due_seconds: float = 0.0  # how long it had been due, at the claim
    released: bool = False

    @property
    def attempt_id(self) -> AttemptId:
        """What this attempt is known by: ids are handed out again after commits were lost, tokens are not."""
        return self.id, self.lease_token

    @property
    def home_queue(self) -> str:
        """The queue that the job belongs to when it is not in quarantine."""
        return self.quarantined_from or self.queue

    def __repr__(self) -> str:
        """Without the payload."""
        return repr_without(self, ("payload",))


class Attempt(Protocol):
    """The running attempt, as its handler sees it."""

    @property
    def job(self) -> Job:
        """The job: `id`, idempotency `key` (the same for every attempt and requeue), `trace_context`, and so on."""
        ...

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        ...

    @property
    def loaded(self) -> Any:
        """What `JobType.load` returned for this job, or None."""
        ...

    @property
    def cancel_requested(self) -> bool:
        """Whether cancellation was requested; return `Cancelled()` if the effect has not happened."""
        ...

    @property
    def draining(self) -> bool:
        """The worker ends once nothing is due (`effects work --drain`): it can keep nothing open for later jobs."""
        ...

    private: Any
    """Facts for the ledger of this job type, in a class of your own: digests, replies, addresses. Default None.

    The ledger reads them as `Settlement.private`; the core never logs, shows or stores them. Assign a new value rather
    than change the old one, which another thread may be recording.
    """

    def remaining_seconds(self) -> float:
        """Seconds until the attempt's time limit. A transport must end by itself before that."""
        ...

    def release(self) -> None:
        """Record durably that the effect may now happen.

        After it returns, a crash makes the effect *unknown* rather than a plain retry. Types whose policy is
        `repeat` need not call it: their claim counts as the release.

        It waits for the database: in `async def perform` write `await attempt.release_async()`.

        Raises:
            LeaseLost: the job is no longer this attempt's, it was cancelled, or its handler has answered (and left a
                task or thread behind, which calls this). The effect must not be carried out.
            ConfigurationError: it was called on the worker's event loop, which would wait for it.
        """
        ...

    async def release_async(self) -> None:
        """Record durably that the effect may now happen: `release`, awaited, while other handlers go on.

        Raises:
            LeaseLost: as `release`.
        """
        ...
