"""Writing rendered messages: ledger rows, recipients and jobs, in few statements. A known key gives what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, NewJob
from effects.extend.jobs import insert_one_intended, insert_reserved, reserve_jobs
from effects.extend.ledger import IdempotentWriter, KeyHolder, write_once
from effects.extend.sql import as_json
from effects_email.message import attachments
from effects_email.message.address import address_digest, address_digests
from effects_email.message.source import seal_content
from effects_email.request import RenderedEmail
from effects_email.state import state_of
from effects_email.suppression import digest_key_missing, note_override, suppressed
from effects_email.tables import sent
from effects_email.tables.sent import RecipientRow, SentRow

JOB_TYPE = "email.send"
BATCH = 500  # messages written by one statement
SUPPRESSED = "suppressed"


class EmailReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `send_templated_email` gives back. It becomes true when the caller's transaction commits.

    `existing`: the key was already used, and the rest is the first message's. `suppressed` says that all its
    recipients are on the suppression list as of now: it is on record and will not be sent, unless they have left the
    list by the time it is due.
    """

    job_id: int
    key: str
    message_id: str
    existing: bool = False
    suppressed: bool = False


def write_messages(app: Effects, connection: Connection, messages: Sequence[RenderedEmail]) -> list[EmailReceipt]:
    """Write rendered messages: one by itself in one statement on PostgreSQL, and otherwise 500 in four.

    A statement shows whether any key or recipient needs a closer look: a suppressed address, or a key that was derived
    before there was a `digest` key.

    Raises:
        IdempotencyConflict: a key is taken by other content.
        KeyUnavailable: whether a message was written before, or its recipient is suppressed, cannot be told without the
            `digest` key, which was set when those rows were written.
    """
    looked_up = _looked_up(app, messages)
    if len(messages) == 1 and _has_one_row(messages[0]):
        receipt = _write_ordinary(app, connection, messages[0], looked_up)
        if receipt is not None:
            return [receipt]
    ordinary = sent.is_ordinary(app.store, connection, looked_up, keyed=app.keys.digests_are_keyed)
    if not ordinary:
        messages = _with_stored_keys(app, connection, messages)
    return write_once(app.keys, connection, messages, _MessageWriter(app, connection, ordinary=ordinary), batch=BATCH)


def _has_one_row(message: RenderedEmail) -> bool:
    """Whether nothing but its row in the ledger, and its job, is written of it."""
    return not message.group and not message.files and message.despite_suppression is None


def _write_ordinary(
    app: Effects, connection: Connection, message: RenderedEmail, looked_up: Mapping[str, str]
) -> EmailReceipt | None:
    """Write a message that needs no closer look and whose key is free; None of another one."""
    row, job = _row(app, message, blocked=False), _job(app, connection, message)
    insert = sent.insert_ordinary if app.keys.digests_are_keyed else sent.insert_ordinary_without_key
    job_id = insert_one_intended(app, connection, job, row, insert, looked_up)
    return None if job_id is None else _receipt(job_id, row, existing=False)


def _looked_up(app: Effects, messages: Sequence[RenderedEmail]) -> Mapping[str, str]:
    """For `sent.is_ordinary`: their keys as they are without a `digest` key, and the digests of their recipients."""
    plain_keys = sorted({message.plain_key for message in messages if message.plain_key is not None})
    addresses = {address.spec for message in messages for _, address in message.source.recipients()}
    digests = sorted({digest for spec in addresses for digest in address_digests(app, spec)})
    return {"keys": as_json(plain_keys), "digests": as_json(digests)}


def _with_stored_keys(
    app: Effects, connection: Connection, messages: Sequence[RenderedEmail]
) -> Sequence[RenderedEmail]:
    """With the derived keys of messages that were written before there was a `digest` key: they are the same."""
    plain_keys = sorted({message.plain_key for message in messages if message.plain_key is not None})
    if not plain_keys:
        return messages
    if not app.keys.digests_are_keyed:
        if sent.has_keyed_digests(app.store, connection):
            raise digest_key_missing("whether this message was sent before")
        return messages
    stored = sent.holders(app.store, connection, plain_keys)
    return [
        msgspec.structs.replace(message, key=message.plain_key) if message.plain_key in stored else message
        for message in messages
    ]


def check_digest_key(app: Effects, connection: Connection, message: RenderedEmail) -> None:
    """Refuse what `write_messages` would refuse for want of the `digest` key; writes nothing.

    Raises:
        KeyUnavailable: as `write_messages`.
    """
    _with_stored_keys(app, connection, [message])
    _suppressed(app, connection, [message])


class _MessageWriter(IdempotentWriter[RenderedEmail, EmailReceipt]):
    """Args:
    ordinary: no recipient needs a look at the suppression list.
    """

    def __init__(self, app: Effects, connection: Connection, *, ordinary: bool) -> None:
        self._app = app
        self._connection = connection
        self._ordinary = ordinary

    def insert(self, requests: Sequence[RenderedEmail]) -> list[EmailReceipt | None]:
        app, connection = self._app, self._connection
        jobs = reserve_jobs(app, connection, [_job(app, connection, message) for message in requests])
        blocked = [False] * len(requests) if self._ordinary else _suppressed(app, connection, requests)
        messages = zip(jobs, requests, blocked, strict=True)
        rows = [(job.id, _row(app, message, blocked=held)) for job, message, held in messages]
        # In the order of the keys: of two transactions with the same keys one waits for the other, and never both.
        written = sent.insert(app.store, connection, sorted(rows, key=lambda numbered: numbered[1].key))
        own = [number for number, job in enumerate(jobs) if job.id in written]
        _write_recipients(app, connection, [requests[number] for number in own])
        for number in own:
            attachments.write_files(app, connection, requests[number].key, requests[number].files)
        insert_reserved(app, connection, [jobs[number] for number in own])
        return [_receipt(job_id, row, existing=False) if job_id in written else None for job_id, row in rows]

    def holders(self, requests: Sequence[RenderedEmail]) -> list[KeyHolder[EmailReceipt] | None]:
        keys = sorted({message.key for message in requests})
        rows = sent.holders(self._app.store, self._connection, keys)
        return [_holder(rows[message.key]) if message.key in rows else None for message in requests]

    def content(self, request: RenderedEmail) -> str:
        return request.canonical


def _receipt(job_id: int, row: SentRow | Row[Any], *, existing: bool) -> EmailReceipt:
    return EmailReceipt(
        job_id=job_id,
        key=row.key,
        message_id=row.message_id,
        existing=existing,
        suppressed=row.outcome == SUPPRESSED,
    )


def _holder(row: Row[Any]) -> KeyHolder[EmailReceipt]:
    return KeyHolder(
        receipt=_receipt(row.job_id, row, existing=True),
        digest=row.digest,
        key=f"{JOB_TYPE}: the idempotency key {row.key!r}",
        owner=f"job {row.job_id}",
        job_id=row.job_id,
    )


def _suppressed(app: Effects, connection: Connection, messages: Sequence[RenderedEmail]) -> list[bool]:
    """Whether all recipients of each are suppressed, and none may be written to despite that."""
    recipients = [
        (address.spec, message.category) for message in messages for _, address in message.source.recipients()
    ]
    reasons = iter(suppressed(app, connection, recipients))
    every = [all([next(reasons) is not None for _ in message.source.recipients()]) for message in messages]  # noqa: C419 - takes all
    return [held and message.despite_suppression is None for held, message in zip(every, messages, strict=True)]


def _write_recipients(app: Effects, connection: Connection, messages: Sequence[RenderedEmail]) -> None:
    """Write who gets each group message, and who gets a message although suppressed."""
    sent.insert_recipients(
        app.store, connection, [row for message in messages for row in _recipient_rows(app, message)]
    )
    for message in messages:
        if message.despite_suppression is not None:
            people = [address.spec for _, address in message.source.recipients()]
            note_override(app, connection, people, actor="app", why=message.despite_suppression)


def _row(app: Effects, message: RenderedEmail, *, blocked: bool) -> SentRow:
    content, sealed = seal_content(app, message.key, message.content)
    return SentRow(
        key=message.key,
        event_id=message.event_id,
        recipient=address_digest(app, message.source.first.spec),
        template=message.version.name,
        template_version=message.version.version,
        locale=message.version.locale,
        category=message.category,
        transport=message.transport,
        message_id=message.source.message_id,
        date=message.source.date,
        content=content,
        sealed=sealed,
        digest=app.keys.digest(message.canonical),
        outcome=SUPPRESSED if blocked else None,
        despite_suppression=message.despite_suppression,
    )


def _recipient_rows(app: Effects, message: RenderedEmail) -> list[RecipientRow]:
    if not message.group:
        return []
    return [
        RecipientRow(key=message.key, number=number, kind=kind, recipient=address_digest(app, address.spec))
        for number, (kind, address) in enumerate(message.source.recipients())
    ]


def _job(app: Effects, connection: Connection, message: RenderedEmail) -> NewJob:
    return NewJob(
        job_type=JOB_TYPE,
        payload={"template": message.version.name, "transport": message.transport},
        key=message.key,
        limit_key=state_of(app).limit_keys.key(connection, message.transport, message.source.first.domain),
        run_at=message.run_at,
        expires_at=message.expires_at,
        on_unknown=message.on_unknown,
    )
