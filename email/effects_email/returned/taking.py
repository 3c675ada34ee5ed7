"""Take in what came back: found by token or Message-ID, kept once, and followed by what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from effects import Effects
from effects.extend import app_of
from effects_email import events
from effects_email.events import EventKind, IncomingEvent
from effects_email.returned.meaning import code_of, kind_of
from effects_email.returned.proof import ProvenMessage, prove, recipient_of
from effects_email.returned.reading import read_report
from effects_email.returned.report import ReturnedReport

ReportFate: TypeAlias = Literal["taken", "known", "not_ours", "left_alone"]


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
    nothing; a crash in between leaves some of its events, and the same report again adds the others.

    Args:
        data: the bytes as they were received; the first MiB is read.
        came_to: the address to which it was delivered, where it is known beside the message's headers.
        effects: the Effects to use; default the process's.

    Raises:
        StoreUnavailable: the database is unavailable. Nothing that a stranger can send raises anything.
    """
    app = app_of(effects)
    report = read_report(data, came_to=came_to)
    if report is None:
        return TakenReport(fate="left_alone")
    with app.store.read() as connection:
        message = prove(app, connection, report)
    if message is None:
        return TakenReport(fate="not_ours", form=report.form)
    incoming = _events(app, report, message)
    new = [events.take(app, event) for event in incoming]
    return TakenReport(
        fate="taken" if any(new) else "known",
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
