"""What a claimed batch is to send, fetched in few statements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects.errors import KeyUnavailable
from effects.retry import OnUnknown
from effects_email.content import unpack
from effects_email.events import taken
from effects_email.outcomes import FINAL
from effects_email.parts import Address, Parts
from effects_email.suppression import suppressed
from effects_email.tables import sent

if TYPE_CHECKING:
    from effects.app import Effects


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt is to send. `open` are the recipients that no earlier try has settled, by their number."""

    job_id: int
    key: str
    category: str | None
    transport: str
    parts: Parts | None  # None: no longer kept
    sealed_off: str | None = None  # why the parts cannot be opened
    unknown: bool  # an earlier try may have delivered it
    repeats: bool  # and it was one of this job's, not of one that an operator sent again
    hold: bool  # what may have been delivered is left to a person
    sha256: str | None
    released_seconds: float | None  # since the first release
    group: bool
    open: Mapping[int, Address]
    some_accepted: bool
    suppressed: frozenset[int]
    despite_suppression: bool  # the caller said why they are written to all the same
    reported: bool = False  # a provider's event says that it has the message

    def __repr__(self) -> str:
        return f"Message(key={self.key!r})"


def load_messages(
    app: Effects, connection: Connection, policies: Mapping[int, OnUnknown], repeats: Collection[int]
) -> dict[int, Message]:
    """The messages of these jobs, their recipients and who of them is suppressed, in three queries; and what providers'
    events say of those that an earlier try may have delivered, in a fourth.

    Args:
        policies: job id → what follows where the message may have been delivered.
        repeats: the jobs of which an earlier attempt may have delivered it.
    """
    rows = sent.load(app.store, connection, list(policies))
    groups = sent.recipients(app.store, connection, [row.key for row in rows])
    found = [
        _message(app, row, groups.get(row.key), repeats=row.job_id in repeats, hold=policies[row.job_id] == "hold")
        for row in rows
    ]
    unsure = [message.parts.message_id for message in found if message.unknown and message.parts is not None]
    reported = taken(app, connection, unsure)
    blocked = _suppressed(app, connection, found)
    return {
        message.job_id: msgspec.structs.replace(
            message,
            suppressed=blocked.get(message.job_id, frozenset()),
            reported=message.parts is not None and message.parts.message_id in reported,
        )
        for message in found
    }


def _message(app: Effects, row: Any, group: Sequence[Any] | None, *, repeats: bool, hold: bool) -> Message:
    content, sealed_off = None, None
    try:
        content = unpack(app, row.key, row.content, row.sealed)
    except KeyUnavailable as error:
        sealed_off = str(error)
    everybody = dict(enumerate(one for _, one in content.parts.recipients())) if content is not None else {}
    settled = {one.number for one in group or () if one.outcome in (*FINAL, "suppressed")}
    return Message(
        job_id=row.job_id,
        key=row.key,
        category=row.category,
        transport=row.transport,
        parts=content.parts if content is not None else None,
        sealed_off=sealed_off,
        unknown=row.state == "unknown",
        repeats=repeats,
        hold=hold,
        sha256=row.bytes_sha256,
        released_seconds=row.released_seconds,
        group=group is not None,
        open={number: one for number, one in everybody.items() if number not in settled},
        some_accepted=any(one.outcome == "accepted" for one in group or ()),
        suppressed=frozenset(),
        despite_suppression=row.despite_suppression is not None,
    )


def _suppressed(app: Effects, connection: Connection, found: Sequence[Message]) -> dict[int, frozenset[int]]:
    """Job id → the numbers of its recipients that are on the list."""
    asking = [message for message in found if not message.despite_suppression]
    wanted = [(message, number, one) for message in asking for number, one in message.open.items()]
    reasons = suppressed(app, connection, [(one.spec, message.category) for message, _, one in wanted])
    blocked: dict[int, set[int]] = {}
    for (message, number, _), reason in zip(wanted, reasons, strict=True):
        if reason is not None:
            blocked.setdefault(message.job_id, set()).add(number)
    return {job_id: frozenset(numbers) for job_id, numbers in blocked.items()}
