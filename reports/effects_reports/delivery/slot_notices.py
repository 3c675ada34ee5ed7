"""What a run at a slot tells its subscribers. A subscription that does not open stops no other."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress

import msgspec
from sqlalchemy import Connection

from effects import Effects, KeyUnavailable
from effects.extend import repr_without
from effects_reports.delivery.subscribers import notice_of, open_name
from effects_reports.runs.notify import Notify
from effects_reports.tables import subscriptions as table
from effects_reports.tables.subscriptions import StoredSubscription


class SlotNotices(msgspec.Struct, frozen=True, kw_only=True):
    """The notices of the subscriptions that open, and why the others do not.

    Attributes:
        notices: not in the repr.
        unopened: subscription id → `SealInvalid` if no key could open it; else its key is missing.
    """

    notices: list[Notify]
    unopened: dict[str, KeyUnavailable]

    def __repr__(self) -> str:
        return repr_without(self, ("notices",))


def notices_at(app: Effects, connection: Connection, schedule: str, only: Container[str] = ()) -> SlotNotices:
    """What a run at a slot of this schedule tells, and whom: all its subscribers, or only the subscriptions `only`."""
    rows = table.active(app.store, connection, schedule)
    _prove_keys(app, rows)
    notices: list[Notify] = []
    unopened: dict[str, KeyUnavailable] = {}
    for row in rows:
        if only and row.id not in only:
            continue
        try:
            notices.append(notice_of(app, row))
        except KeyUnavailable as error:
            unopened[row.id] = error
    return SlotNotices(notices=notices, unopened=unopened)


def _prove_keys(app: Effects, rows: Sequence[StoredSubscription]) -> None:
    """Open what opens: a key that has opened one row tells that another, which it does not open, was altered."""
    for row in rows:
        with suppress(KeyUnavailable):
            open_name(app, row)
