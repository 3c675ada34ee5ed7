"""What an endpoint's failures add up to: notices to people, and its end.

Every settled attempt passes here, in the transaction that records it. Only facts about the endpoint count: an
answer, or its lack. What is our own side's doing, a lost worker and a cancelled delivery say nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Row

from effects.api import enqueue
from effects.errors import EffectsError
from effects.retry import DAY_SECONDS
from effects.settlement import Settlement
from effects_webhooks.tables import health as table
from effects_webhooks.tables.health import GONE_SECONDS, Failure

if TYPE_CHECKING:
    from effects.app import Effects

NOTICE_HOURS = (72, 24, 1)
DISABLE_SECONDS = 5 * DAY_SECONDS
DISABLE_MESSAGES = 10
RECOVERED = "recovered"  # in the detail of a success: its endpoint was failing until then
_COUNTED = ("failed", "unknown", "refused")
_log = logging.getLogger("effects.webhooks")


class _Ids(msgspec.Struct):
    event_id: str
    endpoint_id: str


def note(app: Effects, connection: Connection, settled: Sequence[Settlement]) -> None:
    """Count these attempts for and against their endpoints; tell people and disable where the time has come.

    A batch that holds a success of an endpoint clears it, whatever else it holds of it. A success that was loaded
    while its endpoint did not fail has nothing to clear; should it have failed since, the next one will.
    """
    worked: set[str] = set()
    recovered: set[str] = set()
    failures: dict[str, Failure] = {}
    for one in settled:
        ids = _ids(one)
        if ids is None:
            continue
        if one.verdict == "done":
            worked.add(ids.endpoint_id)
            if RECOVERED in (one.detail or {}):
                recovered.add(ids.endpoint_id)
        elif one.outcome in _COUNTED and "sent" in (one.detail or {}):
            failure = failures.setdefault(ids.endpoint_id, Failure(ids.endpoint_id))
            failure.messages += one.job.attempts == 1
            failure.asked |= (one.detail or {}).get("control") == "disable"
            if one.error_code == "http_410":
                failure.gone_event = ids.event_id
    if recovered:
        table.succeed(app.store, connection, recovered)
    failing = [failure for endpoint_id, failure in sorted(failures.items()) if endpoint_id not in worked]
    if failing:
        said = {failure.endpoint_id: failure for failure in failing}
        for row in table.fail(app.store, connection, failing):
            _consider(app, connection, row, said[row.endpoint_id])


def _ids(one: Settlement) -> _Ids | None:
    try:
        return msgspec.json.decode(one.job.payload, type=_Ids)
    except msgspec.DecodeError:  # a plain INSERT with another payload; its attempt was refused
        return None


def _consider(app: Effects, connection: Connection, row: Row[Any], said: Failure) -> None:
    reason = _why_disable(row, said)
    if reason is not None:
        if table.disable(app.store, connection, row.endpoint_id, reason):
            _log.warning("webhook.disabled", extra={"endpoint": row.endpoint_id, "reason": reason})
            _tell(app, connection, row, "disabled", reason)
        return
    hours = next((hours for hours in NOTICE_HOURS if row.failing_seconds >= hours * 3600), 0)
    if hours > row.noticed:
        table.notice(app.store, connection, row.endpoint_id, hours)
        _log.warning("webhook.failing", extra={"endpoint": row.endpoint_id, "hours": hours})
        _tell(app, connection, row, "failing", f"no success for {hours} h")


def _why_disable(row: Row[Any], said: Failure) -> str | None:
    if said.asked:
        return "the receiver asked for it: webhook-delivery: disable"
    confirmed = said.gone_event is not None and said.gone_event != row.gone_event and row.gone_seconds >= GONE_SECONDS
    if confirmed:
        return "gone: it answered 410 to two messages, ten minutes apart, with no success between"
    if row.failing_seconds >= DISABLE_SECONDS and row.failed_messages >= DISABLE_MESSAGES:
        return f"no success for {DISABLE_SECONDS / DAY_SECONDS:.0f} days and {row.failed_messages} messages"
    return None


def _tell(app: Effects, connection: Connection, row: Row[Any], what: str, reason: str) -> None:
    """Enqueue the job that the settings name. One that cannot be must not take the settlement with it."""
    job_type = app.settings.webhook_notice_job_type
    if not job_type:
        return
    notice = {
        "notice": what,
        "endpoint_id": row.endpoint_id,
        "reason": reason,
        "failing_seconds": int(row.failing_seconds),
        "failed_messages": row.failed_messages,
    }
    try:
        with connection.begin_nested():
            enqueue(job_type, notice, session=connection, effects=app)
    except EffectsError as error:
        _log.error("webhook.notice_failed", extra={"job_type": job_type, "reason": str(error)})
