"""The job type `email.send`: one message, by one transport, once, or known not to be."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Connection

from effects import (
    Attempt,
    Cancelled,
    ConfigurationError,
    Done,
    Job,
    JobType,
    Outcome,
    Pause,
    PayloadInvalid,
    Refused,
    Retry,
    RetryPolicy,
    Routing,
    Snooze,
    Unknown,
)
from effects.extend.actions import Action, DoctorFinding, Explanation, Instead
from effects.extend.arguments import DAY_SECONDS
from effects.extend.jobs import Rate, ensure_limit
from effects.extend.process import RateLimitedLogger, long_call, own_logger
from effects_email.classify import (
    ASK_AGAIN,
    FINAL,
    HELD,
    RETRY,
    UNKNOWN_AFTER_SECONDS,
    Weight,
    count,
    detail_of,
    is_weighed,
    leading,
    outcome_of,
    outcome_word,
    took_one,
    weigh,
    without_strangers,
)
from effects_email.errors import AttachmentMissing
from effects_email.events import resolve_reported
from effects_email.explanation import explanation_of, why_final
from effects_email.jobs.failover import TransportChains
from effects_email.jobs.outgoing import (
    EnvelopeSenders,
    failures_of,
    left_out_results,
    nobody_left,
    note,
    outgoing_message,
    recipient_results,
    record_of,
)
from effects_email.jobs.waits import InThread, OnLoop, RoomInMemory, Waits, run_in_thread
from effects_email.loading import Message, load_messages, prepare_retry
from effects_email.message.address import address_digests
from effects_email.message.attachments import Files
from effects_email.message.source import MessageSource
from effects_email.oauth.logins import check_logins, examine_logins
from effects_email.retention import delete_old_rows, forget_contents
from effects_email.returned.token import check_bounce_key
from effects_email.routing import transport_key, transport_of
from effects_email.settings import DEFAULT_TRANSPORT
from effects_email.state import state_of
from effects_email.suppression import SOFT_WINDOW_DAYS
from effects_email.tables.events import read_unread
from effects_email.tables.ledger import RecipientResult, SendRecord, SentLedger
from effects_email.transport.base import OutgoingMessage, SendResult, Transport
from effects_email.transport.registry import Transports

if TYPE_CHECKING:
    from effects import Effects
    from effects.extend.actions import DoctorFinding

RECHECK_SECONDS = 60.0  # while our own configuration is at fault, or mail is held
CHANGED = "its bytes are not those of an earlier try: an attached file has changed, or EFFECTS_DKIM_KEYS lost the key"
_MARGIN_SECONDS = 2.0  # the transport ends before the attempt's time limit does
ROOM_SECONDS = 120.0  # that a message waits for others in memory, of its attempt's time limit
ATTACHMENT_SECONDS = 300.0  # until a file that cannot be read is looked for again
_log = own_logger("effects.email")


class SendPayload(msgspec.Struct, frozen=True):
    """For display and filters. The message itself is in `effects_sent_emails`."""

    template: str = ""
    transport: str = DEFAULT_TRANSPORT


class EmailSend(JobType[SendPayload]):
    """Sends one message.

    Args:
        app: the Effects whose database, keys and settings it uses.
        retry: of temporary failures; see `effects_email.classify`.
        transports: instead of those of the settings.

    Where a transport is a provider's API, attempts run on the worker's event loop; those of other transports each in a
    thread, as many as EFFECTS_THREADS for each limit key. Where none is, all have the threads of their queue.

    A crash before the release leaves a plain retry. After it, the message may have been sent: the provider is asked
    where it can be; else it is repeated once after 15 minutes with the same bytes, or held, as the message says.
    """

    name = "email.send"
    internal = True
    payload = SendPayload
    queue = "emails"
    time_limit_seconds = 900.0  # ten minutes' patience after the dot, and all that comes before it
    on_unknown = "repeat_once"
    unknown_after_seconds = UNKNOWN_AFTER_SECONDS
    captured_in_tests = True

    def __init__(self, app: Effects, *, retry: RetryPolicy = RETRY, transports: Transports | None = None) -> None:
        self.retry = retry
        self._app = app
        state = state_of(app)
        self._settings = state.settings
        self.transports = transports or state.transports
        self._failover = TransportChains(self.transports, self._settings.failover)
        self._files = Files(app)
        self.ledger = SentLedger(partial(note, app), partial(resolve_reported, app), partial(address_digests, app))
        self._redirect = self._settings.redirect
        self._envelope = EnvelopeSenders(app, self._settings)
        self._waiting = RateLimitedLogger(_log, "email.waiting")  # a fault of our own configuration
        self._on_loop = self.transports.on_loop()
        self._rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, RoomInMemory] = WeakKeyDictionary()
        if self._on_loop:
            self.perform = self._perform_on_loop  # type: ignore[method-assign]

    def route(self, payload: SendPayload) -> Routing:
        return Routing(limit_key=transport_key(payload.transport))

    def max_in_flight(self, limit_key: str) -> int | None:
        """Of a transport that takes up a thread, beside those that do not: so many, and as many that wait for one."""
        name = transport_of(limit_key)
        if not self._on_loop or name is None or self._on_loop.issuperset(self._failover.chain(name)):
            return None
        return 2 * self._app.settings.threads

    def examine_rows(self, connection: Connection) -> Iterator[DoctorFinding]:
        """Bounces that could not be read, and mailboxes that could not be opened, by cron."""
        unread = read_unread(self._app.store, connection)
        if unread.set_aside:
            text = f"{unread.set_aside:,} bounces could not be read within 7 days, and were set aside"
            advice = "they are flagged in their mailbox: look at them, and tell us what cannot be read"
            yield DoctorFinding("set aside", "warning", text, advice)
        for mailbox, (reason, tried_at) in unread.mailboxes.items():
            text = f"bounces in {mailbox} are not read: {reason}; last tried at {tried_at:%Y-%m-%d %H:%M:%SZ}"
            advice = "mend its login, then run `effects email bounces` again: the next success ends this"
            yield DoctorFinding("bounces", "warning", text, advice)

    def can_ask(self, job: Job) -> bool:
        """Ask the job's transports; False if one cannot be opened."""
        try:
            chain = self._failover.chain(self.decode(job.payload).transport)
            return any(self.transports.get(name).traceable for name in chain)
        except (ConfigurationError, PayloadInvalid):
            return False

    def instead_of_requeue(self, key: str | None, error_code: str | None) -> Instead | None:
        """What was suppressed would be suppressed again."""
        if error_code != "suppressed" or key is None:
            return None
        name = shlex.quote(key)
        show, retry = f"effects email show {name}", f"effects retry {name}"
        text = (
            f"its recipient is on the suppression list; once the address that `{show}` shows is off it, `{retry}` "
            "sends the message"
        )
        return Instead(text=text, actions=(Action(name="show", command=show),))

    def why_retry_fails(self, error_code: str | None) -> str | None:
        """What is refused for its recipient or its content is refused again."""
        return why_final(error_code)

    def before_retry(self, connection: Connection, job_id: int, key: str | None, *, done: bool) -> None:
        """What was delivered becomes another message: receivers drop one that they know as a duplicate."""
        if key is not None:
            prepare_retry(self._app, connection, key, done=done)

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        """By the tables of SMTP; a provider's API has its own words."""
        return explanation_of(error_code, detail)

    def worker_starts(self) -> None:
        """Check every transport's URL and login and every DKIM key, and set a provider's usual rate as its limit."""
        self._failover.check()
        check_logins(self._app)
        if self._settings.email_bounce_domain:
            check_bounce_key(self._app)
        state_of(self._app).signer  # noqa: B018 - its keys are read once, so that a wrong one is found here
        rates = self.transports.rates()
        if rates:
            with self._app.store.begin() as connection:
                for name, per_second in rates.items():
                    ensure_limit(self._app.store, connection, transport_key(name), rate=Rate(per_second, 1.0))

    def worker_ends(self) -> None:
        self.transports.close()

    def examine(self) -> Iterable[DoctorFinding]:
        """How each transport logs in, and until when it can."""
        return examine_logins(self._app)

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """What messages said is forgotten EFFECTS_EMAIL_CONTENT_DAYS after their end; their rows stay longer. Old
        events of providers go, suppressions that are over, and soft failures that count no more.
        """
        store, days = self._app.store, self._settings.email_content_days
        forgotten = forget_contents(store, keep_seconds=days * DAY_SECONDS, dry_run=dry_run, go_on=go_on)
        return forgotten + delete_old_rows(
            store, keep_seconds=keep_seconds, window_days=SOFT_WINDOW_DAYS, dry_run=dry_run, go_on=go_on
        )

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, SendPayload]]) -> Mapping[int, Message]:
        """What the batch is to send; see `effects_email.loading`."""
        # One that an operator sends again is a new job, of which nothing is unknown.
        policies = {job.id: job.on_unknown or self.on_unknown for job, _ in jobs}
        repeats = {job.id for job, _ in jobs if job.unknown_count}
        return load_messages(self._app, connection, policies, repeats)

    # -- perform -----------------------------------------------------------------------------------------------------

    def perform(self, payload: SendPayload, attempt: Attempt) -> Outcome | Coroutine[Any, Any, Outcome | None]:
        return run_in_thread(self._perform(attempt, InThread(), self._choose(attempt)))

    async def _perform_on_loop(self, payload: SendPayload, attempt: Attempt) -> Outcome:
        message: Message | None = attempt.loaded
        chosen = self._choose(attempt)
        if message is None or message.source is None or chosen not in self._on_loop:
            return await long_call(lambda: run_in_thread(self._perform(attempt, InThread(), chosen)))
        async with self._room().hold(message.source, seconds=ROOM_SECONDS) as has_room:
            if not has_room:
                return Snooze(RECHECK_SECONDS, "many large messages are being sent", ages=False, code="no_room")
            return await self._perform(attempt, OnLoop(), chosen)

    def _choose(self, attempt: Attempt) -> str | None:
        message: Message | None = attempt.loaded
        return None if message is None else self._failover.choose(message)

    def _room(self) -> RoomInMemory:
        loop = asyncio.get_running_loop()
        return self._rooms.get(loop) or self._rooms.setdefault(loop, RoomInMemory())

    async def _perform(self, attempt: Attempt, waits: Waits, chosen: str | None) -> Outcome:
        message: Message | None = attempt.loaded
        if message is not None and message.unopened is not None:
            return self.fate_of_sealed(message.unopened)
        if message is None or message.source is None:
            return Refused("what was to be sent is no longer stored", code="content_gone")
        if message.is_reported:
            return _record_as_taken(attempt, message, {"reported": True, "transport": message.last_transport})
        if attempt.cancel_requested:
            return Cancelled("cancelled by request")
        if self._settings.email_hold:
            return Pause(RECHECK_SECONDS, "mail is held: EFFECTS_EMAIL_HOLD is set", code="held", parent=True)
        if (outcome := nobody_left(attempt, message)) is not None:
            return outcome
        if chosen is None:
            return self._failover.wait(message)
        try:
            transport = self.transports.get(chosen)
        except ConfigurationError as error:
            return self.wait_for_operator(str(error))
        return await self._send(message, message.source, transport, attempt, waits)

    async def _send(
        self, message: Message, source: MessageSource, transport: Transport, attempt: Attempt, waits: Waits
    ) -> Outcome:
        signer = state_of(self._app).signer
        built = partial(outgoing_message, message, source, self._files, self._redirect, signer, self._envelope)
        try:
            outgoing = await waits.call(built) if source.attachments else built()
        except AttachmentMissing as error:
            return Retry(str(error), code=str(error.code), after_seconds=ATTACHMENT_SECONDS)
        sha256 = hashlib.sha256(outgoing.data).hexdigest()
        if message.sha256 not in (None, sha256):
            return Refused(CHANGED, code="content_changed")
        keyed = _key_is_good(message, transport)
        if message.unknown:
            outcome = await _ask_before_repeating(waits, attempt, message, outgoing, transport, keyed=keyed)
            if outcome is not None:
                return outcome
        attempt.private = SendRecord(sha256=sha256, transport=transport.name)
        seconds = attempt.remaining_seconds() - _MARGIN_SECONDS
        send_result = without_strangers(await waits.send(transport, outgoing, attempt, seconds))
        return await self._answered(waits, attempt, message, outgoing, transport, send_result, keyed=keyed)

    async def _answered(
        self,
        waits: Waits,
        attempt: Attempt,
        message: Message,
        outgoing: OutgoingMessage,
        transport: Transport,
        send_result: SendResult,
        *,
        keyed: bool,
    ) -> Outcome:
        down = self._failover.note(message, transport.name, send_result)
        verdict, detail = leading(send_result), detail_of(send_result, transport.name)
        results = recipient_results(message, send_result)
        others = message.some_accepted or any(result.outcome == "accepted" for result in results)
        weight: Weight = "as_said"
        held_in = None
        if took_one(send_result):
            self.transports.takings.took(transport.name)
        if is_weighed(verdict) and not (others and verdict.kind in FINAL):
            took = self.transports.takings.refused(transport.name)
            weigh_it = partial(_weight_of, self._app, message, transport.name, send_result, took=took)
            weight, held_in = await waits.call(weigh_it)
        failures = [] if self._redirect is not None else failures_of(outgoing, send_result)
        if weight == "rest" and verdict.kind in FINAL:  # it is not they who were refused
            results, failures = left_out_results(message), []
        followed = self._failover.follow(message, transport.name, send_result, weight, detail)
        word = outcome_word(verdict, weight)
        if followed is not None:
            word = str((followed.detail or {})["outcome"])
        attempt.private = record_of(attempt.private, send_result, word, held_in, results, failures)
        if followed is not None:
            return followed
        outcome = outcome_of(
            send_result, down_seconds=down, others_accepted=others, keyed=keyed, detail=detail, weight=weight
        )
        if isinstance(outcome, Unknown):
            return await _ask_after_silence(waits, attempt, message, outgoing, transport, outcome)
        if isinstance(outcome, Pause) and word == "config":
            self._waiting.error(f"transport {transport.name}: {outcome.reason}")
        return outcome


async def _ask_before_repeating(
    waits: Waits, attempt: Attempt, message: Message, outgoing: OutgoingMessage, transport: Transport, *, keyed: bool
) -> Outcome | None:
    """An earlier try may have delivered it. None: continue and repeat."""
    answer = await waits.ask(transport, outgoing)
    if answer:
        return _record_as_taken(attempt, message, {"asked": True, "transport": transport.name})
    if message.hold and message.repeats and not keyed:
        return Unknown("the provider does not know it" if answer is False else "no provider can be asked")
    return None


def _record_as_taken(attempt: Attempt, message: Message, detail: Mapping[str, Any]) -> Done:
    """The provider has it, according to an event or a search rather than its response."""
    results = [
        RecipientResult(message.key, number, "accepted", "asked")
        for number in (message.open.keys() - message.suppressed if message.group else ())
    ] + left_out_results(message)
    record = attempt.private or SendRecord(sha256=message.sha256, transport=message.last_transport)
    attempt.private = msgspec.structs.replace(record, outcome="accepted", results=results, failures=())
    return Done(detail={**detail, "outcome": "accepted"})


async def _ask_after_silence(
    waits: Waits,
    attempt: Attempt,
    message: Message,
    outgoing: OutgoingMessage,
    transport: Transport,
    outcome: Unknown,
) -> Outcome:
    """The body was released and no verdict came: ask at once, and where it is to be held, once more later."""
    answer = await waits.ask(transport, outgoing)
    if answer:
        return _record_as_taken(attempt, message, {**(outcome.detail or {}), "asked": True})
    if answer is False and message.hold and outcome.on_unknown is None:
        return replace(outcome, on_unknown="repeat", after_seconds=0.0, policy=ASK_AGAIN)
    return outcome


def _key_is_good(message: Message, transport: Transport) -> bool:
    """Whether the provider would still know the message's key again: half of its lifetime is ours to use."""
    lifetime = transport.key_lifetime_seconds
    return lifetime is not None and (message.released_seconds or 0.0) < lifetime / 2


def _weight_of(
    app: Effects, message: Message, transport: str, send_result: SendResult, *, took: bool
) -> tuple[Weight, str | None]:
    """Of a refusal, and the run of refusals that it belongs to, where it holds the message back.

    Args:
        took: the transport took a message since it last refused one.
    """
    verdict = leading(send_result)
    recipient = next(address for address, theirs in send_result.recipients.items() if theirs == verdict)
    held_in = message.held_in if message.last_transport == transport else None
    run = count(app, transport, verdict, recipient, held_in, took=took)
    weight = weigh(verdict, run, held_in)
    return weight, run.name if verdict.kind in HELD or weight == "rest" else None
