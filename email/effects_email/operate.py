"""What an operator does with messages: look one up, send one again, try a transport."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Row

from effects.app import Effects
from effects.errors import ConfigurationError, JobNotFound, KeyUnavailable
from effects.store import actions
from effects.store.actions import Requeued
from effects_email import mailbox
from effects_email.address import Recipient, recipient
from effects_email.content import Content, pack, unpack
from effects_email.errors import EmailNotFound
from effects_email.events import Heard, heard_of
from effects_email.job import EmailSend
from effects_email.message import build
from effects_email.parts import Parts
from effects_email.settings import DEFAULT_TRANSPORT
from effects_email.setup import setup_of
from effects_email.staging import redirected
from effects_email.tables import sent
from effects_email.transport.base import Dispatch, Letter

LIST_MAX = 100
_TEST_SECONDS = 120.0


class RecipientRecord(msgspec.Struct, frozen=True):
    """One recipient of a group message. `address` is None where the content is no longer kept or cannot be opened."""

    kind: str
    address: str | None
    outcome: str | None
    code: str | None


class EmailRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is on record. What was personal of it is None once its content is forgotten."""

    key: str
    job_id: int
    state: str
    outcome: str | None
    to: str | None
    subject: str | None
    template: str
    template_version: str
    locale: str | None
    category: str | None
    transport: str
    message_id: str
    date: datetime
    tries: int
    reply_code: int | None
    reply: str | None
    provider_id: str | None
    bytes_sha256: str | None
    created_at: datetime
    updated_at: datetime
    recipients: tuple[RecipientRecord, ...] = ()
    heard: tuple[Heard, ...] = ()  # what providers said of it afterwards; of one message, not of a list

    def __repr__(self) -> str:
        return f"EmailRecord(key={self.key!r}, state={self.state!r})"


def get_email(app: Effects, name: str) -> EmailRecord:
    """A message by its key, its Message-ID or the id of its job.

    Raises:
        EmailNotFound: there is none.
    """
    with app.store.read() as connection:
        row = _found(app, connection, name)
        group = sent.recipients(app.store, connection, [row.key]).get(row.key, [])
    return replace(_record(app, row, group), heard=tuple(heard_of(row.message_id, effects=app)))


def emails_to(app: Effects, address: str, limit: int = LIST_MAX) -> list[EmailRecord]:
    """Messages to this address (of group messages: the first recipient), newest first."""
    with app.store.read() as connection:
        rows = sent.to_recipient(app.store, connection, mailbox.digests(app, address), limit)
    return [_record(app, row, []) for row in rows]


def requeue_email(
    app: Effects,
    name: str,
    *,
    actor: str,
    reason: str | None = None,
    render_again: bool = False,
    again: bool = False,
) -> Requeued:
    """Send an ended message as a new job, with the same bytes; with `render_again` from the newest template.

    Rendered again, and where it was delivered, it is another message: it has a new Message-ID and Date. A message to a
    group goes to those who do not have it yet; with `again` to everybody.

    Args:
        again: although it was sent, or may have been.

    Raises:
        EmailNotFound: there is none of this name.
        JobNotFound: it has not ended, or it was sent (or may have been) and `again` was not given.
        TemplateError, ConfigurationError: it cannot be rendered again; says why.
    """
    with app.store.begin() as connection:
        row = _found(app, connection, name)
        if row.state == "unknown" and not again:
            raise JobNotFound(f"{row.key} may have been sent: only --again sends it once more")
        content = unpack(app, row.key, row.content, row.sealed)
        if content is None:
            raise EmailNotFound(f"what {row.key} said is no longer kept: write a new message")
        if render_again or row.state == "done":
            _renew(app, connection, row, content, render=render_again)
        if again:
            sent.reopen_recipients(app.store, connection, row.key)
        made = actions.requeue_within(
            app.store, connection, app.ledgers, row.job_id, actor=actor, reason=reason, again=again
        )
    app.hints.send({made.queue})
    return made


def _renew(app: Effects, connection: Connection, row: Row[Any], content: Content, *, render: bool) -> None:
    """Make another message of it. One that was delivered would be taken for its own double."""
    now = datetime.now(UTC).replace(microsecond=0)
    parts = replace(content.parts, message_id=f"{uuid.uuid4().hex}@{content.parts.sender.domain}", date=now)
    version, locale = row.template_version, row.locale
    if render:
        setup = setup_of(app)
        newest = setup.folder.find(row.template, row.locale)
        rendered = setup.renderer.render(newest, msgspec.json.decode(content.context))
        parts = replace(parts, subject=rendered.subject, text=rendered.text, html=rendered.html)
        version, locale = newest.version, newest.locale
    clear, sealed = pack(app, row.key, Content(parts, content.context))
    sent.replace(
        app.store, connection, row.key, content=clear, sealed=sealed, version=version, locale=locale,
        message_id=parts.message_id, date=now.timestamp(),
    )  # fmt: skip


def send_test_email(app: Effects, to: Recipient, transport: str = DEFAULT_TRANSPORT) -> Dispatch:
    """Send a line of text at once, past the queue, and give what the peer said. EFFECTS_EMAIL_REDIRECT holds.

    Raises:
        AddressInvalid: `to` is no address.
        ConfigurationError: mail is held, no sender is set, or the transport is not.
    """
    job_type = app.job_types.get(EmailSend.name)
    settings = setup_of(app).settings
    if not isinstance(job_type, EmailSend):
        raise ConfigurationError("email.send is another job type here: it has no transports to try")
    if settings.email_hold:
        raise ConfigurationError("mail is held: EFFECTS_EMAIL_HOLD is set")
    if settings.sender is None:
        raise ConfigurationError("set EFFECTS_EMAIL_FROM, such as 'Shop <hello@shop.example>'")
    parts = Parts(
        message_id=f"{uuid.uuid4().hex}@{settings.sender.domain}",
        date=datetime.now(UTC).replace(microsecond=0),
        sender=settings.sender,
        to=(recipient(to, where="to"),),
        subject="A test of effects",
        text=f"This came by the mail transport {transport!r} of effects.\n",
    )
    if settings.redirect is not None:
        parts = redirected(parts, settings.redirect)
    letter = Letter(
        sender=parts.sender.spec, recipients=(parts.to[0].spec,), data=build(parts, {}), parts=parts,
        message_id=parts.message_id, key=parts.message_id, utf8=not parts.to[0].local.isascii(),
    )  # fmt: skip
    return job_type.transports.get(transport).send(letter, release=lambda: None, seconds=_TEST_SECONDS)


# -- from rows -------------------------------------------------------------------------------------------------------


def _found(app: Effects, connection: Connection, name: str) -> Row[Any]:
    row = sent.find(app.store, connection, name)
    if row is None:
        raise EmailNotFound(f"there is no message of the key, Message-ID or job {name!r}")
    return row


def _record(app: Effects, row: Row[Any], group: Sequence[Row[Any]]) -> EmailRecord:
    try:
        content = unpack(app, row.key, row.content, row.sealed)
    except KeyUnavailable:
        content = None
    people = [one.spec for _, one in content.parts.recipients()] if content is not None else []
    facts = row._mapping
    names = set(EmailRecord.__struct_fields__) & set(map(str, facts)) - {"date", "created_at", "updated_at"}
    return EmailRecord(
        **{name: facts[name] for name in names},
        to=people[0] if people else None,
        subject=content.parts.subject if content is not None else None,
        date=_moment(row.date),
        created_at=_moment(row.created_at),
        updated_at=_moment(row.updated_at),
        recipients=tuple(
            RecipientRecord(one.kind, people[one.number] if people else None, one.outcome, one.code) for one in group
        ),
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
