"""What became of a message after the provider had taken it: events as all providers' are after `readings` read them.

kind           what it says                                what follows
accepted       the provider has the message                an unknown is known
delivered      the recipient's server took it              soft failures are forgotten
delayed        not yet                                     nothing
bounced_hard   the address takes no mail                   suppressed for 180 days
bounced_soft   this message was not taken                  counted; see `effects_email.bounces`
complained     the recipient calls it unwanted             suppressed, for ever
unsubscribed   the recipient told the provider to stop     suppressed, for ever
failed         the provider gave up, or never sent it      nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection

from effects.app import Effects, default
from effects.errors import JobNotFound
from effects.store import dead
from effects_email import mailbox
from effects_email.bounces import Failure, note_delivered, note_failures
from effects_email.suppression_rows import Reason, new_row, write
from effects_email.tables import events as table
from effects_email.tables.events import EventRow
from effects_email.transport.fields import reference

EventKind: TypeAlias = Literal[
    "accepted", "delivered", "delayed", "bounced_hard", "bounced_soft", "complained", "unsubscribed", "failed"
]
_FOR_EVER: dict[EventKind, Reason] = {"complained": "complaint", "unsubscribed": "manual"}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `recipient` is None where it does not say which of several recipients it is about."""

    provider: str
    event_id: str
    kind: EventKind
    code: str | None
    reference: str | None
    provider_id: str | None
    recipient: str | None
    at: datetime | None

    def __repr__(self) -> str:
        return f"Event({self.provider!r}, {self.event_id!r}, {self.kind!r})"


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider said of a message, and when."""

    provider: str
    kind: EventKind
    code: str | None
    at: datetime | None
    heard_at: datetime


def take(app: Effects, event: Event) -> bool:
    """Keep an event and do what follows from it, in one transaction; whether it was new.

    Then, if a message that it speaks of was *unknown*, and waits for a person, that is closed as done: the provider
    has it. A crash in between is made good by the provider's repeat.

    Raises:
        StoreUnavailable: the database is away; nothing was written.
    """
    with app.store.begin() as connection:
        new = table.insert(app.store, connection, _row(app, event))
        if new and event.recipient is not None:
            _follow(app, connection, event, event.recipient)
    _resolve(app, event)
    return new


def taken(app: Effects, connection: Connection, message_ids: Iterable[str]) -> set[str]:
    """Which of these messages a provider has, as its events say, whatever became of our request. One statement."""
    names = {reference(one): one for one in message_ids}
    found = table.referenced(app.store, connection, sorted(names)) if names else set()
    return {names[one] for one in found}


def heard_of(message_id: str, *, limit: int = 100, effects: Effects | None = None) -> list[Heard]:
    """What providers said of a message, in the order in which it was heard; at most `limit`."""
    app = effects or default()
    with app.store.read() as connection:
        rows = table.of(app.store, connection, reference(message_id), limit)
    return [
        Heard(
            provider=row.provider, kind=row.kind, code=row.code,
            at=None if row.at is None else datetime.fromtimestamp(row.at, UTC),
            heard_at=datetime.fromtimestamp(row.created_at, UTC),
        )
        for row in rows
    ]  # fmt: skip


def _row(app: Effects, event: Event) -> EventRow:
    return EventRow(
        provider=event.provider,
        event_id=event.event_id,
        kind=event.kind,
        code=event.code,
        reference=event.reference,
        provider_id=event.provider_id,
        recipient=mailbox.digest(app, event.recipient) if event.recipient is not None else None,
        at=event.at.timestamp() if event.at is not None else None,
    )


def _follow(app: Effects, connection: Connection, event: Event, recipient: str) -> None:
    source, code = event.provider, event.code or event.kind
    match event.kind:
        case "delivered":
            note_delivered(app, connection, [recipient], source=source)
        case "bounced_hard":
            _fail(app, connection, Failure(address=recipient, kind="hard", code=code), source)
        case "bounced_soft":
            _fail(app, connection, Failure(address=recipient, kind="soft", code=code), source)
        case "complained" | "unsubscribed":
            reason = _FOR_EVER[event.kind]
            row = new_row(app, recipient, reason, until=None, source=source, actor=source, why=code)
            write(app, connection, [row])


def _fail(app: Effects, connection: Connection, failure: Failure, source: str) -> None:
    note_failures(app, connection, [failure], source=source)


def _resolve(app: Effects, event: Event) -> None:
    if event.reference is None or event.recipient is None or event.kind == "failed":
        return
    with app.store.read() as connection:
        rows = table.unknown_messages(app.store, connection, mailbox.digests(app, event.recipient))
    for job_id in _jobs(event.reference, [(row.message_id, row.job_id) for row in rows]):
        with suppress(JobNotFound):  # its job is still to run, and looks for events itself; or somebody has decided
            dead.resolve(
                app.store, app.ledgers, job_id, "mark-done", actor=event.provider, reason=f"event {event.kind}"
            )


def _jobs(wanted: str, rows: Sequence[tuple[str, int]]) -> list[int]:
    return [job_id for message_id, job_id in rows if reference(message_id) == wanted]
