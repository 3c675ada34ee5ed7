"""A job type: its name, its payload, its policies and the code that carries it out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from effects import errors
from effects.errors import ConfigurationError, PayloadInvalid
from effects.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, PAYLOAD_BYTES_MAX, QUARANTINE_QUEUE, Job
from effects.outcome import Outcome, Refused, Retry, Unknown
from effects.redact import hide_in_repr, sensitive_fields, why_invalid
from effects.retry import ON_UNKNOWN, OnUnknown, RetryPolicy

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from effects.schedules import Schedule
    from effects.store.ledger import Ledger

P = TypeVar("P")
CODE_CHARS_MAX = 64
SEALED = "$sealed"  # where a stored payload keeps its sensitive fields
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as an escape, not as a backslash and a word
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # once: it is dear to make
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


class Attempt(Protocol):
    """What a handler may ask and say while it runs."""

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
        """Someone asked to cancel; answer `Cancelled()` where that is still true to say."""
        ...

    @property
    def draining(self) -> bool:
        """The worker ends once nothing is due (`effects work --drain`): it can keep nothing open for later jobs."""
        ...

    def remaining_seconds(self) -> float:
        """Seconds until the attempt's time limit. A transport must end by itself before that."""
        ...

    def release(self) -> None:
        """Mark the point of no return, durably, before it is passed.

        After it returns, a crash is known as *unknown* and not as a plain retry. Types whose policy is
        `repeat` need not call it: their claim counts as the release.

        Raises:
            LeaseLost: the job is no longer this attempt's. The effect must not be carried out.
        """
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job goes when its caller did not say: lane, order and limits, from the payload."""

    queue: str | None = None
    group_key: str | None = None
    limit_key: str | None = None


class JobType(Generic[P]):
    """Subclass it, set the names and policies, write `perform`, register an instance.

    Attributes:
        name: dotted lower-case name, stored in every row: `email.send`.
        payload: dataclass, msgspec Struct, or `dict` (the default, unchecked). Fields marked
            `Annotated[…, Sensitive]` are sealed in the database, and left out of its `repr`.
        queue: lane. Lanes have threads of their own, so that one never delays another.
        priority: lower runs first; any small integer. Default 5.
        fair: limit keys take turns in the lane of this type, whosever jobs are older; jobs without a key take
            turns as one. Within a priority. Default no: the oldest due job first.
        kept_share: share of the lane's threads, 0 to below 1, that no job takes whose limit key's newest attempt
            failed (the key needs a breaker): any number of dead peers leaves so many threads to the others. Default 0.
        retry: the RetryPolicy.
        time_limit_seconds: an attempt is over after this; its lease is lost and its thread replaced.
            Default 60.
        on_unknown: what to do when the effect may have happened: `repeat` (the peer knows the same key
            again; the default), `repeat_once`, or `hold` for a person. A job may say otherwise.
        unknown_after_seconds: a repeat of what may have happened waits at least so long, unless the outcome gives its
            own wait. Default 0.
        ledger: the table that records the effects of this type. Default: the core's, for jobs with a key.
        schedule: one that comes with the type; `effects init` registers it. Default none.
        retention_days: how long its ended jobs are kept. Default: EFFECTS_RETENTION_JOBS_DAYS, 7 days.
        retention_effects_days: how long its idempotency keys are remembered. Default: EFFECTS_RETENTION_EFFECTS_DAYS,
            90 days.
    """

    name: str = ""
    payload: type[P] = dict  # type: ignore[assignment]
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    fair: bool = False
    kept_share: float = 0.0
    retry: RetryPolicy = RetryPolicy()
    time_limit_seconds: float = 60.0
    on_unknown: OnUnknown = "repeat"
    unknown_after_seconds: float = 0.0
    ledger: Ledger | None = None
    schedule: Schedule | None = None
    retention_days: float | None = None
    retention_effects_days: float | None = None

    def perform(self, payload: P, attempt: Attempt) -> Outcome | None:
        """Carry out one attempt, in a thread, with no transaction open. None means Done().

        Raise a DeliveryError, or anything: `classify` turns it into an outcome.
        """
        raise NotImplementedError

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, P]]) -> Mapping[int, Any]:
        """Fetch what a whole claimed batch needs, by job id, in as few queries as the batch allows."""
        return {}

    def can_ask(self, job: Job) -> bool:
        """Whether the peer can be asked what became of an attempt that was lost behind its release.

        Such a job runs once more, whatever its policy is, and its handler asks before it does anything. Default no.
        """
        return False

    def place(self, payload: P) -> Placement:
        """Lane, group and limit of a job whose caller did not give them."""
        return Placement()

    def worker_starts(self) -> None:
        """A worker is about to claim: check what only sending needs, such as the address of a relay.

        Raises:
            ConfigurationError: the worker does not start.
        """

    def worker_ends(self) -> None:
        """The worker's last attempt is over: close what was kept open between attempts."""

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """Delete rows of this type's own that no effect needs any more and that are older than `keep_seconds`.

        In small batches, each in a transaction of its own; `go_on` is asked before each. Called by `effects prune`
        after the ledgers have been pruned.

        Returns:
            How many rows went, or with `dry_run` would go.
        """
        return 0

    def classify(self, error: Exception, *, released: bool) -> Outcome:
        """The one place where an exception of `perform` becomes an outcome.

        An exception that says nothing of its fate counts as *unknown* when the effect was released.
        """
        code = str(getattr(error, "code", None) or type(error).__name__)[:CODE_CHARS_MAX]
        message = safe_message(error)
        if isinstance(error, errors.Temporary):
            return Retry(message, code=code, after_seconds=error.after_seconds)
        if isinstance(error, errors.Permanent | errors.Refused | PayloadInvalid):
            return Refused(message, code=code)
        if isinstance(error, errors.Ambiguous) or released:
            return Unknown(message, code=code)
        return Retry(message, code=code)

    def encode(self, payload: P | Mapping[str, Any]) -> str:
        """Check a payload against the type and give its JSON text.

        Raises:
            PayloadInvalid: it does not convert, is no JSON, or is over 64 KiB.
        """
        try:
            text = self._encode(payload)
            size = len(text.encode())
        except (TypeError, ValueError) as error:  # msgspec.ValidationError and UnicodeEncodeError are ValueErrors
            # Without its cause, whose text may quote what was given.
            raise PayloadInvalid(f"{self.name}: the payload is not valid: {why_invalid(error)}") from None
        if size > PAYLOAD_BYTES_MAX:
            raise PayloadInvalid(
                f"{self.name}: the payload has {size:,} bytes and the limit is "
                f"{PAYLOAD_BYTES_MAX:,}; store the large part elsewhere and give its id"
            )
        if "u0000" in text and _NUL.search(text):
            raise PayloadInvalid(f"{self.name}: the payload holds a NUL character, which PostgreSQL cannot store")
        if SEALED in text and SEALED in msgspec.json.decode(text):
            raise PayloadInvalid(f"{self.name}: the field name {SEALED} is kept for sealed fields; use another")
        return text

    def _encode(self, payload: P | Mapping[str, Any]) -> str:
        if self.payload is dict:
            return _JSON.encode(payload)
        plain = payload if isinstance(payload, Mapping) else msgspec.to_builtins(payload)
        return msgspec.json.encode(msgspec.convert(plain, self.payload)).decode()

    @staticmethod
    def canonical(text: str) -> str:
        """The same JSON text for the same value, whatever the order of its keys; what a digest is taken of."""
        return msgspec.json.encode(msgspec.json.decode(text), order="sorted").decode()

    def decode(self, text: str) -> P:
        """The typed payload of a stored job.

        Raises:
            PayloadInvalid: the stored JSON does not fit the payload class (an older release wrote it, or
                a plain INSERT).
        """
        try:
            return msgspec.json.decode(text, type=self.payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise PayloadInvalid(f"{self.name}: the stored payload is not valid: {why_invalid(error)}") from None

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The payload's fields that are sealed in the database, by their names in JSON."""
        return sensitive_fields(self.payload)

    def check(self) -> None:
        """Refuse a wrong declaration when it is registered.

        Raises:
            ConfigurationError: names the attribute and what it may be.
        """
        who = f"job type {self.name or type(self).__name__!r}"
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"{who}: the name must be dotted lower case, such as 'report.chunk'")
        if self.on_unknown not in ON_UNKNOWN:
            raise ConfigurationError(f"{who}: on_unknown is {self.on_unknown!r}; give one of {', '.join(ON_UNKNOWN)}")
        if not self.queue or self.queue == QUARANTINE_QUEUE:
            raise ConfigurationError(f"{who}: queue {self.queue!r} is not a lane that a job type may name")
        for name in ("retention_days", "retention_effects_days"):
            if (days := getattr(self, name)) is not None and not days > 0:
                raise ConfigurationError(f"{who}: {name} is {days}; it must be above 0")
        if self.unknown_after_seconds < 0:
            raise ConfigurationError(f"{who}: unknown_after_seconds must not be negative")
        if not 0 <= self.kept_share < 1:
            raise ConfigurationError(f"{who}: kept_share is {self.kept_share}; give 0 to below 1")
        if self.time_limit_seconds <= 0:
            raise ConfigurationError(f"{who}: time_limit_seconds must be above 0")
        try:
            if self.sensitive:
                hide_in_repr(self.payload)
        except (NameError, TypeError) as error:
            raise ConfigurationError(f"{who}: the types of its payload class cannot be read: {error}") from error


def safe_message(error: BaseException) -> str:
    """An error text that may be stored and logged: our own errors' words, else only the class name.

    A foreign exception's text may quote a payload, a header or a URL; it is never kept.
    """
    return str(error) if isinstance(error, errors.EffectsError) else type(error).__name__
