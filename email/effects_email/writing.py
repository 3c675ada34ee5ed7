"""Writing rendered messages: ledger rows, recipients and jobs, in few statements. A known key gives what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from effects.api import insert_known
from effects.app import Effects
from effects.errors import IdempotencyConflict
from effects.job import NewJob
from effects.store.enqueue import reserve_ids
from effects_email import mailbox
from effects_email.content import pack
from effects_email.draft import Draft
from effects_email.setup import setup_of
from effects_email.suppression import note_override, suppressed
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
    first = {row.key: number for number, row in reversed(list(enumerate(rows)))}
    # In the order of the keys: of two transactions with the same keys one waits for the other, and never both.
    free = sent.insert(app.store, connection, [rows[first[key]] for key in sorted(first)])
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
        event_id=one.event_id,
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
