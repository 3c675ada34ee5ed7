"""Take in what came back: of which message it speaks, what it means, and what follows from it; each report once.

A report is proven by a token of ours, or a Message-ID that we gave out. It is read as a provider's event, by the table
that reads SMTP replies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, KeyUnavailable
from effects.extend.jobs import app_of
from effects_email import events
from effects_email.events import EventKind, IncomingEvent
from effects_email.message.address import address_digests
from effects_email.message.source import open_content
from effects_email.returned.parts import Action, RecipientReport, ReturnedReport
from effects_email.returned.reading import read_report
from effects_email.returned.token import BounceToken, find_tokens
from effects_email.tables import events as table
from effects_email.transport.http_api.fields import reference
from effects_email.transport.replies.verdicts import enhanced_of, reply_of, verdict_of_reply

_KINDS: Mapping[Action, EventKind] = {
    "delayed": "delayed", "delivered": "delivered", "relayed": "accepted", "expanded": "accepted",
    "complained": "complained", "unsubscribed": "unsubscribed",
}  # fmt: skip
_REPLY = re.compile(r"(?<![\d.#])([45]\d\d)(?:[ :-]|$)(.*)")
# The recipient's server was not reached, for as long as the relay tried; 5.4.6 and Exchange's 5.4.14 are loops.
_NETWORK = re.compile(r"[45]\.4\.(?!6$|14$)\d+")
_OURS = ("sender", "reputation", "account", "rate")
ReportFate: TypeAlias = Literal["taken", "known", "not_ours", "left_alone"]


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


def kind_of(report: RecipientReport) -> EventKind:
    """A failure is hard, soft, or about something else than the recipient: then `failed`, and nothing follows."""
    if report.action != "failed":
        return _KINDS[report.action]
    words = _REPLY.search(report.diagnostic)
    if words is not None:
        code, text = int(words[1]), words[2].strip()
    else:
        code, text = 550, report.diagnostic
    if report.status is not None and not re.match(r"[45]\.\d", text):
        code = code if words is not None else int(report.status[0]) * 100 + 50
        text = f"{report.status} {text}".strip()
    verdict = verdict_of_reply(reply_of("rcpt", code, text))
    if verdict.suppress == "hard":
        return "bounced_hard"
    if verdict.about in _OURS:
        return "failed"
    is_about_them = verdict.suppress == "soft" or (code < 500 and verdict.about == "recipient")
    return "bounced_soft" if is_about_them or _NETWORK.match(report.status or "") else "failed"


def code_of(report: RecipientReport, form: str) -> str:
    """For the record: `dsn_5.1.1`, `dsn_550`, `arf_complained`."""
    reply = _REPLY.search(report.diagnostic)
    words = reply[2].strip() if reply is not None else report.diagnostic
    status = report.status
    if status is None or status.endswith(".0.0"):  # the last server's own says more
        status = enhanced_of(words) or status
    return f"{form}_{status or (reply[1] if reply is not None else report.action)}"


class TakenReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a report.

    `fate`: taken; known: it was taken before; not_ours: nothing shows that it is about a message of this database;
    left_alone: it is no report. `key`: of the message, if its row is still there. `kinds`: of the events, one for each
    recipient that it reports.
    """

    fate: ReportFate
    form: str | None = None
    key: str | None = None
    kinds: tuple[EventKind, ...] = ()


def take_report(data: bytes, *, came_to: str = "", effects: Effects | None = None) -> TakenReport:
    """Take in a message that came back: a delivery status notification, a bounce in words, a complaint.

    What it says is kept as an event of the message (`events_of`), beside what its record says already. A hard bounce
    and a complaint suppress the recipient, soft ones add up, a delivery forgets them: as with providers' events. A
    message that is unknown is then done, for whom the report names: a server has it. The same report again changes
    nothing, and a crash leaves all of it or nothing.

    Args:
        data: the bytes as they were received; the first MiB is read.
        came_to: the address to which it was delivered, where it is known beside the message's headers.
        effects: the Effects to use; default the process's.

    Raises:
        StoreUnavailable: the database is unavailable. Nothing that a stranger can send raises anything.
    """
    return take_read(app_of(effects), read_report(data, came_to=came_to))


def take_read(app: Effects, report: ReturnedReport | None) -> TakenReport:
    """As `take_report`, of what `read_report` has made of the message."""
    if report is None:
        return TakenReport(fate="left_alone")
    with app.store.read() as connection:
        message = prove(app, connection, report)
    if message is None:
        return TakenReport(fate="not_ours", form=report.form)
    incoming = _events(app, report, message)
    new = events.take(app, incoming)
    return TakenReport(
        fate="taken" if new else "known",
        form=report.form,
        key=message.key,
        kinds=tuple(event.kind for event in incoming),
    )


def _events(app: Effects, report: ReturnedReport, message: ProvenMessage) -> Sequence[IncomingEvent]:
    return [
        IncomingEvent(
            provider=report.form,
            provider_event_id=f"{report.identity}:{message.reference[:16]}:{number}",
            kind=kind_of(recipient),
            code=code_of(recipient, report.form),
            reference=message.reference,
            provider_id=None,
            recipient=recipient_of(app, message, recipient, reports=report.recipients),
            at=report.at,
        )
        for number, recipient in enumerate(report.recipients)
    ]
