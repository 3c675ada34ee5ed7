"""What an app calls: write a message, in its own transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.api import insert_known
from effects.app import AnySession, Effects, default
from effects.errors import IdempotencyConflict
from effects.job import NewJob
from effects.retry import OnUnknown
from effects.store.enqueue import reserve_ids
from effects_email import mailbox
from effects_email.address import Recipient, parse_mailbox
from effects_email.attachments import File
from effects_email.content import pack
from effects_email.draft import Draft, NewEmail, draft
from effects_email.message import build
from effects_email.parts import Parts
from effects_email.setup import setup_of
from effects_email.suppression import TRANSACTIONAL, note_override, suppressed
from effects_email.tables import sent
from effects_email.tables.sent import RecipientRow, SentRow

JOB_TYPE = "email.send"
BATCH = 500  # messages written by one statement
SUPPRESSED = "suppressed"


class EmailReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `send_templated_email` gives back. It becomes true when the caller's transaction commits.

    `existing` says that the key was known, and the rest is the first message's. `suppressed` says that all its
    recipients are on the suppression list as of now: it is on record and will not be sent, unless they have left the
    list by the time it is due.
    """

    job_id: int
    key: str
    message_id: str
    existing: bool = False
    suppressed: bool = False


def send_templated_email(
    template: str,
    *,
    to: Recipient | Sequence[Recipient],
    context: Mapping[str, Any],
    event_id: str | None = None,
    key: str | None = None,
    locale: str | None = None,
    category: str | None = None,
    transport: str | None = None,
    attachments: Sequence[File | str | Path] = (),
    headers: Mapping[str, str] | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    on_unknown: OnUnknown | None = None,
    sender: Recipient | None = None,
    group: bool = False,
    cc: Sequence[Recipient] = (),
    bcc: Sequence[Recipient] = (),
    reply_to: Sequence[Recipient] = (),
    despite_suppression: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> EmailReceipt:
    """Render a template and write the message, to be sent once it is committed.

    Args:
        to: one address, a text or an `Address`. A list only with `group`.
        context: what the template may use: at most 256 KiB as JSON.
        event_id: what happened, such as `signup:17`. Together with template and recipient it is the key: the same
            again is the same message. Without it and without `key`, every call is a message of its own.
        key: your own idempotency key, at most 255 characters, shown to operators. The same key with the same words
            gives the first receipt; a newer version of the template is no other word.
        locale: `de` or `de-AT`: the template in exactly this, else in the language alone, else as it is by default.
        category: whose unsubscribes it respects. Default the template's.
        transport: the name of one that is set. Default the template's, else `default`.
        attachments: paths or `File`s; 10 MiB in base64 at most. They must stay until the message has left.
        headers: further headers: those that begin with `X-`, and a few that `effects_email.headers` lists.
        run_at, expires_at: aware; not before, and not after. Default the template's `expires_seconds`.
        on_unknown: what to do where it may have been sent: `repeat_once` after a quarter of an hour (the default),
            `hold` for a person, or `repeat`. Default the template's.
        sender: default the template's, else EFFECTS_EMAIL_FROM.
        group: one message to many, who see each other in To and Cc; at most 100, each with a result of its own.
        cc, bcc: with `group`. Bcc is in no header.
        despite_suppression: send it to suppressed recipients too, and why: a notice that the law demands, say. Kept in
            `effects_email_suppression_log`, for each recipient.
        session: a SQLAlchemy Session or Connection, which is never committed by us: rolled back, or rolled back to a
            savepoint, there was no message. Without one, a transaction of our own.
        effects: the Effects to use; default the process's.

    Returns:
        The receipt. A crash before the commit leaves nothing; after it, the message is sent with the same bytes on
        every try, or ends as a dead, cancelled or unknown one that is on record.

    Raises:
        AddressInvalid: an address is none. EmailInvalid: a header, the context, the key or the subject cannot be.
        AttachmentInvalid: a file is missing or too large.
        TemplateNotFound, TemplateError, RenderingFailed: there is no such template, or a variable is missing.
        ConfigurationError: no folder of templates or no sender is set.
        IdempotencyConflict: the key was used with other words.
        StoreUnavailable: the database is away (without `session`). With a key, calling again is safe.
    """
    email = NewEmail(
        template, to=to, context=context, event_id=event_id, key=key, locale=locale, category=category,
        transport=transport, attachments=attachments, headers=headers, run_at=run_at, expires_at=expires_at,
        on_unknown=on_unknown, sender=sender, group=group, cc=cc, bcc=bcc, reply_to=reply_to,
        despite_suppression=despite_suppression,
    )  # fmt: skip
    return send_templated_emails([email], session=session, effects=effects)[0]


def send_templated_emails(
    emails: Iterable[NewEmail], *, session: AnySession | None = None, effects: Effects | None = None
) -> list[EmailReceipt]:
    """`send_templated_email` for many: all are rendered before the first is written, 500 in four statements.

    Raises:
        As `send_templated_email`. After an IdempotencyConflict nothing of this call is written: it was rolled back
        to a savepoint.
    """
    app = effects or default()
    now = datetime.now(UTC)
    drafts = [draft(app, email, now) for email in emails]
    if not drafts:
        return []
    with app.writing(session, {app.job_types.get(JOB_TYPE).queue}) as connection:
        if len(drafts) == 1:
            return write_drafts(app, connection, drafts)
        with connection.begin_nested():
            return write_drafts(app, connection, drafts)


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it would be. `eml` is its bytes."""

    parts: Parts
    eml: bytes
    template_version: str
    locale: str | None

    def __repr__(self) -> str:
        return "Preview()"


def preview_email(
    template: str,
    *,
    context: Mapping[str, Any],
    locale: str | None = None,
    to: Recipient = "you@example.com",
    sender: Recipient | None = None,
    effects: Effects | None = None,
) -> Preview:
    """Render a template without writing anything; no database is needed.

    Raises:
        As `send_templated_email`.
    """
    app = effects or default()
    setup = setup_of(app)
    if sender is None and setup.settings.sender is None:
        declared = setup.folder.find(template, locale).declared.sender
        sender = parse_mailbox(declared, where="sender") if declared else "sender@example.com"
    email = NewEmail(  # no category: nobody needs a way out of a preview
        template, to=to, context=context, locale=locale, sender=sender, category=TRANSACTIONAL
    )
    made = draft(app, email, datetime.now(UTC))
    return Preview(
        parts=made.parts,
        eml=build(made.parts, {}),
        template_version=made.version.version,
        locale=made.version.locale,
    )


# -- writing ---------------------------------------------------------------------------------------------------------


def write_drafts(app: Effects, connection: Connection, drafts: Sequence[Draft]) -> list[EmailReceipt]:
    """Write rendered messages, 500 in four statements."""
    receipts: list[EmailReceipt] = []
    for start in range(0, len(drafts), BATCH):
        receipts += _write_batch(app, connection, drafts[start : start + BATCH])
    return receipts


def _write_batch(app: Effects, connection: Connection, drafts: Sequence[Draft]) -> list[EmailReceipt]:
    ids = reserve_ids(app.store, connection, len(drafts))
    blocked = _suppressed(app, connection, drafts)
    rows = [_row(app, *one) for one in zip(drafts, ids, blocked, strict=True)]
    free = sent.insert(app.store, connection, list({row.key: row for row in reversed(rows)}.values()))
    first = {row.key: number for number, row in reversed(list(enumerate(rows)))}
    mine = [number for key, number in sorted(first.items(), key=lambda pair: pair[1]) if key in free]
    sent.insert_recipients(app.store, connection, [row for n in mine for row in _recipient_rows(app, drafts[n])])
    _note_overrides(app, connection, [drafts[n] for n in mine])
    insert_known(app, connection, [_job(app, connection, drafts[n]) for n in mine], [ids[n] for n in mine])
    known = {
        n: EmailReceipt(job_id=ids[n], key=rows[n].key, message_id=rows[n].message_id, suppressed=blocked[n])
        for n in mine
    }
    missing = [n for n in range(len(drafts)) if n not in known]
    known.update(_first_receipts(app, connection, {n: drafts[n] for n in missing}) if missing else {})
    return [known[number] for number in range(len(drafts))]


def _suppressed(app: Effects, connection: Connection, drafts: Sequence[Draft]) -> list[bool]:
    """Whether all recipients of each are suppressed, and none may be written to despite that."""
    wanted = [(one.spec, draft.category) for draft in drafts for _, one in draft.parts.recipients()]
    found = iter(suppressed(app, connection, wanted))
    every = [all([next(found) is not None for _ in draft.parts.recipients()]) for draft in drafts]  # noqa: C419 - takes all
    return [held and draft.despite_suppression is None for held, draft in zip(every, drafts, strict=True)]


def _note_overrides(app: Effects, connection: Connection, drafts: Sequence[Draft]) -> None:
    for one in drafts:
        if one.despite_suppression is not None:
            people = [address.spec for _, address in one.parts.recipients()]
            note_override(app, connection, people, actor="app", why=one.despite_suppression)


def _row(app: Effects, one: Draft, job_id: int, blocked: bool) -> SentRow:
    content, sealed = pack(app, one.key, one.content)
    return SentRow(
        key=one.key,
        recipient=mailbox.digest(app, one.parts.to[0].spec),
        template=one.version.name,
        template_version=one.version.version,
        locale=one.version.locale,
        category=one.category,
        transport=one.transport,
        message_id=one.parts.message_id,
        date=one.parts.date,
        content=content,
        sealed=sealed,
        digest=app.keys.digest(one.canonical),
        job_id=job_id,
        outcome=SUPPRESSED if blocked else None,
        despite_suppression=one.despite_suppression,
    )


def _recipient_rows(app: Effects, one: Draft) -> list[RecipientRow]:
    if not one.group:
        return []
    return [
        RecipientRow(key=one.key, number=number, kind=kind, recipient=mailbox.digest(app, address.spec))
        for number, (kind, address) in enumerate(one.parts.recipients())
    ]


def _job(app: Effects, connection: Connection, one: Draft) -> NewJob:
    return NewJob(
        job_type=JOB_TYPE,
        payload={"template": one.version.name, "transport": one.transport},
        key=one.key,
        limit_key=setup_of(app).lanes.key(connection, one.transport, one.parts.to[0].domain),
        run_at=one.run_at,
        expires_at=one.expires_at,
        on_unknown=one.on_unknown,
    )


def _first_receipts(app: Effects, connection: Connection, missing: Mapping[int, Draft]) -> dict[int, EmailReceipt]:
    """The receipts of the messages that hold these keys already."""
    holders = sent.holders(app.store, connection, sorted({one.key for one in missing.values()}))
    receipts = {}
    for number, one in missing.items():
        holder = holders[one.key]
        if holder.digest != app.keys.digest(one.canonical, like=holder.digest):
            raise IdempotencyConflict(
                f"{JOB_TYPE}: the idempotency key {one.key!r} belongs to job {holder.job_id}, a message with other "
                "words; use another key for another message",
                job_id=holder.job_id,
            )
        receipts[number] = EmailReceipt(
            job_id=holder.job_id, key=one.key, message_id=holder.message_id, existing=True,
            suppressed=holder.outcome == SUPPRESSED,
        )  # fmt: skip
    return receipts
