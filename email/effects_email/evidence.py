"""What events prove of a message that may have been sent: that a server has it, for the recipients whom they name.

A message to one recipient is proven by any event about it. One to a group is sent again to those alone who lack it, so
that an event speaks for whom it names: it may be older than the try that left the doubt. An event that names no
recipient speaks for all of them, where all went out in the same tries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row

from effects import JobNotFound, JobStateError
from effects.extend import resolve_unknown
from effects_email.classify import FINAL
from effects_email.record import RecipientResult
from effects_email.tables import events as table
from effects_email.tables import ledger, sent
from effects_email.transport.http_api.fields import reference

if TYPE_CHECKING:
    from effects import Effects

REPORTED = "reported"  # the code of a recipient whom an event shows to have the message
SETTLED = (*FINAL, "suppressed")  # outcomes of a recipient who is not written to again
_IN_ALL_TRIES = (None, "unknown", "refused_recipient", "refused_message", "suppressed")


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
