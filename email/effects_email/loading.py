"""What a claimed batch is to send, fetched in few statements; and what a retry is to send."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Row

from effects import JobStateError, KeyUnavailable
from effects.extend.jobs import OnUnknown
from effects_email.classify import PASSED_ON
from effects_email.events import SETTLED, events_about, reported_recipients
from effects_email.message.source import FORGOTTEN, Address, MessageSource, StoredContent, open_content, seal_content
from effects_email.suppression import suppressed
from effects_email.tables import sent

if TYPE_CHECKING:
    from effects import Effects


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt is to send. `open` are the recipients that no earlier try has settled, by their number; of a
    message that may have been delivered, without those who have it according to events, which are `reported`.
    """

    job_id: int
    key: str
    category: str | None
    transport: str
    source: MessageSource | None  # None: no longer kept
    unopened: KeyUnavailable | None = None  # why the source, or who is suppressed, cannot be read
    unknown: bool  # an earlier try may have delivered it
    repeats: bool  # and it was one of this job's, not of one that an operator sent again
    hold: bool  # what may have been delivered is left to a person
    sha256: str | None
    released_seconds: float | None  # since the first release
    group: bool
    open: Mapping[int, Address]
    some_accepted: bool
    suppressed: frozenset[int]
    despite_suppression: bool  # the caller gave a reason to write to them anyway
    held_in: str | None = None  # the run of refusals in which it was last held back
    used_transport: str | None = None  # by which its newest try went
    passed_on: bool = False  # that one surely did not send it, and the next one is to
    reported: frozenset[int] = frozenset()

    @property
    def is_reported(self) -> bool:
        """Whether events show that everybody has it who is to get it."""
        return bool(self.reported) and self.open.keys() <= self.suppressed

    @property
    def last_transport(self) -> str:
        """By which its newest try went; its own before there was one."""
        return self.used_transport or self.transport

    def __repr__(self) -> str:
        return f"Message(key={self.key!r})"


def load_messages(
    app: Effects, connection: Connection, policies: Mapping[int, OnUnknown], repeats: Collection[int]
) -> dict[int, Message]:
    """The messages of these jobs, their recipients and who of them is suppressed, in three queries; and what providers'
    events say of those that an earlier try may have delivered, in a fourth.

    Args:
        policies: job id → what follows where the message may have been delivered.
        repeats: the jobs of which an earlier attempt may have delivered it.
    """
    rows = sent.load(app.store, connection, list(policies))
    groups = sent.recipients(app.store, connection, [row.key for row in rows])
    messages = [
        _message(app, row, groups.get(row.key), repeats=row.job_id in repeats, hold=policies[row.job_id] == "hold")
        for row in rows
    ]
    messages = _without_reported(app, connection, messages, groups)
    try:
        blocked = _suppressed(app, connection, messages)
    except KeyUnavailable as error:
        blocked = {}
        messages = [
            message if message.despite_suppression else msgspec.structs.replace(message, unopened=error)
            for message in messages
        ]
    return {
        message.job_id: msgspec.structs.replace(message, suppressed=blocked.get(message.job_id, frozenset()))
        for message in messages
    }


def _message(app: Effects, row: Any, group: Sequence[Any] | None, *, repeats: bool, hold: bool) -> Message:
    content, unopened = None, None
    try:
        content = open_content(app, row.key, row.content, row.sealed)
    except KeyUnavailable as error:
        unopened = error
    everybody = dict(enumerate(address for _, address in content.source.recipients())) if content is not None else {}
    settled = {recipient.number for recipient in group or () if recipient.outcome in SETTLED}
    return Message(
        job_id=row.job_id,
        key=row.key,
        category=row.category,
        transport=row.transport,
        source=content.source if content is not None else None,
        unopened=unopened,
        unknown=row.state == "unknown",
        repeats=repeats,
        hold=hold,
        sha256=row.bytes_sha256,
        released_seconds=row.released_seconds,
        group=group is not None,
        open={
            number: address for number, address in everybody.items() if number not in settled and address != FORGOTTEN
        },
        some_accepted=any(recipient.outcome == "accepted" for recipient in group or ()),
        suppressed=frozenset(),
        despite_suppression=row.despite_suppression is not None,
        held_in=row.held_in,
        used_transport=row.used_transport,
        passed_on=row.outcome == PASSED_ON,
    )


def _without_reported(
    app: Effects, connection: Connection, messages: Sequence[Message], groups: Mapping[str, Sequence[Any]]
) -> list[Message]:
    """Of those that may have been delivered, leave out the recipients who have them according to events."""
    unsure = {
        message.key: message.source.message_id
        for message in messages if message.unknown and message.source is not None
    }  # fmt: skip
    events = events_about(app, connection, unsure.values())
    return [
        _less(message, groups.get(message.key), events.get(unsure.get(message.key, ""), ())) for message in messages
    ]


def _less(message: Message, group: Sequence[Any] | None, events: Sequence[Any]) -> Message:
    """The message without the recipients of whom these events speak."""
    if not events:
        return message
    reported = frozenset({0}) if group is None else reported_recipients(group, events)
    return msgspec.structs.replace(
        message,
        open={number: address for number, address in message.open.items() if number not in reported},
        some_accepted=message.some_accepted or bool(reported),
        reported=reported,
    )


def _suppressed(app: Effects, connection: Connection, messages: Sequence[Message]) -> dict[int, frozenset[int]]:
    """Job id → the numbers of its recipients that are on the list."""
    asking = [message for message in messages if not message.despite_suppression]
    recipients = [(message, number, address) for message in asking for number, address in message.open.items()]
    reasons = suppressed(app, connection, [(address.spec, message.category) for message, _, address in recipients])
    blocked: dict[int, set[int]] = {}
    for (message, number, _), reason in zip(recipients, reasons, strict=True):
        if reason is not None:
            blocked.setdefault(message.job_id, set()).add(number)
    return {job_id: frozenset(numbers) for job_id, numbers in blocked.items()}


# -- before a retry --------------------------------------------------------------------------------------------


def prepare_retry(app: Effects, connection: Connection, key: str, *, done: bool) -> None:
    """Before a message is sent as a new job: see that it is kept; one that was delivered gets a new identity.

    Receivers drop a delivered message as a duplicate of itself. One to a group goes to all of its recipients again.

    Raises:
        JobStateError: its content is deleted.
        KeyUnavailable: of one that was delivered, the content cannot be opened.
    """
    row = sent.find(app.store, connection, key)
    if row is None:
        return
    if row.content is None and row.sealed is None:
        raise JobStateError(f"the content of {key} is deleted: write a new message", code="content_deleted")
    if not done:
        return
    content = open_content(app, key, row.content, row.sealed)
    assert content is not None
    replace_source(app, connection, row, content, renewed(content.source))
    sent.reopen_recipients(app.store, connection, key)


def renewed(source: MessageSource) -> MessageSource:
    """The same content as another message, of now."""
    message_id = f"{uuid.uuid4().hex}@{source.sender.domain}"
    return msgspec.structs.replace(source, message_id=message_id, date=datetime.now(UTC).replace(microsecond=0))


def replace_source(
    app: Effects,
    connection: Connection,
    row: Row[Any],
    content: StoredContent,
    source: MessageSource,
    version: str | None = None,
    locale: str | None = None,
) -> None:
    """Write what a message is to be from now on; by default of the same version and locale of its template."""
    clear, sealed = seal_content(app, row.key, StoredContent(source, content.context))
    sent.replace(
        app.store, connection, row.key, content=clear, sealed=sealed, version=version or row.template_version,
        locale=row.locale if version is None else locale, message_id=source.message_id, date=source.date.timestamp(),
    )  # fmt: skip
