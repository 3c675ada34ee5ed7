"""What became of a message after the provider had taken it, in the one form of all providers (`event_parsers`).

kind           meaning                                      what follows
accepted       the provider has the message                an unknown is known
delivered      the recipient's server took it              soft failures are forgotten
delayed        not yet                                     nothing
bounced_hard   the address takes no mail                   suppressed for 180 days
bounced_soft   this message was not taken                  counted; see `effects_email.suppressions.bounces`
complained     the recipient calls it unwanted             suppressed, forever
unsubscribed   the recipient told the provider to stop     suppressed, forever
failed         the provider gave up, or never sent it      nothing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection

from effects import Effects
from effects.extend import app_of, arguments, moment, moment_or_none
from effects_email.errors import EmailInvalid
from effects_email.evidence import resolve_reported
from effects_email.message.address import address_digest, address_digests
from effects_email.record import AddressFailure
from effects_email.suppressions.bounces import note_delivered, note_failures
from effects_email.suppressions.rows import Reason, new_row, write
from effects_email.tables import events as table
from effects_email.tables.events import ProviderEventRow
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
_FOR_EVER: dict[EventKind, Reason] = {"complained": "complaint", "unsubscribed": "manual"}


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


def take(app: Effects, event: IncomingEvent) -> bool:
    """Keep an event and do what follows from it, in one transaction; whether it was new.

    Then, if a message that it speaks of was *unknown*, and waits for an operator, that is closed as done: the provider
    has it, for every recipient (`evidence`). A crash in between is made good by the provider's repeat.

    Raises:
        StoreUnavailable: the database is unavailable; nothing was written.
    """
    with app.store.begin() as connection:
        new = table.insert(app.store, connection, _row(app, event))
        if new and event.recipient is not None:
            _follow(app, connection, event, event.recipient)
    _resolve(app, event)
    return new


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


def _follow(app: Effects, connection: Connection, event: IncomingEvent, recipient: str) -> None:
    source, code = event.provider, event.code or event.kind
    match event.kind:
        case "delivered":
            note_delivered(app, connection, [recipient], source=source)
        case "bounced_hard":
            _fail(app, connection, AddressFailure(address=recipient, kind="hard", code=code), source)
        case "bounced_soft":
            _fail(app, connection, AddressFailure(address=recipient, kind="soft", code=code), source)
        case "complained" | "unsubscribed":
            reason = _FOR_EVER[event.kind]
            row = new_row(app, recipient, reason, until=None, source=source, actor=source, why=code)
            write(app, connection, [row])


def _fail(app: Effects, connection: Connection, failure: AddressFailure, source: str) -> None:
    note_failures(app, connection, [failure], source=source)


def _resolve(app: Effects, event: IncomingEvent) -> None:
    if event.reference is None or event.recipient is None or event.kind == "failed":
        return
    with app.store.read() as connection:
        rows = table.unknown_messages(app.store, connection, address_digests(app, event.recipient))
    job_ids = {row.job_id for row in rows if reference(row.message_id) == event.reference}
    if job_ids:
        with app.store.begin() as connection:
            resolve_reported(app, connection, sorted(job_ids))
