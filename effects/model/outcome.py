"""What a handler may answer. One of these is the whole result of an attempt, returned or raised.

    fate                     class       attempt     verdict    job             ledger
    happened                 Done        succeeded   done       succeeded       done
    definite no              Refused     refused     not_done   dead            refused
    not yet, try again       Retry       failed      not_done   failed          intended
    may have happened        Unknown     unknown     unknown    by on_unknown   unknown
    not wanted any more      Cancelled   cancelled   -          cancelled       abandoned
    nothing tried, or not    Snooze      snoozed     -          queued          intended
    now for this limit key   Pause       paused      not_done   queued          intended

All derive from `DeliveryError`, so that code far below `perform` may raise one: the effect is that of returning it. A
subclass of one (`class CardDeclined(Refused)`) has the same fate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import Connection

from effects.errors import DeliveryError
from effects.retry import OnUnknown, RetryPolicy

Detail: TypeAlias = Mapping[str, Any]
Apply: TypeAlias = Callable[[Connection], None]


class _Outcome(DeliveryError):
    """Base of all outcomes: compared by their fields, with a message like other errors.

    They are not frozen, because an exception that is raised is given its traceback; take them for values all the same.
    """

    def __post_init__(self) -> None:
        maker = sys._getframe(2)
        self._call_site = (maker.f_code.co_filename, maker.f_lineno, maker.f_code.co_name)

    @property
    def call_site(self) -> tuple[str, int, str]:
        """File, line and function that made it: where to look for a wrong value."""
        return self._call_site

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        """By its fields, so that a copy, and one that was pickled, is the same again."""
        return type(self), self._values(), vars(self)

    def __eq__(self, value: object) -> bool:
        return type(value) is type(self) and self._values() == value._values()

    def __hash__(self) -> int:
        return hash(type(self))  # a detail is a mapping, which has no hash

    def __str__(self) -> str:
        return str(getattr(self, "message", None) or getattr(self, "reason", None) or type(self).__name__)


@dataclass(eq=False)
class Done(_Outcome):
    """The effect happened.

    `apply` is database work of the handler's own (a follow-up job, a counter). It runs in the transaction
    that records the outcome, behind the same fence: both commit or neither does, and a worker that lost
    its lease applies nothing. It may take 10 s, including what it waits for, and must not end the transaction. If it
    fails, the attempt counts as failed with code `apply_failed`, and its effect as unknown. Where it is the whole
    effect it may raise `Refused`: nothing happened, and no retry helps.

    `result` is kept with the attempt where the job type says so (`JobType.result`).
    """

    apply: Apply | None = None
    detail: Detail | None = None
    result: Any = field(default=None, repr=False)


@dataclass(eq=False)
class Retry(_Outcome):
    """The effect did not happen; try again.

    `after_seconds` is a floor (a peer's Retry-After): the retry policy may wait longer, never shorter.
    `policy` is another one than the job type's, for this kind of failure; `tries` are then the attempts that
    count against it (default all). What the job itself was given as `max_attempts` holds over every policy.
    `pause_seconds` also pauses the job's `limit_key`; paused time does not count towards `max_age`.
    """

    message: str
    code: str = "failed"
    after_seconds: float | None = None
    detail: Detail | None = None
    policy: RetryPolicy | None = None
    tries: int | None = None
    pause_seconds: float | None = None


@dataclass(eq=False)
class Snooze(_Outcome):
    """Nothing was tried; look again after `seconds`. Uses up no attempt.

    The next attempt begins a second after this one began, at the earliest: `Snooze(0)` after a long attempt goes on at
    once, and a short one does not run hundreds of times a second. The job's greatest age (`max_age`) ends it.
    `ages=False`: the time does not count towards the job's greatest age. For a fault of this worker's own, such as a
    key that it lacks: unlike a `Pause` it holds up no other job, which another worker may well be able to carry out.
    `code`: the job's and the attempt's error code meanwhile.
    """

    seconds: float
    reason: str = ""
    ages: bool = True
    code: str | None = None


@dataclass(eq=False)
class Pause(_Outcome):
    """The effect did not happen, and its `limit_key` is paused for `seconds`: a throttle, or a fault of ours.

    Uses up no attempt. The whole key (with `parent` the one above it, where there is one) rests, for all workers, until
    now + `seconds` or until a pause that ends later does; its row in `effects_limits` is created if missing. The
    time counts towards no job's greatest age: that of this job and of all that wait behind the key is moved on
    (`age_from`) when they are next claimed. A job without a limit key waits by itself. The attempt log says `paused`.

    With `after_seconds` this job waits so much longer than its key, so that another one is tried first: a job that is
    refused again and again does not block all the others. With `seconds=0` it waits alone, and its key does
    not rest. As after a `Snooze`, the job's next attempt begins a second after this one began, at the earliest.

    `then`: for a fault that lasts until an operator mends it, such as a login that is refused. The key rests for
    `seconds` at the first such answer, for `then[0]` at the next, and so on, for the last of them from then on. After
    each rest one attempt at a time starts, until one is answered (done or refused). What comes in during a rest, of
    attempts that were claimed before it, makes it no longer.
    """

    seconds: float
    reason: str
    code: str = "throttled"
    detail: Detail | None = None
    parent: bool = False
    after_seconds: float | None = None
    then: Sequence[float] = ()


@dataclass(eq=False)
class Refused(_Outcome):
    """The effect did not happen and will not: the peer, or our own guard, refused it. The job ends dead."""

    message: str
    code: str = "refused"
    detail: Detail | None = None


@dataclass(eq=False)
class Cancelled(_Outcome):
    """The handler stopped because cancellation was requested; the effect did not happen."""

    reason: str = "cancelled"
    code: str = "cancelled"


@dataclass(eq=False)
class Unknown(_Outcome):
    """The effect may have happened: the request left and no verdict came back.

    What follows is the `on_unknown` policy of the job, else of its type: repeat, repeat once, or hold for an operator.
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
HandlerAnswer: TypeAlias = Outcome | Coroutine[Any, Any, Outcome | None] | None  # None: Done
OUTCOMES = (Done, Retry, Snooze, Pause, Refused, Cancelled, Unknown)
