"""Which message a report speaks of, and what shows that it does: a token of ours, or a Message-ID that we gave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, KeyUnavailable
from effects_email.message.address import address_digests
from effects_email.message.source import open_content
from effects_email.returned.report import RecipientReport, ReturnedReport
from effects_email.returned.token import BounceToken, find_tokens
from effects_email.tables import returned as table
from effects_email.transport.http_api.fields import reference


class ProvenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a report speaks of.

    `key`: None where its row is gone, or has been renewed since. `number`: of the recipient, where a token names one.
    `digests`, `addresses`: of its recipients by their numbers; the latter only while its content is kept.
    """

    reference: str
    key: str | None = None
    number: int | None = None
    digests: Mapping[int, str] = {}
    addresses: Mapping[int, str] = {}

    def __repr__(self) -> str:
        return f"ProvenMessage(key={self.key!r})"


def prove(app: Effects, connection: Connection, report: ReturnedReport) -> ProvenMessage | None:
    """The message; None if nothing shows that the report is of one of ours. At most three queries."""
    for token in find_tokens(app, report.text):
        return _by_token(app, connection, token)
    rows = {row.message_id: row for row in table.by_message_id(app.store, connection, list(report.message_ids))}
    row = next((rows[message_id] for message_id in report.message_ids if message_id in rows), None)
    return _proven(app, connection, row, None) if row is not None else None


def recipient_of(
    app: Effects, message: ProvenMessage, report: RecipientReport, *, reports: Sequence[RecipientReport]
) -> str | None:
    """The recipient of ours that a report means; None where that is not shown.

    An address that it names must be one of the message's. Where the token is of one recipient, and nothing else is
    reported, it is that one, whatever the address: mail that was forwarded bounces under another. So it is with the
    complaint of an only recipient, whose address is often blacked out. A complaint that names several of ours does not
    say whose it is.
    """
    is_complaint = report.action in ("complained", "unsubscribed")
    ours = [
        address for address in report.addresses
        if not set(message.digests.values()).isdisjoint(address_digests(app, address))
    ]  # fmt: skip
    if ours:
        return ours[0] if len(ours) == 1 or not is_complaint else None
    if len(reports) > 1:
        return None
    if message.number is not None:
        return message.addresses.get(message.number)
    return message.addresses.get(0) if is_complaint and len(message.digests) == 1 else None


def _by_token(app: Effects, connection: Connection, token: BounceToken) -> ProvenMessage:
    for row in table.by_job(app.store, connection, [token.job_id]):
        if reference(row.message_id) == token.reference:
            return _proven(app, connection, row, token.number)
    return ProvenMessage(reference=token.reference)


def _proven(app: Effects, connection: Connection, row: Row[Any], number: int | None) -> ProvenMessage:
    digests = table.recipients(app.store, connection, row.key) or {0: row.recipient}
    if number is not None:
        digests = {place: digest for place, digest in digests.items() if place == number}
    try:
        content = open_content(app, row.key, row.content, row.sealed)
    except KeyUnavailable:
        content = None
    addresses = [address.spec for _, address in content.source.recipients()] if content is not None else []
    return ProvenMessage(
        reference=reference(row.message_id), key=row.key, number=number, digests=digests,
        addresses=dict(enumerate(addresses)),
    )  # fmt: skip
