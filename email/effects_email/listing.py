"""Messages, newest first, a page at a time, with what became of each after a server took it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects
from effects.extend import ANY_TIME, Window, moment, set_filters
from effects_email.errors import EmailNotFound
from effects_email.events import Fate, fates
from effects_email.message.address import Recipient, address_digests, spec_of
from effects_email.tables import lists

_BATCH = 500  # messages whose events one statement looks up
# From the key of a message and a number of rows to these and the key of the last one searched, where older ones remain.
_Read: TypeAlias = Callable[[str | None, int], tuple[Sequence[Row[Any]], str | None]]


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
    return EmailSummary(
        key=row.key, job_id=row.job_id, state=row.state, fate=fate, outcome=row.outcome, template=row.template,
        transport=row.transport, tries=row.tries, reply_code=row.reply_code, created_at=moment(row.created_at),
    )  # fmt: skip
