"""What an endpoint's failures add up to: notices to people, and its end.

Every settled attempt passes here, in the transaction that records it. Only facts about the endpoint count: an
answer, or its lack, which the attempt left as its DeliveryRecord. Faults of our own, lost workers and cancelled
deliveries do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row

from effects import enqueue
from effects.extend.arguments import DAY_SECONDS
from effects.extend.jobs import Settlement
from effects.extend.process import own_logger
from effects.extend.sql import may_pass
from effects.extend.text import error_reason
from effects_webhooks.settings import state_of
from effects_webhooks.tables import endpoint_rows as table
from effects_webhooks.tables.endpoint_rows import GONE_SECONDS, EndpointFailures
from effects_webhooks.tables.ledger import DeliveryRecord

if TYPE_CHECKING:
    from effects import Effects

_NOTICE_HOURS = (72, 24, 1)
_DISABLE_SECONDS = 5 * DAY_SECONDS
_DISABLE_MESSAGES = 10
_COUNTED = ("failed", "unknown", "refused")
_log = own_logger("effects.webhooks")


def note(app: Effects, connection: Connection, settled: Sequence[Settlement]) -> None:
    """Update endpoints' health with these attempts; notify and disable when due.

    A batch that holds a success of an endpoint clears it, whatever else it holds of it but a request to disable. A
    success that was loaded while its endpoint did not fail has nothing to clear; should it have failed since, the next
    one will.
    """
    worked: set[str] = set()
    recovered: set[str] = set()
    failures: dict[str, EndpointFailures] = {}
    for settlement in settled:
        record: DeliveryRecord | None = settlement.private
        if record is None:
            continue
        if settlement.verdict == "done":
            worked.add(record.endpoint_id)
            if record.was_failing:
                recovered.add(record.endpoint_id)
        elif settlement.outcome in _COUNTED:
            failure = failures.setdefault(record.endpoint_id, EndpointFailures(record.endpoint_id))
            failure.messages += settlement.job.attempts == 1
            failure.disable_requested |= record.disable_requested
            if settlement.error_code == "http_410":
                failure.gone_event = record.event_id
    if recovered:
        table.succeed(app.store, connection, recovered)
    failing = [
        failure
        for endpoint_id, failure in sorted(failures.items())
        if endpoint_id not in worked or failure.disable_requested
    ]
    if failing:
        failures_by_endpoint = {failure.endpoint_id: failure for failure in failing}
        for row in table.fail(app.store, connection, failing):
            _consider(app, connection, row, failures_by_endpoint[row.endpoint_id])


def _consider(app: Effects, connection: Connection, row: Row[Any], failure: EndpointFailures) -> None:
    reason = _why_disable(row, failure)
    if reason is not None:
        if table.disable(app.store, connection, row.endpoint_id, reason):
            _log.warning("webhook.disabled", extra={"endpoint": row.endpoint_id, "reason": reason})
            _tell(app, connection, row, "disabled", reason)
        return
    hours = next((hours for hours in _NOTICE_HOURS if row.failing_seconds >= hours * 3600), 0)
    if hours > row.noticed:
        table.notice(app.store, connection, row.endpoint_id, hours)
        _log.warning("webhook.failing", extra={"endpoint": row.endpoint_id, "hours": hours})
        _tell(app, connection, row, "failing", f"no success for {hours} h")


def _why_disable(row: Row[Any], failure: EndpointFailures) -> str | None:
    if failure.disable_requested:
        return "the receiver requested it: webhook-delivery: disable"
    confirmed = (
        failure.gone_event is not None and failure.gone_event != row.gone_event and row.gone_seconds >= GONE_SECONDS
    )
    if confirmed:
        return "gone: it answered 410 to two messages, ten minutes apart, with no success between"
    if row.failing_seconds >= _DISABLE_SECONDS and row.failed_messages >= _DISABLE_MESSAGES:
        return f"no success for {_DISABLE_SECONDS / DAY_SECONDS:.0f} days and {row.failed_messages} messages"
    return None


def _tell(app: Effects, connection: Connection, row: Row[Any], what: str, reason: str) -> None:
    """Enqueue the job that the settings name. One that cannot be must not take the settlement with it."""
    job_type = state_of(app).settings.webhook_notice_job_type
    if not job_type:
        return
    notice = notice_of(row.endpoint_id, what, reason, int(row.failing_seconds), row.failed_messages)
    try:
        with connection.begin_nested():
            enqueue(job_type, notice, session=connection, effects=app)
    except Exception as error:  # the type's `route` is the app's code
        if may_pass(error):
            raise
        _log.error("webhook.notice_failed", extra={"job_type": job_type, "reason": error_reason(error)})


def notice_of(endpoint_id: str, what: str, reason: str, failing_seconds: int, failed_messages: int) -> dict[str, Any]:
    """The payload of the job that tells of an endpoint. `what`: failing or disabled."""
    return {
        "notice": what, "endpoint_id": endpoint_id, "reason": reason, "failing_seconds": failing_seconds,
        "failed_messages": failed_messages,
    }  # fmt: skip
