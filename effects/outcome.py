"""What a handler may answer. One of these is the whole result of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection

from effects.retry import OnUnknown, RetryPolicy

Detail: TypeAlias = Mapping[str, Any]
Apply: TypeAlias = Callable[[Connection], None]


@dataclass(frozen=True, slots=True)
class Done:
    """The effect happened.

    `apply` is database work of the handler's own (a follow-up job, a counter). It runs in the transaction
    that records the outcome, behind the same fence: both commit or neither does, and a worker that lost
    its lease applies nothing. If `apply` itself fails, the attempt counts as failed with code `apply_failed`.
    """

    apply: Apply | None = None
    detail: Detail | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The effect did not happen; try again.

    `after_seconds` is a floor (a peer's Retry-After): the retry policy may wait longer, never shorter.
    `policy` is another one than the job type's, for this kind of failure; `tries` are then the attempts that
    count against it (default all). What the job itself was given as `max_attempts` holds over every policy.
    `pause_seconds` lets the job's whole `limit_key` rest as well, by which nobody's greatest age runs down.
    """

    message: str
    code: str = "failed"
    after_seconds: float | None = None
    detail: Detail | None = None
    policy: RetryPolicy | None = None
    tries: int | None = None
    pause_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Nothing was tried; look again after `seconds`. Uses up no attempt.

    `ages=False`: the time does not count towards the job's greatest age. For a fault of this worker's own, such as a
    key that it lacks: unlike a `Pause` it holds up no other job, which another worker may well be able to carry out.
    """

    seconds: float
    reason: str = ""
    ages: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    """The effect did not happen, and nothing under its `limit_key` will for `seconds`: a throttle, a fault of ours.

    Uses up no attempt. The whole key (with `parent` the one above it, where there is one) rests, for all workers, until
    now + `seconds` or until a pause that ends later does; its row in `effects_limits` is made if there is none. The
    time counts towards no job's greatest age: that of this job and of all that wait behind the key is moved on
    (`age_from`) when they are next claimed. A job without a limit key waits by itself. The attempt log says `paused`.
    """

    seconds: float
    reason: str
    code: str = "throttled"
    detail: Detail | None = None
    parent: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The effect did not happen and will not: the peer, or our own guard, said no. The job ends dead."""

    message: str
    code: str = "refused"
    detail: Detail | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler gave up because it was no longer wanted; nothing happened."""

    reason: str = "cancelled"
    code: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Unknown:
    """The effect may have happened: the request left and no verdict came back.

    What follows is the `on_unknown` policy of the job, else of its type: repeat, repeat once, or hold for a person.
    One given here comes before both: `repeat` where the peer is known to recognise the same key again.
    `policy`, `tries` and `pause_seconds` are as in `Retry`.
    """

    message: str
    code: str = "unknown"
    after_seconds: float | None = None
    detail: Detail | None = None
    policy: RetryPolicy | None = None
    tries: int | None = None
    pause_seconds: float | None = None
    on_unknown: OnUnknown | None = None


Outcome: TypeAlias = Done | Retry | Snooze | Pause | Refused | Cancelled | Unknown
