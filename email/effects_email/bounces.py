"""What bounces and deliveries say about an address: the rules by which refusals become suppressions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from sqlalchemy import Connection

from effects.app import Effects
from effects.retry import DAY_SECONDS
from effects_email import mailbox
from effects_email.suppression_rows import Reason, new_row, write
from effects_email.tables import soft_failures
from effects_email.tables import suppressions as table
from effects_email.tables.suppressions import LogRow, SuppressionRow

# How long a reason holds that nobody gave an end. A hard bounce: an address may be given to somebody else, or a host
# may have been misread.
DAYS: dict[Reason, int] = {"hard_bounce": 180, "soft_repeat": 14}
SOFT_FAILURES, SOFT_DAYS, SOFT_WINDOW_DAYS = 5, 3, 30


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal that says something about the address, from a verdict whose `suppress` is set."""

    address: str
    kind: Literal["hard", "soft"]
    code: str  # such as smtp_550_5.1.1; stored, so nothing personal

    def __repr__(self) -> str:
        return f"Failure(kind={self.kind!r}, code={self.code!r})"


def end_of(app: Effects, connection: Connection, reason: Reason) -> float | None:
    """When a suppression of this reason ends that begins now, in seconds since 1970; None for never."""
    return app.store.now(connection) + DAYS[reason] * DAY_SECONDS if reason in DAYS else None


def note_failures(app: Effects, connection: Connection, failures: Sequence[Failure], *, source: str) -> None:
    """Take in refusals: a hard one suppresses at once, soft ones at the fifth on a third day within 30 days.

    Writes in the caller's transaction: the settling one, so that a refusal and what follows from it are one fact. At
    most six statements, however many failures.

    Args:
        source: who said so: `smtp`, `resend`, `postmark`.
    """
    hard = {mailbox.digest(app, one.address): one for one in failures if one.kind == "hard"}
    soft = [one for one in failures if one.kind == "soft"]
    rows = _rows(app, connection, list(hard.values()), "hard_bounce", source)
    rows += _rows(app, connection, _repeating(app, connection, soft), "soft_repeat", source)
    write(app, connection, rows)


def _rows(
    app: Effects, connection: Connection, failures: Sequence[Failure], reason: Reason, source: str
) -> list[SuppressionRow]:
    if not failures:
        return []
    until = end_of(app, connection, reason)
    return [
        new_row(app, one.address, reason, until=until, source=source, actor=source, why=one.code) for one in failures
    ]


def _repeating(app: Effects, connection: Connection, soft: Sequence[Failure]) -> list[Failure]:
    """Count these failures; the last one of each address whose number is full."""
    if not soft:
        return []
    last = {mailbox.digest(app, one.address): one for one in soft}
    soft_failures.add(app.store, connection, Counter(mailbox.digest(app, one.address) for one in soft))
    full = soft_failures.repeated(
        app.store, connection, sorted(last), failures=SOFT_FAILURES, days=SOFT_DAYS, window_days=SOFT_WINDOW_DAYS
    )
    return [last[digest] for digest in full]


def note_delivered(app: Effects, connection: Connection, addresses: Iterable[str], *, source: str) -> None:
    """A provider says that messages reached these addresses: what soft failures had added up to is over."""
    forms = sorted({form for address in addresses for form in mailbox.digests(app, address)})
    if not forms:
        return
    soft_failures.clear(app.store, connection, forms)
    lifted = table.lift(app.store, connection, forms, reason="soft_repeat")
    table.note(app.store, connection, [
        LogRow(digest=row.digest, action="delivered", scope=row.scope, reason=row.reason, actor=source)
        for row in lifted
    ])  # fmt: skip
