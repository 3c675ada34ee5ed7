"""Rules by which bounces and refusals become suppressions, and deliveries reset them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from effects import Effects
from effects.extend import DAY_SECONDS
from effects_email.message.address import address_digest, address_digests
from effects_email.record import AddressFailure
from effects_email.suppressions.rows import Reason, new_row, write
from effects_email.tables import soft_failures
from effects_email.tables import suppressions as table
from effects_email.tables.suppressions import LogRow, SuppressionRow

# How long a cause without an explicit end holds. A hard bounce: an address may be given to someone else, or a host
# may have been misread.
DAYS: dict[Reason, int] = {"hard_bounce": 180, "soft_repeat": 14}
SOFT_FAILURES, SOFT_DAYS, SOFT_WINDOW_DAYS = 5, 3, 30


def end_of(app: Effects, connection: Connection, reason: Reason) -> float | None:
    """When a suppression of this reason ends that begins now, in seconds since 1970; None for never."""
    return app.store.now(connection) + DAYS[reason] * DAY_SECONDS if reason in DAYS else None


def note_failures(app: Effects, connection: Connection, failures: Sequence[AddressFailure], *, source: str) -> None:
    """Take in refusals: a hard one suppresses at once, soft ones at the fifth on a third day within 30 days.

    Writes in the caller's transaction: the settling one, so that a refusal and what follows from it are one fact. At
    most six statements, however many failures.

    Args:
        source: where it comes from: `smtp`, `resend`, `postmark`.
    """
    hard = {address_digest(app, failure.address): failure for failure in failures if failure.kind == "hard"}
    soft = [failure for failure in failures if failure.kind == "soft"]
    rows = _rows(app, connection, list(hard.values()), "hard_bounce", source)
    rows += _rows(app, connection, _repeating(app, connection, soft), "soft_repeat", source)
    write(app, connection, rows)


def _rows(
    app: Effects, connection: Connection, failures: Sequence[AddressFailure], reason: Reason, source: str
) -> list[SuppressionRow]:
    if not failures:
        return []
    until = end_of(app, connection, reason)
    return [
        new_row(app, failure.address, reason, until=until, source=source, actor=source, why=failure.code)
        for failure in failures
    ]


def _repeating(app: Effects, connection: Connection, soft: Sequence[AddressFailure]) -> list[AddressFailure]:
    """Count these failures; the last one of each address whose number is full."""
    if not soft:
        return []
    last = {address_digest(app, failure.address): failure for failure in soft}
    soft_failures.add(app.store, connection, Counter(address_digest(app, failure.address) for failure in soft))
    full = soft_failures.repeated(
        app.store, connection, sorted(last), failures=SOFT_FAILURES, days=SOFT_DAYS, window_days=SOFT_WINDOW_DAYS
    )
    return [last[digest] for digest in full]


def note_delivered(app: Effects, connection: Connection, addresses: Iterable[str], *, source: str) -> None:
    """Reset the soft failures of addresses that a provider reports as delivered."""
    forms = sorted({form for address in addresses for form in address_digests(app, address)})
    if not forms:
        return
    soft_failures.clear(app.store, connection, forms)
    lifted = table.lift(app.store, connection, forms, reason="soft_repeat")
    table.note(app.store, connection, [
        LogRow(digest=row.digest, action="delivered", scope=row.scope, reason=row.reason, actor=source)
        for row in lifted
    ])  # fmt: skip


def take_back(app: Effects, connection: Connection, digests: Sequence[str], *, code: str, since: float) -> None:
    """A refusal turned out to be no fault of these addresses: what it has put on the list is lifted.

    Args:
        code: of the refusal; other suppressions of the same addresses stay.
        since: its first report, in seconds since 1970.
    """
    lifted = table.lift_since(app.store, connection, digests, why=code, since=since)
    table.note(app.store, connection, [
        LogRow(digest=row.digest, action="lifted", scope=row.scope, reason=row.reason, actor="effects",
               why=f"{code} was the transport's fault")
        for row in lifted
    ])  # fmt: skip
