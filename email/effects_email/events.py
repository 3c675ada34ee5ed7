"""What became of a message after the provider had taken it, in the one form of all providers (`event_parsers`).

kind           meaning                                      what follows
accepted       the provider has the message                an unknown is known
delivered      the recipient's server took it              soft failures are forgotten
delayed        not yet                                     nothing
bounced_hard   the address takes no mail                   suppressed for 180 days
bounced_soft   this message was not taken                  counted; see `effects_email.suppression`
complained     the recipient calls it unwanted             suppressed, forever
unsubscribed   the recipient told the provider to stop     suppressed, forever
failed         the provider gave up, or never sent it      nothing

They also prove of a message that may have been sent that a server has it, for the recipients whom they name. A message
to one recipient is proven by any event about it. One to a group is sent again to those alone who lack it, so that an
event speaks for whom it names: it may be older than the attempt that left the doubt. An event that names no recipient
speaks for all of them, where all went out in the same attempts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, JobNotFound, JobStateError
from effects.extend.actions import resolve_unknown
from effects.extend.arguments import arguments
from effects.extend.jobs import app_of
from effects.extend.text import moment, moment_or_none
from effects_email.classify import FINAL
from effects_email.errors import EmailInvalid
from effects_email.message.address import address_digest, address_digests
from effects_email.suppression import Reason, new_row, note_delivered, note_failures, write_suppressions
from effects_email.tables import events as table
from effects_email.tables import ledger, sent
from effects_email.tables.events import ProviderEventRow
from effects_email.tables.ledger import AddressFailure, RecipientResult
from effects_email.transport.http_api.fields import reference

EventKind: TypeAlias = Literal[
    "accepted", "delivered", "delayed", "bounced_hard", "bounced_soft", "complained", "unsubscribed", "failed"
]
Fate: TypeAlias = Literal["complained", "bounced", "delivered"]
FATES: tuple[Fate, ...] = ("delivered", "bounced", "complained")
# The first of these that was reported is what became of a message; what else is reported leaves it open.
_FATES: dict[EventKind, Fate] = {
    "complained": "complained", "bounced_hard": "bounced", "bounced_soft": "bounced", "failed": "bounced",
    "delivered": "delivered",
}  # fmt: skip
_DIGESTS_MAX = 500  # of one statement
_FAILURES: dict[EventKind, Literal["hard", "soft"]] = {"bounced_hard": "hard", "bounced_soft": "soft"}
_FOR_EVER: dict[EventKind, Reason] = {"complained": "complaint", "unsubscribed": "manual"}
REPORTED = "reported"  # the code of a recipient whom an event shows to have the message
SETTLED = (*FINAL, "suppressed")  # outcomes of a recipient who is not written to again
_IN_ALL_TRIES = (None, "unknown", "refused_recipient", "refused_message", "suppressed")


class IncomingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `recipient` is None if it does not name one of several recipients."""

    provider: str
    provider_event_id: str
    kind: EventKind
    code: str | None
    reference: str | None
    provider_id: str | None
    recipient: str | None
    at: datetime | None

    def __repr__(self) -> str:
        return f"IncomingEvent({self.provider!r}, {self.provider_event_id!r}, {self.kind!r})"


class ProviderEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's event about a message, with its time."""

    provider: str
    kind: EventKind
    code: str | None
    at: datetime | None
    heard_at: datetime


class RequestForged(Exception):
    """The token of this request came before, with another body."""


class SignedRequest(msgspec.Struct, frozen=True):
    """A request whose signature is of a token and not of its body, as digests."""

    token: str
    body: str


def take(app: Effects, events: Sequence[IncomingEvent], *, request: SignedRequest | None = None) -> int:
    """Keep the events of one provider and do what follows from them, in one transaction; how many were new.

    Then messages of which they speak, and which were *unknown* and wait for an operator, are closed as done: the
    provider has them, for every recipient (`resolve_reported`). A crash in between is made good by the provider's
    repeat. A few statements, however many events.

    Args:
        request: with what they came, if it is to be taken once: remembered with them.

    Raises:
        RequestForged: the request's token came with another body before; nothing was written.
        StoreUnavailable: the database is unavailable; nothing was written.
    """
    with app.store.begin() as connection:
        if request is not None and not table.remember_request(
            app.store, connection, token=request.token, body=request.body
        ):
            raise RequestForged
        each = list({event.provider_event_id: event for event in events}.values())
        ids = table.insert(app.store, connection, [_row(app, event) for event in each])
        new = [event for event in each if event.provider_event_id in ids]
        _follow(app, connection, new)
    _resolve(app, events)
    return len(new)


@arguments.checked(EmailInvalid, message_id=arguments.NAME, limit=arguments.whole(1, arguments.LIST_MAX))
def events_of(message_id: str, *, limit: int = 100, effects: Effects | None = None) -> list[ProviderEvent]:
    """List providers' events about a message, in order of arrival; at most `limit`.

    Args:
        message_id: of the message, as its receipt has it.
        effects: the Effects to use; default the process's.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        return read_events(app, connection, message_id, limit)


def read_events(app: Effects, connection: Connection, message_id: str, limit: int = 100) -> list[ProviderEvent]:
    """The events about a message, in order of arrival. One statement."""
    rows = table.of(app.store, connection, reference(message_id), limit)
    return [
        ProviderEvent(
            provider=row.provider, kind=row.kind, code=row.code,
            at=moment_or_none(row.at),
            heard_at=moment(row.created_at),
        )
        for row in rows
    ]  # fmt: skip


def fate_of(kinds: Iterable[EventKind]) -> Fate | None:
    """What became of a message after a server took it; None if no one reported it. Its record says `done` beside it."""
    reported = set(kinds)
    return next((fate for kind, fate in _FATES.items() if kind in reported), None)


def fates(app: Effects, connection: Connection, message_ids: Iterable[str]) -> dict[str, Fate]:
    """The fate of each of these messages of which one was reported. One statement."""
    names = {reference(message_id): message_id for message_id in message_ids}
    reported: dict[str, set[EventKind]] = defaultdict(set)
    for row in table.kinds(app.store, connection, sorted(names)) if names else ():
        reported[names[row.reference]].add(row.kind)
    return {message_id: fate for message_id, kinds in reported.items() if (fate := fate_of(kinds)) is not None}


def _row(app: Effects, event: IncomingEvent) -> ProviderEventRow:
    return ProviderEventRow(
        provider=event.provider,
        provider_event_id=event.provider_event_id,
        kind=event.kind,
        code=event.code,
        reference=event.reference,
        provider_id=event.provider_id,
        recipient=address_digest(app, event.recipient) if event.recipient is not None else None,
        at=event.at.timestamp() if event.at is not None else None,
    )


def _follow(app: Effects, connection: Connection, events: Sequence[IncomingEvent]) -> None:
    """In their order: a delivery forgets the soft failures before it."""
    named = [(event, event.recipient) for event in events if event.recipient is not None]
    if not named:
        return
    source = named[0][0].provider
    delivered = {recipient: place for place, (event, recipient) in enumerate(named) if event.kind == "delivered"}
    note_delivered(app, connection, delivered, source=source)
    failures = [
        AddressFailure(address=recipient, kind=kind, code=event.code or event.kind)
        for place, (event, recipient) in enumerate(named)
        if (kind := _FAILURES.get(event.kind)) and (kind == "hard" or place > delivered.get(recipient, -1))
    ]
    if failures:
        note_failures(app, connection, failures, source=source)
    rows = {
        (recipient, event.kind): new_row(
            app, recipient, _FOR_EVER[event.kind], until=None, source=source, actor=source, why=event.code or event.kind
        )
        for event, recipient in named
        if event.kind in _FOR_EVER
    }
    write_suppressions(app, connection, list(rows.values()))


def _resolve(app: Effects, events: Sequence[IncomingEvent]) -> None:
    about = [event for event in events if event.reference and event.recipient and event.kind != "failed"]
    references = {event.reference for event in about}
    digests = sorted({digest for event in about for digest in address_digests(app, event.recipient or "")})
    job_ids: set[int] = set()
    for start in range(0, len(digests), _DIGESTS_MAX):
        with app.store.read() as connection:
            rows = table.unknown_messages(app.store, connection, digests[start : start + _DIGESTS_MAX])
        job_ids |= {row.job_id for row in rows if reference(row.message_id) in references}
    if job_ids:
        with app.store.begin() as connection:
            resolve_reported(app, connection, sorted(job_ids))


def events_about(app: Effects, connection: Connection, message_ids: Iterable[str]) -> Mapping[str, Sequence[Row[Any]]]:
    """The events that show of these messages that a server has them, in order of arrival. One statement."""
    names = {reference(message_id): message_id for message_id in message_ids}
    events: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in table.evidence(app.store, connection, sorted(names)) if names else ():
        events[names[row.reference]].append(row)
    return events


def reported_recipients(group: Sequence[Row[Any]], events: Collection[Row[Any]]) -> frozenset[int]:
    """The numbers of the open recipients of a message to a group who have it, according to these events."""
    still_open = [recipient for recipient in group if recipient.outcome not in SETTLED]
    named = {event.recipient for event in events}
    if None in named and all(recipient.outcome in _IN_ALL_TRIES for recipient in group):
        return frozenset(recipient.number for recipient in still_open)
    return frozenset(recipient.number for recipient in still_open if recipient.recipient in named)


def reported_results(key: str, numbers: Iterable[int]) -> list[RecipientResult]:
    return [RecipientResult(key, number, "accepted", REPORTED) for number in sorted(numbers)]


def resolve_reported(app: Effects, connection: Connection, job_ids: Sequence[int]) -> None:
    """Close as done what these ended jobs may have sent, where events show that all its recipients have it; of a
    message to a group, record those who do.
    """
    rows = sent.unknown_of_jobs(app.store, connection, job_ids)
    if not rows:
        return
    table.await_writers(app.store, connection)
    events = events_about(app, connection, [row.message_id for row in rows])
    reported = [row for row in rows if row.message_id in events]
    if not reported:
        return
    groups = sent.recipients(app.store, connection, [row.key for row in reported])
    for row in reported:
        about, group = events[row.message_id], groups.get(row.key, ())
        numbers = reported_recipients(group, about)
        if all(recipient.number in numbers or _is_settled(recipient) for recipient in group):
            _mark_done(app, connection, row.job_id, about[-1])
        ledger.record_recipients(app.store, connection, reported_results(row.key, numbers))


def _is_settled(recipient: Row[Any]) -> bool:
    return recipient.outcome in SETTLED or sent.is_forgotten(recipient.recipient)


def _mark_done(app: Effects, connection: Connection, job_id: int, event: Row[Any]) -> None:
    with suppress(JobNotFound, JobStateError):  # its job is still to run, and looks itself; or someone has decided
        resolve_unknown(
            app.store,
            app.job_types,
            app.ledgers,
            job_id,
            "mark-done",
            actor=event.provider,
            reason=f"event {event.kind}",
            connection=connection,
        )
