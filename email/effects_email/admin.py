"""What an operator does with messages: list them, look one up, send one again, try a transport."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Row

from effects import ConfigurationError, Effects, KeyUnavailable
from effects.extend.actions import AuditAction, Requeued, note, requeue
from effects.extend.rows import record
from effects.extend.sql import ANY_TIME, Window, set_filters
from effects.extend.text import moment
from effects_email.errors import EmailNotFound, TemplateError
from effects_email.events import Fate, ProviderEvent, fate_of, fates, read_events
from effects_email.jobs.outgoing import redirected
from effects_email.jobs.send import EmailSend
from effects_email.loading import renewed, replace_source
from effects_email.message.address import Recipient, address_digests, recipient, spec_of
from effects_email.message.mime import build
from effects_email.message.source import MessageSource, StoredContent, open_content
from effects_email.settings import DEFAULT_TRANSPORT
from effects_email.state import state_of
from effects_email.tables import lists, sent
from effects_email.tables.lists import EmailTry, read_tries
from effects_email.templates.folder import NO_TEMPLATE
from effects_email.transport.base import OutgoingMessage, SendResult

_TEST_SECONDS = 120.0
_TEST = AuditAction("transport", "test")
_BATCH = 500  # messages whose events one statement looks up
# From the key of a message and a number of rows to these and the key of the last one searched, where older ones remain.
_Read: TypeAlias = Callable[[str | None, int], tuple[Sequence[Row[Any]], str | None]]


class RecipientRecord(msgspec.Struct, frozen=True):
    """One recipient of a group message. `address` is None where the content is no longer kept or cannot be opened."""

    kind: str
    address: str | None
    outcome: str | None
    code: str | None


class EmailRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded message. Personal fields are None once its content is deleted."""

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
    used_transport: str | None  # of the newest try: with failover it need not be `transport`
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
    attempts: tuple[EmailTry, ...] = ()  # of its newest job, the newest first; a hundred at most
    fate: Fate | None = None  # after a server took it, as far as anybody reported; only for a single message
    events: tuple[ProviderEvent, ...] = ()  # later events: of providers, bounces, complaints; likewise

    def __repr__(self) -> str:
        return f"EmailRecord(key={self.key!r}, state={self.state!r})"


def get_email(app: Effects, name: str) -> EmailRecord:
    """A message by its key, its Message-ID or the id of its job.

    Raises:
        EmailNotFound: no such message.
    """
    with app.store.read() as connection:
        row = _message_row(app, connection, name)
        group = sent.recipients(app.store, connection, [row.key]).get(row.key, [])
        attempts = read_tries(app.store, connection, row.job_id)
        events = tuple(read_events(app, connection, row.message_id))
    return replace(
        _record(app, row, group), attempts=attempts, events=events, fate=fate_of(event.kind for event in events)
    )


def key_of_job(app: Effects, job_id: int) -> str:
    """The key of the message of this job, which may have been requeued since; no other is meant, whatever its key.

    Raises:
        EmailNotFound: no such message.
    """
    with app.store.read() as connection:
        row = sent.find_by_job(app.store, connection, job_id)
    if row is None:
        raise EmailNotFound(f"there is no message of job {job_id}")
    return str(row.key)


def requeue_email(
    app: Effects,
    name: str,
    *,
    actor: str,
    reason: str | None = None,
    render_again: bool = False,
    confirm_unknown: bool = False,
    confirm_done: bool = False,
) -> Requeued:
    """Send an ended message as a new job, with the same bytes; with `render_again` from the newest template.

    Rendered again, and where it was delivered, it is another message: it has a new Message-ID and Date. A message to a
    group goes to those who do not have it yet; once it was sent, to all of them.

    Args:
        confirm_unknown: even if it may have been sent.
        confirm_done: even if it was sent.

    Raises:
        EmailNotFound: no message has this name.
        JobStateError: it has not ended, or it was sent (or may have been) and that was not confirmed; see
            `effects.store.effects.requeue`.
        TemplateError, ConfigurationError: it cannot be rendered again.
    """
    with app.store.begin() as connection:
        row = _message_row(app, connection, name)
        content = open_content(app, row.key, row.content, row.sealed)
        if content is None:
            raise EmailNotFound(f"the content of {row.key} is deleted: write a new message")
        if render_again:
            _render_again(app, connection, row, content)
        requeued = requeue(
            app.store, app.job_types, row.job_id, confirm_unknown=confirm_unknown, confirm_done=confirm_done,
            actor=actor, reason=reason, connection=connection,
        )  # fmt: skip
    app.notifier.send({requeued.queue})
    return requeued


def _render_again(app: Effects, connection: Connection, row: Row[Any], content: StoredContent) -> None:
    if row.template == NO_TEMPLATE:
        raise TemplateError(f"the message has no template: `effects retry {shlex.quote(row.key)}` sends the same bytes")
    state = state_of(app)
    newest = state.folder.find(row.template, row.locale)
    rendered = state.renderer.render(newest, msgspec.json.decode(content.context))
    source = replace(renewed(content.source), subject=rendered.subject, text=rendered.text, html=rendered.html)
    replace_source(app, connection, row, content, source, newest.version, newest.locale)


def send_test_email(
    app: Effects, to: Recipient, transport: str = DEFAULT_TRANSPORT, *, actor: str = "app", reason: str | None = None
) -> SendResult:
    """Send a line of text at once, without the queue, and return the response. EFFECTS_EMAIL_REDIRECT applies.

    Args:
        actor, reason: who and why, for the audit log. Written before it is sent: a crash leaves the entry.

    Raises:
        AddressInvalid: `to` is no address.
        ConfigurationError: mail is held, no sender is set, or the transport is not.
    """
    job_type = app.job_types.get(EmailSend.name)
    settings = state_of(app).settings
    if not isinstance(job_type, EmailSend):
        raise ConfigurationError("email.send is another job type here: it has no transports to try")
    if settings.email_hold:
        raise ConfigurationError("mail is held: EFFECTS_EMAIL_HOLD is set")
    if settings.sender is None:
        raise ConfigurationError("set EFFECTS_EMAIL_FROM, such as 'Shop <hello@shop.example>'")
    source = MessageSource(
        message_id=f"{uuid.uuid4().hex}@{settings.sender.domain}",
        date=datetime.now(UTC).replace(microsecond=0),
        sender=settings.sender,
        to=(recipient(to, where="to"),),
        subject="A test of effects",
        text=f"This came by the mail transport {transport!r} of effects.\n",
    )
    if settings.redirect is not None:
        source = redirected(source, settings.redirect)
    sender = settings.return_path or source.sender
    data = state_of(app).signer.sign(build(source, {}), source.sender.domain, source.date)
    outgoing = OutgoingMessage(
        sender=sender.spec, recipients=(source.to[0].spec,), data=data, source=source,
        message_id=source.message_id, key=source.message_id, utf8=not source.to[0].local.isascii(),
    )  # fmt: skip
    chosen = job_type.transports.get(transport)
    with app.store.begin() as connection:
        note(app.store, connection, _TEST, transport, actor=actor, reason=reason)
    return chosen.send(outgoing, release=lambda: None, seconds=_TEST_SECONDS)


# -- from rows -------------------------------------------------------------------------------------------------------


def _message_row(app: Effects, connection: Connection, name: str) -> Row[Any]:
    row = sent.find(app.store, connection, name)
    if row is None:
        raise EmailNotFound(f"there is no message of the key, Message-ID or job {name!r}")
    return row


def _record(app: Effects, row: Row[Any], group: Sequence[Row[Any]]) -> EmailRecord:
    try:
        content = open_content(app, row.key, row.content, row.sealed)
    except KeyUnavailable:
        content = None
    people = [address.spec for _, address in content.source.recipients()] if content is not None else []
    facts = row._mapping
    names = set(EmailRecord.__struct_fields__) & set(map(str, facts)) - {"date", "created_at", "updated_at"}
    return EmailRecord(
        **{name: facts[name] for name in names},
        to=people[0] if people else None,
        subject=content.source.subject if content is not None else None,
        date=moment(row.date),
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
        recipients=tuple(
            RecipientRecord(
                recipient.kind, people[recipient.number] if people else None, recipient.outcome, recipient.code
            )
            for recipient in group
        ),
    )


class EmailSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a list: nothing personal, nothing that a key opens.

    `state`: intended, released, done, refused, unknown or abandoned. `outcome`, `reply_code`: of the newest attempt.
    `fate`: after a server took it, as far as anybody reported: delivered, bounced or complained.
    """

    key: str
    job_id: int
    state: str
    fate: Fate | None
    outcome: str | None
    template: str
    transport: str
    tries: int
    reply_code: int | None
    created_at: datetime


class EmailPage(msgspec.Struct, frozen=True):
    """Some messages, and the `before` of the next page: None at the end.

    `more`: further ones match; otherwise older ones merely remain to be searched.
    """

    emails: list[EmailSummary]
    next_before: str | None = None
    more: bool = False


def list_emails(
    app: Effects,
    *,
    address: Recipient | None = None,
    key: str | None = None,
    status: str | None = None,
    fate: Fate | None = None,
    window: Window = ANY_TIME,
    before: str | None = None,
    limit: int = 50,
) -> EmailPage:
    """List messages, newest first. By status or fate, without an address, a page searches 10,000 messages at most.

    Args:
        address: only those to this address (of group messages: the first recipient).
        status: of the effect, such as `done`. Default any.
        fate: `delivered`, `bounced` or `complained`, as the latest reports say. Default any, and those of which nothing
            was reported.
        window: when they were created.
        before: the key of a message; only older ones: the next page.
        limit: at most so many.

    Raises:
        AddressInvalid: `address` is no address.
        EmailNotFound: no message has the key `before`.
    """
    digests = None if address is None else address_digests(app, spec_of(address))
    filters = {"key": key, "state": status, **window.parameters()}
    with app.store.read() as connection:
        if before is not None and not lists.exists(app.store, connection, before):
            raise EmailNotFound(f"there is no message of the key {before!r}")

        def read(before: str | None, size: int) -> tuple[Sequence[Row[Any]], str | None]:
            chosen = set_filters({**filters, "before": before})
            if digests is None:
                return lists.messages(app.store, connection, chosen, limit=size)
            return lists.messages_to(app.store, connection, digests, chosen, limit=size), None

        if fate is None:
            rows, searched_to = read(before, limit + 1)
            by_message = fates(app, connection, [row.message_id for row in rows])
        else:
            rows, searched_to = _of_fate(app, connection, read, fate, before, limit + 1)
            by_message = {row.message_id: fate for row in rows}
    emails = [_summary(row, by_message.get(row.message_id)) for row in rows[:limit]]
    return EmailPage(emails, emails[-1].key if len(rows) > limit else searched_to, more=len(rows) > limit)


def _of_fate(
    app: Effects, connection: Connection, read: _Read, fate: Fate, before: str | None, size: int
) -> tuple[Sequence[Row[Any]], str | None]:
    rows: list[Row[Any]] = []
    for _ in range(max(lists.SPAN // _BATCH, 1)):
        batch, searched_to = read(before, _BATCH)
        by_message = fates(app, connection, [row.message_id for row in batch])
        rows += [row for row in batch if by_message.get(row.message_id) == fate]
        if len(rows) >= size:
            return rows[:size], None
        if len(batch) < _BATCH:
            return rows, searched_to
        before = batch[-1].key
    return rows, before


def _summary(row: Row[Any], fate: Fate | None) -> EmailSummary:
    return record(EmailSummary, row, fate=fate)
