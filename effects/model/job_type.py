"""A job type: its name, its payload, its policies and the code that carries it out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from sqlalchemy import Connection

from effects import errors
from effects.errors import ConfigurationError, KeyUnavailable, PayloadInvalid, SealInvalid
from effects.kit.arguments import optional, printable
from effects.kit.frames import relative
from effects.kit.logs import RateLimitedLogger, own_logger
from effects.kit.text.database_error import database_condition
from effects.kit.text.redact import secret_texts, sensitive_fields
from effects.kit.text.scrub import CODE_CHARS_MAX, class_name
from effects.kit.text.wording import described
from effects.model.advice import DoctorFinding, Explanation, Instead
from effects.model.job import ASYNC_QUEUE, DEFAULT_PRIORITY, DEFAULT_QUEUE, Attempt, Job
from effects.model.ledger import Ledger
from effects.model.outcome import HandlerAnswer, Outcome, Refused, Retry, Snooze, Unknown
from effects.model.payload_codec import PayloadCodec
from effects.model.schedules import Schedule
from effects.retry import OnUnknown, RetryPolicy

P = TypeVar("P")
ResultPolicy: TypeAlias = Literal[False, True, "sealed"]
OPERATOR_WAIT_SECONDS = 60.0  # while a worker lacks a setting, such as a key in EFFECTS_KEYS
WAITS_FOR_OPERATOR = "waits_for_operator"  # the error code meanwhile
PAYLOAD_INVALID = "payload_invalid"  # the error code of what can never be read
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")

_log = own_logger("effects.worker")


@dataclass(frozen=True, slots=True)
class Routing:
    """Queue, group and limit key of a job, derived from its payload where the caller gave none."""

    queue: str | None = None
    group_key: str | None = None
    limit_key: str | None = None


_NOWHERE_ELSE = Routing()


def _queue_by_kind(job_type: JobType[Any]) -> str:
    """Of a type that names none. `async def` types have one to themselves, so that no thread bounds them."""
    return ASYNC_QUEUE if job_type.is_async else DEFAULT_QUEUE


class JobType(Generic[P]):
    """Subclass it, set the names and policies, write `perform`, register an instance.

    Attributes:
        name: dotted lower-case name, stored in every row: `email.send`.
        payload: dataclass, msgspec Struct, or `dict` (the default, unchecked). Fields marked
            `Annotated[…, Sensitive]` are sealed in the database, and left out of its `repr`.
        queue: Queues have threads of their own, so that one never delays another. A queue whose job types are all
            `async def` has 1,024 attempts in flight instead; in one with both kinds an async attempt takes up a thread.
            Default: `default`, or `async` where `perform` is `async def`.
        priority: lower runs first; any small integer. Default 5.
        fair: limit keys take turns in the queue of this type, whosever jobs are older; jobs without a key take
            turns as one. Within a priority. Default no: the oldest due job first.
        reserved_share: share of the queue's threads, 0 to below 1, that no job takes whose limit key's newest attempt
            failed (the key needs a breaker): any number of dead peers leaves so many threads to the others. Default 0.
        failing_after_seconds: an attempt that has run for longer counts its limit key as failing, for `reserved_share`,
            until it ends; in a queue of async types it gives up its slot to others beyond that share. Default: never.
        retry: the RetryPolicy.
        time_limit_seconds: an attempt is over after this; its lease is lost and its thread replaced, or its task
            cancelled. Default 60.
        enqueues_more: its outcome enqueues jobs that any worker may take: a drain elsewhere waits for a running one of
            its queue. Default no.
        on_unknown: what to do when the effect may have happened: `repeat` (the peer knows the same key
            again; the default), `repeat_once`, or `hold` for an operator. A job may override it.
        unknown_after_seconds: a repeat of what may have happened waits at least so long, unless the outcome gives its
            own wait. Default 0.
        ledger: the table that records the effects of this type. Default: the core's, for jobs with a key.
        schedule: a schedule that belongs to the type; `effects init` registers it. Default: no schedule.
        placeholders: names in braces that the type fills in itself in the texts of its payload: a schedule leaves
            them alone. Default: none.
        retention_days: how long its ended jobs are kept. Default: EFFECTS_RETENTION_JOBS_DAYS, 7 days.
        retention_effects_days: how long its idempotency keys are remembered. Default: EFFECTS_RETENTION_EFFECTS_DAYS,
            90 days.
        captured_in_tests: whether `effects.testing.Toolkit` records such jobs instead of carrying them out: for types
            of packages that send something. Default no.
        internal: whether only our own code enqueues it, as a step of something that was checked: `effects grants` lets
            no role enqueue it. Default no.
        trusted_fields: fields of its payload that only trusted code fills: `effects_enqueue` refuses them.
        result: whether the `result` of a `Done` is kept, as JSON, for as long as the job's history: `status`, `wait`
            and `effects why` tell it. `sealed`: under EFFECTS_KEYS, as it is in any case where a field of the payload
            is Sensitive. What is no JSON, or over 64 KiB, is not kept: the effect is done all the same, and its status
            says why. Default no.
        clear_when_scheduled: sensitive fields that a schedule may name nevertheless, in clear: they stand in the code.
        keep_error_text: whether the text of an exception is kept with its attempt, sealed where EFFECTS_KEYS is set.
            Default: EFFECTS_ERROR_TEXTS, no.
    """

    name: str = ""
    payload: type[P] = dict  # type: ignore[assignment]
    queue: str = cached_property(_queue_by_kind)  # type: ignore[assignment]
    priority: int = DEFAULT_PRIORITY
    fair: bool = False
    reserved_share: float = 0.0
    failing_after_seconds: float | None = None
    retry: RetryPolicy = RetryPolicy()
    time_limit_seconds: float = 60.0
    enqueues_more: bool = False
    on_unknown: OnUnknown = "repeat"
    unknown_after_seconds: float = 0.0
    ledger: Ledger | None = None
    schedule: Schedule | None = None
    placeholders: tuple[str, ...] = ()
    retention_days: float | None = None
    retention_effects_days: float | None = None
    captured_in_tests: bool = False
    internal: bool = False
    trusted_fields: tuple[str, ...] = ()
    result: ResultPolicy = False
    clear_when_scheduled: tuple[str, ...] = ()
    keep_error_text: bool | None = None

    def perform(self, payload: P, attempt: Attempt) -> HandlerAnswer:
        """Carry out one attempt, in a thread, with no transaction open. None means Done().

        Write `async def perform` for what mostly waits for a peer: it runs on an event loop that all async handlers of
        the worker share, a thousand in flight. Such a handler calls nothing that blocks, and releases by
        `await attempt.release_async()`.

        An outcome may be raised as well. Of any other exception `classify` makes one.
        """
        raise NotImplementedError

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, P]]) -> Mapping[int, Any]:
        """Fetch what a whole claimed batch needs, by job id, in as few queries as the batch allows."""
        return {}

    def instead_of_requeue(self, key: str | None, error_code: str | None) -> Instead | None:
        """Say what to do where requeuing an ended job of this type would not help.

        `effects why` and `effects jobs show` advise it. None (the default): `effects retry` is right.
        """
        return None

    def why_retry_fails(self, error_code: str | None) -> str | None:
        """Say why a retry of what ended by this code would end the same way, and what to do first; one clause.

        `effects retry` warns of it before it acts on many. None (the default): a retry may help.
        """
        if error_code == PAYLOAD_INVALID:
            return "the stored payload does not fit its job type: it ends the same way until the code accepts it"
        return None

    def before_retry(self, connection: Connection, job_id: int, key: str | None, *, done: bool) -> None:
        """Prepare this type's own rows for the new job that follows this one, in the transaction that writes it.

        Args:
            done: the effect has happened, and is to happen once more.

        Raises:
            JobStateError: there is nothing to send any more, or the new job would end at once; nothing is written.
        """

    def retry_effect(self, connection: Connection, key: str, *, actor: str, reason: str | None) -> str:
        """Take up an effect again that many jobs make; needed only where the ledger `spans_jobs`.

        Args:
            key: of one of its jobs, or its name in the ledger.

        Returns:
            Its name and its new state, in a few words.

        Raises:
            JobNotFound: there is no such effect.
            JobStateError: it is in a state that cannot be taken up again.
        """
        raise NotImplementedError

    def cancel_effect(self, connection: Connection, key: str, *, actor: str, reason: str | None) -> str:
        """Stop an effect that many jobs make; as `retry_effect`."""
        raise NotImplementedError

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        """Say what the last attempt's answer means and what follows from it, by its error code and recorded detail.

        `effects why` and `effects jobs show` tell it. None (the default): the answer speaks for itself.
        """
        return None

    def clear_names(self, payload: P) -> Sequence[str]:
        """Return names that an error text may show, although a sensitive field of the payload holds the same text.

        For what the type itself calls something by, such as the variables of a template. What the payload's other
        fields hold is in clear anyway. Default: none.
        """
        return ()

    def can_ask(self, job: Job) -> bool:
        """Whether the peer can report the result of an attempt that was lost after its release.

        Such a job runs once more regardless of its policy, and its handler asks the peer first. Default no.
        """
        return False

    def route(self, payload: P) -> Routing:
        """Return queue, group key and limit key for a job whose caller gave none."""
        return Routing()

    def check_declared(self, payload: P) -> None:
        """Refuse a payload in advance, for a schedule, that `perform` would refuse: an unknown name, a missing extra.

        Called by `effects init`, `effects doctor`, `effects schedules add` and a starting worker, with the placeholders
        filled for the schedule's next slot. Writes nothing, and asks no peer. Default: whatever fits the class will do.

        Raises:
            ConfigurationError, EnqueueError: names the field; quotes no value that may be personal.
        """

    def check_followers(self, connection: Connection, payload: P) -> None:
        """Refuse a payload in advance, as `check_declared`, by what the database has: what its job will lead to later.

        Called by `effects init`, once there are tables, `effects schedules add` and `effects doctor`. Reads only.
        Default: nothing to look at.

        Raises:
            ConfigurationError, EnqueueError: as `check_declared`.
        """

    def examine(self) -> Iterable[DoctorFinding]:
        """Say what `effects doctor` shows of what this type needs: logins, files, peers. Reads only, and asks no peer.

        Default: nothing.
        """
        return ()

    def declared_jobs(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Return the jobs that this type enqueues by a setting of the app: setting → name of a type, sample payload.

        `effects init` and `effects doctor` look whether such a job would be refused. Default: none.
        """
        return {}

    def max_in_flight(self, limit_key: str) -> int | None:
        """Return how many attempts of this limit key one worker may have at a time, by what peer or machine bears.

        Called for each key with due jobs at each claim of this type's queue, in the worker's process: answer from
        memory. The key's own limits hold besides. 0: none before an attempt of the queue ends. None (the default): no
        such bound.
        """
        return None

    def limit_keys_of(self, connection: Connection, tenant: str) -> Sequence[str]:
        """Return the limit keys that belong to a tenant of the app, by which its jobs are listed. Default: none."""
        return ()

    def examine_rows(self, connection: Connection) -> Iterable[DoctorFinding]:
        """Say what in this type's tables needs a person, such as a peer that fails: what, and what to do about it.

        `effects doctor` and `effects status` show it. In few statements, whatever the number of rows. Default: nothing.
        """
        return ()

    def worker_starts(self) -> None:
        """A worker is about to claim: check what only sending needs, such as the address of a relay.

        Raises:
            ConfigurationError: the worker does not start.
        """

    def worker_ends(self) -> None:
        """The worker's last attempt is over: close what was kept open between attempts."""

    @property
    def is_async(self) -> bool:
        """Whether `perform` is `async def`: it runs on the worker's event loop."""
        return inspect.iscoroutinefunction(self.perform)

    @property
    def declared_at(self) -> str:
        """File and line of its code."""
        code = getattr(type(self).perform, "__code__", None)
        return type(self).__qualname__ if code is None else f"{relative(code.co_filename)}:{code.co_firstlineno}"

    @property
    def is_released_by_claim(self) -> bool:
        """Whether the claim counts as the release: the policy `repeat` needs no mark before the effect."""
        return self.on_unknown == "repeat"

    def wait_for_operator(self, reason: str) -> Snooze:
        """Return the outcome for a job that this worker cannot run until its configuration is fixed (a missing key).

        The job is looked at again after 60 s, by whichever worker is free: it uses up no attempt and no age, and its
        limit key is not paused, because the other workers may have what this one lacks. The log names the reason at
        ERROR (`job.waiting`), at most once in ten seconds.
        """
        self._operator_log.error(f"{self.name}: {reason}")
        return Snooze(OPERATOR_WAIT_SECONDS, reason, ages=False, code=WAITS_FOR_OPERATOR)

    def fate_of_sealed(self, error: KeyUnavailable) -> Outcome:
        """Return the outcome for a job of which something sealed does not open.

        It waits for its key (see `wait_for_operator`); what no key could open is refused at once.
        """
        if isinstance(error, SealInvalid):
            return Refused(str(error), code=PAYLOAD_INVALID)
        return self.wait_for_operator(str(error))

    @cached_property
    def _operator_log(self) -> RateLimitedLogger:
        return RateLimitedLogger(_log, "job.waiting")

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """Delete rows of this type's own that no effect needs any more and that are older than `keep_seconds`.

        In small batches, each in its own transaction; `go_on` is asked before each. Called by `effects prune`
        after the ledgers have been pruned.

        Returns:
            How many rows went, or with `dry_run` would go.
        """
        return 0

    def classify(self, error: Exception, *, released: bool) -> Outcome:
        """Give an exception of `perform` its fate. An outcome that was raised is its own, and never comes here.

        An exception that does not name its fate counts as *unknown* when the effect was released.
        """
        code = errors.code_of(error)[:CODE_CHARS_MAX]
        message = safe_message(error)
        if isinstance(error, PayloadInvalid):
            return Refused(message, code=code)
        return Unknown(message, code=code) if released else Retry(message, code=code)

    def encode(self, payload: P | Mapping[str, Any]) -> str:
        """The JSON text of a payload, once it is checked; see `checked`."""
        return self.checked(payload)[1]

    def checked(self, payload: P | Mapping[str, Any]) -> tuple[P, str]:
        """Check a payload against the type; gives it as the type's payload class, and its JSON text.

        Raises:
            PayloadInvalid: it does not convert, is no JSON, or is over 64 KiB.
        """
        return self._codec.checked(payload)

    @staticmethod
    def canonical(text: str) -> str:
        """Normalise JSON text so that equal values give equal texts; input of the digest."""
        return msgspec.json.encode(msgspec.json.decode(text), order="sorted").decode()

    def decode(self, text: str) -> P:
        """The typed payload of a stored job.

        Raises:
            PayloadInvalid: the stored JSON does not fit the payload class (an older release wrote it, or
                a plain INSERT), or the class cannot be made of it, whatever it raises: the same text fails again.
        """
        return self._codec.decode(text)

    @cached_property
    def _codec(self) -> PayloadCodec[P]:
        return PayloadCodec(self.name, self.payload)

    @cached_property
    def sensitive(self) -> tuple[str, ...]:
        """The payload's fields that are sealed in the database, by their names in JSON."""
        return sensitive_fields(self.payload)

    @property
    def seals_result(self) -> bool:
        """A result may quote what is sealed of its payload."""
        return self.result == "sealed" or bool(self.result and self.sensitive)

    def secrets_of(self, payload: P) -> list[str]:
        """What a report of an attempt must not show of its payload, for `redact`."""
        return secret_texts(payload, self.sensitive, clear=(self.name, *self.clear_names(payload)))


def routing_of(job_type: JobType[P], payload: P) -> Routing:
    """Call the type's `route`, if it has one, and check its answer.

    Raises:
        ConfigurationError: it is no Routing, or names a queue or key that no job may have.
    """
    if getattr(job_type.route, "__func__", None) is JobType.route:
        return _NOWHERE_ELSE
    routing = job_type.route(payload)
    who = f"job type {job_type.name!r}: route"
    if not isinstance(routing, Routing):
        raise ConfigurationError(f"{who} returned {described(routing)}; it must return a Routing")
    for name in ("queue", "group_key", "limit_key"):
        if (why := optional(printable())(getattr(routing, name))) is not None:
            raise ConfigurationError(f"{who}: {name} {why}")
    return routing


def safe_message(error: BaseException) -> str:
    """An error text that may be stored and logged: our own errors' words, else the class and a database's condition.

    A foreign exception's text may quote a payload, a header or a URL; it is never kept.
    """
    try:
        if isinstance(error, errors.EffectsError):
            return str(error)
        condition = database_condition(error)
        return class_name(error) if condition is None else f"{class_name(error)}: {condition}"
    except BaseException:  # of a subclass's own `__str__`
        return class_name(error)
