"""Messages: a list without what is personal, one of them, and those to an address for who may see it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from effects import DeliveryError, EffectsError
from effects.extend import LEDGER_STATES, AuditAction
from effects.web import PAGE_ROWS, PageAnswer, Visit, before_of, choice_of, notice, story_values
from effects_email.admin import get_email, key_of_job
from effects_email.dashboard.frames import framed, remote_hosts
from effects_email.dashboard.message_actions import job_of
from effects_email.errors import EmailInvalid, EmailNotFound
from effects_email.events import FATES
from effects_email.listing import EmailPage, list_emails
from effects_email.message.attachments import Files, inline_images
from effects_email.message.source import MessageSource, open_content
from effects_email.suppressions.suppression import find_suppressions, suppression_log
from effects_email.tables import sent

REVEAL = AuditAction("message", "reveal")
ADDRESS_ROWS = 100


def messages(visit: Visit) -> PageAnswer:
    """Messages, newest first, without recipients and subjects."""
    status, before = choice_of(visit.query, "status", LEDGER_STATES), before_of(visit)
    fate = choice_of(visit.query, "fate", FATES)
    page = list_emails(visit.app, status=status, fate=fate, before=_key(visit, before), limit=PAGE_ROWS)
    filters = {name: value for name, value in (("status", status), ("fate", fate)) if value is not None}
    return visit.page(
        "email/messages.html", page=page, status=status, statuses=LEDGER_STATES, fate=fate, fates=FATES,
        filters=filters, first=before is None, older=_older(visit, page), notice=notice(visit),
    )  # fmt: skip


def of_address(visit: Visit) -> PageAnswer:
    """What became of the messages to an address, and whether it is suppressed; noted in the audit log first."""
    address = visit.form.get("address")
    if address is None:
        raise EmailInvalid("give an address")
    visit.note_address(address)
    page = list_emails(visit.app, address=address, limit=ADDRESS_ROWS)
    return visit.page(
        "email/address.html", revealed=True, address=address, page=page, most=ADDRESS_ROWS,
        suppressions=find_suppressions(address, effects=visit.app), log=suppression_log(address, effects=visit.app),
    )  # fmt: skip


def message(visit: Visit) -> PageAnswer:
    """One message, by the id of its job, without what is personal."""
    return _message(visit)


def reveal(visit: Visit) -> PageAnswer:
    """The same with recipients, subject and content, noted in the audit log first."""
    visit.note_look(REVEAL, visit.values["id"])
    return _message(visit, revealed=True)


def _message(visit: Visit, *, revealed: bool = False) -> PageAnswer:
    record = get_email(visit.app, key_of_job(visit.app, job_of(visit.values["id"])))
    source = _source(visit, _row(visit)) if revealed else None
    return visit.page(
        "email/message.html", **{**story_values(visit, visit.evidence(record.job_id)), "links": ()}, revealed=revealed,
        record=record, source=source, hosts=remote_hosts(source.html) if source is not None else [],
        frame=visit.url("email_frame", id=visit.values["id"], ticket=visit.ticket(_what(visit))) if revealed else None,
    )  # fmt: skip


def frame(visit: Visit) -> PageAnswer:
    """The HTML of a message, for the frame of a page that has just noted the look."""
    row = _row(visit) if visit.has_ticket(_what(visit)) else None
    source = _source(visit, row)
    if row is None or source is None or source.html is None:
        raise EmailNotFound("there is no HTML to see here: open the message again")
    try:
        files = Files(visit.app).read(source, row.key)
        html = inline_images(source.html, source.attachments, files)
    except (DeliveryError, EffectsError):  # an attachment is gone
        html = source.html
    return framed(html)


def _what(visit: Visit) -> str:
    return f"message {visit.values['id']}"


def _row(visit: Visit) -> Row[Any] | None:
    with visit.app.store.read() as connection:
        return sent.find_by_job(visit.app.store, connection, job_of(visit.values["id"]))


def _source(visit: Visit, row: Row[Any] | None) -> MessageSource | None:
    """None where the content was deleted, at the end of its retention."""
    content = None if row is None else open_content(visit.app, row.key, row.content, row.sealed)
    return None if content is None else content.source


def _key(visit: Visit, job_id: int | None) -> str | None:
    """A page begins at a job in addresses: the key of a message may be personal."""
    return None if job_id is None else key_of_job(visit.app, job_id)


def _older(visit: Visit, page: EmailPage) -> int | None:
    if page.next_before is None:
        return None
    if page.emails and page.emails[-1].key == page.next_before:
        return page.emails[-1].job_id
    return get_email(visit.app, page.next_before).job_id
