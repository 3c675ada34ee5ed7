"""A job as the app gives it, as the app gets it back, and as a handler sees it. Facts only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from effects.retry import OnUnknown
from effects.text.redact import repr_without

JobStatus: TypeAlias = Literal["queued", "running", "failed", "succeeded", "dead", "cancelled"]
LIVE: tuple[JobStatus, ...] = ("queued", "running", "failed")
ENDED: tuple[JobStatus, ...] = ("succeeded", "dead", "cancelled")

DEFAULT_QUEUE = "default"
QUARANTINE_QUEUE = "quarantine"  # a job whose worker vanished runs here next, one at a time
DEFAULT_PRIORITY = 5

PAYLOAD_BYTES_MAX = 64 * 1024
POISON_LOSSES = 5  # workers a job may lose before it is dead-lettered as poison

AttemptId: TypeAlias = tuple[int, int]  # of the job, and the lease token


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
        delay: not before this long from now, by the clock of the database: a timedelta or seconds, above 0, at most a
            hundred years. Not together with `run_at`.
        expires_at: an attempt never starts after this time (aware); the job ends cancelled, code `expired`.
        group_key: jobs of one group run strictly in the order of enqueue, one in flight.
        limit_key: jobs of one key share a cap in flight and a pause (table `effects_limits`).
        trace_context: W3C `traceparent`, stored and handed to the handler, at most 255 characters. With
            `effects.contrib.opentelemetry` it need not be given; where there are more such headers (`baggage`), that
            writes a JSON object of them.
        on_unknown: `repeat`, `repeat_once` or `hold`, instead of the job type's policy.
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

    def __repr__(self) -> str:
        """Without the payload."""
        return repr_without(self, ("payload",))


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What enqueue gives back. It becomes true when the caller's transaction commits.

    `existing`: the key was already used, and `job_id` is its first job's.
    """

    job_id: int
    job_type: str
    key: str | None = None
    existing: bool = False


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
    has_attempts: bool = False  # earlier ones, each with a row of its own
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


Loaded: TypeAlias = Mapping[int, Any]  # job id → what `JobType.load` fetched for it
