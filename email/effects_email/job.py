"""The job type `email.send`: one message, by one transport, once, or known not to be."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects.errors import ConfigurationError, PayloadInvalid
from effects.job import Job
from effects.job_type import Attempt, JobType, Placement
from effects.limits import Rate
from effects.logs import Seldom
from effects.outcome import Cancelled, Done, Outcome, Pause, Refused, Retry, Snooze, Unknown
from effects.retry import DAY_SECONDS, RetryPolicy
from effects.settlement import Settlement
from effects.store import limits
from effects_email.attachments import Files
from effects_email.bounces import SOFT_WINDOW_DAYS, Failure, note_failures
from effects_email.compose import EmailCompose
from effects_email.errors import AttachmentMissing
from effects_email.lanes import transport_key
from effects_email.loading import Message, load_messages
from effects_email.memory import AttemptMemory
from effects_email.message import build
from effects_email.outcomes import ASK_AGAIN, RETRY, UNKNOWN_AFTER_SECONDS, detail_of, outcome_of
from effects_email.parts import Parts
from effects_email.settings import DEFAULT_TRANSPORT, EmailSettings
from effects_email.staging import redirected
from effects_email.tables import upkeep
from effects_email.tables.ledger import RecipientResult, SentLedger
from effects_email.tables.retention import forget_all
from effects_email.transport.base import Dispatch, Letter, Transport
from effects_email.transports import Transports

if TYPE_CHECKING:
    from effects.app import Effects

RECHECK_SECONDS = 60.0  # while our own configuration is at fault, or mail is held
_MARGIN_SECONDS = 2.0  # the transport ends before the attempt's time limit does
ATTACHMENT_SECONDS = 300.0  # until a file that cannot be read is looked for again
_log = logging.getLogger("effects.email")


class SendPayload(msgspec.Struct, frozen=True):
    """For people and filters. What is sent stands in `effects_sent_emails`."""

    template: str = ""
    transport: str = DEFAULT_TRANSPORT


class EmailSend(JobType[SendPayload]):
    """Sends one message.

    Args:
        app: the Effects whose database, keys and settings it uses.
        retry: of temporary failures; see `effects_email.outcomes`.
        transports: instead of those of the settings.

    A crash before the release leaves a plain retry. After it, the message may have been sent: the provider is asked
    where it can be; else it is repeated once after 15 minutes with the same bytes, or held, as the message says.
    """

    name = "email.send"
    payload = SendPayload
    queue = "emails"
    time_limit_seconds = 900.0  # ten minutes' patience after the dot, and all that comes before it
    on_unknown = "repeat_once"
    unknown_after_seconds = UNKNOWN_AFTER_SECONDS

    def __init__(self, app: Effects, *, retry: RetryPolicy = RETRY, transports: Transports | None = None) -> None:
        self.retry = retry
        self._app = app
        self._settings: EmailSettings = app.packages["email"]
        self.transports = transports or Transports(self._settings.transport_urls())
        self._files = Files(app)
        self._memory = AttemptMemory()
        self.ledger = SentLedger(self._memory, self._note)
        self._redirect = self._settings.redirect
        self._waiting = Seldom(_log, "email.waiting")  # a fault of our own configuration

    def place(self, payload: SendPayload) -> Placement:
        return Placement(limit_key=transport_key(payload.transport))

    def can_ask(self, job: Job) -> bool:
        """By its transport; one that cannot be opened is not asked."""
        try:
            return self.transports.get(self.decode(job.payload).transport).traceable
        except (ConfigurationError, PayloadInvalid):
            return False

    def worker_starts(self) -> None:
        """Every transport's URL is looked at. A provider's usual rate becomes the limit of one that has none."""
        self.transports.check()
        rates = self.transports.rates()
        if rates:
            with self._app.store.begin() as connection:
                for name, per_second in rates.items():
                    limits.ensure(self._app.store, connection, transport_key(name), rate=Rate(per_second, 1.0))

    def worker_ends(self) -> None:
        self.transports.close()

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """What messages said is forgotten EFFECTS_EMAIL_CONTENT_DAYS after their end; their rows stay longer. Old
        events of providers go, suppressions that are over, and soft failures that count no more.
        """
        store, days = self._app.store, self._settings.email_content_days
        forgotten = forget_all(store, keep_seconds=days * DAY_SECONDS, dry_run=dry_run, go_on=go_on)
        return forgotten + upkeep.prune(
            store, keep_seconds=keep_seconds, window_days=SOFT_WINDOW_DAYS, dry_run=dry_run, go_on=go_on
        )

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, SendPayload]]) -> Mapping[int, Message]:
        """What the batch is to send; see `effects_email.loading`."""
        # One that an operator sends again is a new job, of which nothing is unknown.
        policies = {job.id: job.on_unknown or self.on_unknown for job, _ in jobs}
        repeats = {job.id for job, _ in jobs if job.unknown_count}
        return load_messages(self._app, connection, policies, repeats)

    # -- perform -----------------------------------------------------------------------------------------------------

    def perform(self, payload: SendPayload, attempt: Attempt) -> Outcome:
        message: Message | None = attempt.loaded
        if message is not None and message.sealed_off is not None:
            self._waiting.say(message.sealed_off)
            return Snooze(RECHECK_SECONDS, message.sealed_off)
        if message is None or message.parts is None:
            return Refused("what was to be sent is no longer stored", code="content_gone")
        self._memory.forget(message.job_id)
        if message.reported:
            return self._was_taken(message, {"reported": True, "transport": message.transport})
        if attempt.cancel_requested:
            return Cancelled("cancelled by request")
        if self._settings.email_hold:
            return Pause(RECHECK_SECONDS, "mail is held: EFFECTS_EMAIL_HOLD is set", code="held", parent=True)
        if (outcome := self._nobody_left(message)) is not None:
            return outcome
        try:
            transport = self.transports.get(message.transport)
        except ConfigurationError as error:
            self._waiting.say(str(error))
            return Pause(RECHECK_SECONDS, str(error), code="no_transport", parent=True)
        return self._send(message, message.parts, transport, attempt)

    def _nobody_left(self, message: Message) -> Outcome | None:
        """Where every recipient is settled or suppressed. A suppressed send is on record, and no failure."""
        if message.suppressed < message.open.keys():
            return None
        self._memory.sending(message.job_id, message.sha256 or "")
        self._memory.answered(message.job_id, self._suppressed_results(message), (), message.transport)
        if message.some_accepted:
            return Done(detail={"outcome": "accepted"})
        return Cancelled("its recipients are on the suppression list", code="suppressed")

    def _send(self, message: Message, parts: Parts, transport: Transport, attempt: Attempt) -> Outcome:
        try:
            letter = self._letter(message, parts)
        except AttachmentMissing as error:
            return Retry(str(error), code=str(error.code), after_seconds=ATTACHMENT_SECONDS)
        sha256 = hashlib.sha256(letter.data).hexdigest()
        if message.sha256 not in (None, sha256):
            return Refused("its bytes are not those of an earlier try", code="content_changed")
        keyed = _key_is_good(message, transport)
        if message.unknown and (outcome := self._ask_first(message, letter, transport, keyed=keyed)) is not None:
            return outcome
        self._memory.sending(message.job_id, sha256)
        seconds = attempt.remaining_seconds() - _MARGIN_SECONDS
        dispatch = transport.send(letter, release=attempt.release, seconds=seconds)
        return self._answered(message, letter, transport, dispatch, keyed=keyed)

    def _letter(self, message: Message, parts: Parts) -> Letter:
        to = [one for number, one in message.open.items() if number not in message.suppressed]
        if self._redirect is not None:
            parts, to = redirected(parts, self._redirect), [self._redirect]
        data = build(parts, self._files.read(parts))
        return Letter(
            sender=parts.sender.spec,
            recipients=tuple(dict.fromkeys(one.spec for one in to)),
            data=data,
            parts=parts,
            message_id=parts.message_id,
            key=f"{message.key}:{parts.message_id}"[-255:],
            utf8=any(not one.local.isascii() for one in (parts.sender, *to)) or not data.isascii(),
        )

    def _ask_first(self, message: Message, letter: Letter, transport: Transport, *, keyed: bool) -> Outcome | None:
        """An earlier try may have delivered it. None: go on and repeat."""
        known = transport.ask(letter)
        if known:
            return self._was_taken(message, {"asked": True, "transport": transport.name})
        if message.hold and message.repeats and not keyed:
            return Unknown("the provider does not know it" if known is False else "nobody can be asked")
        return None

    def _was_taken(self, message: Message, detail: Mapping[str, Any]) -> Done:
        """The provider has it, as we hear by another way than its answer."""
        results = [
            RecipientResult(message.key, number, "accepted", "asked")
            for number in (message.open.keys() - message.suppressed if message.group else ())
        ]
        self._memory.sending(message.job_id, message.sha256 or "")
        self._memory.answered(message.job_id, results, (), message.transport)
        return Done(detail={**detail, "outcome": "accepted"})

    def _unsure(self, message: Message, letter: Letter, transport: Transport, outcome: Unknown) -> Outcome:
        """The body was released and no verdict came: ask at once, and where it is to be held, once more later."""
        known = transport.ask(letter)
        if known:
            return self._was_taken(message, {**(outcome.detail or {}), "asked": True})
        if known is False and message.hold and outcome.on_unknown is None:
            return replace(outcome, on_unknown="repeat", after_seconds=0.0, policy=ASK_AGAIN)
        return outcome

    def _answered(
        self, message: Message, letter: Letter, transport: Transport, dispatch: Dispatch, *, keyed: bool
    ) -> Outcome:
        if dispatch.verdict.kind == "transport_down":
            down = self.transports.down(transport.name)
        else:
            down = 0.0
            self.transports.up(transport.name)
        results = [*self._results(message, dispatch), *self._suppressed_results(message)] if message.group else []
        self._memory.answered(message.job_id, results, self._failures(letter, dispatch), transport.name)
        others = message.some_accepted or any(one.outcome == "accepted" for one in results)
        outcome = outcome_of(
            dispatch, down_seconds=down, others_accepted=others, keyed=keyed,
            detail=detail_of(dispatch, transport.name),
        )  # fmt: skip
        if isinstance(outcome, Unknown):
            return self._unsure(message, letter, transport, outcome)
        if isinstance(outcome, Pause) and dispatch.verdict.kind == "config":
            self._waiting.say(f"transport {transport.name}: {outcome.reason}")
        return outcome

    # -- results -----------------------------------------------------------------------------------------------------

    def _results(self, message: Message, dispatch: Dispatch) -> list[RecipientResult]:
        found = []
        for number, one in message.open.items():
            verdict = dispatch.recipients.get(one.spec)
            if verdict is not None and number not in message.suppressed:
                found.append(RecipientResult(message.key, number, verdict.kind, verdict.code))
        return found

    def _suppressed_results(self, message: Message) -> list[RecipientResult]:
        if not message.group:
            return []
        return [RecipientResult(message.key, number, "suppressed", "suppressed") for number in message.suppressed]

    def _failures(self, letter: Letter, dispatch: Dispatch) -> list[Failure]:
        if self._redirect is not None:
            return []
        verdicts = dispatch.recipients or dict.fromkeys(letter.recipients, dispatch.verdict)
        return [
            Failure(address=address, kind=verdict.suppress, code=verdict.code)
            for address, verdict in verdicts.items()
            if verdict.suppress is not None
        ]

    def _note(self, connection: Connection, settled: Sequence[Settlement]) -> None:
        """The suppression list learns from refusals, in the transaction that records them."""
        by_transport: dict[str, list[Failure]] = {}
        for one in settled:
            transport, failures = self._memory.take_failures(one.job.id)
            if failures:
                by_transport.setdefault(transport, []).extend(failures)
        for transport, failures in by_transport.items():
            note_failures(self._app, connection, failures, source=transport)


def _key_is_good(message: Message, transport: Transport) -> bool:
    """Whether the provider would still know the message's key again: half of its lifetime is ours to use."""
    lifetime = transport.key_lifetime_seconds
    return lifetime is not None and (message.released_seconds or 0.0) < lifetime / 2


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [EmailSend(app), EmailCompose(app)]
