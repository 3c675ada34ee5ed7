"""Settlements as rows: what a statement of `settle_sql` is given of each."""

from __future__ import annotations

import msgspec

from effects.model.job import QUARANTINE_QUEUE
from effects.model.settlement import MESSAGE_CHARS_MAX, Settlement


class SettlementRow(msgspec.Struct, omit_defaults=True, gc=False):
    """One settlement as a row. What is at its default is left out: to parse it was most of a settlement's cost."""

    id: int
    token: int
    status: str
    outcome: str
    queue: str
    verdict: str | None = None
    delay: float = 0.0
    forgiven: float = 0.0
    refund: int = 0
    lost: int = 0
    unknown: int = 0
    error_code: str | None = None
    message: str | None = None
    error_type: str | None = None
    stack: str | None = None
    detail: object = None
    error_text: object = None
    took: float = 0.0
    ago: float = 0.0
    priority: int | None = None
    group_key: str | None = None
    limit_key: str | None = None
    routed: bool = False


class DoneRow(msgspec.Struct, omit_defaults=True, gc=False):
    """A success that is one row: its attempt needs none beside its job's."""

    id: int
    token: int
    took: float
    ago: float
    detail: object = None


def row_of(settlement: Settlement, now: float) -> SettlementRow:
    job, routing = settlement.job, settlement.routing
    return SettlementRow(
        id=job.id,
        token=job.lease_token,
        status=settlement.status,
        outcome=settlement.outcome,
        verdict=settlement.verdict,
        delay=settlement.delay_seconds,
        forgiven=settlement.age_seconds_forgiven,
        refund=int(settlement.refund_attempt),
        lost=int(settlement.lost),
        unknown=int(settlement.verdict == "unknown"),
        error_code=settlement.error_code,
        message=settlement.message[:MESSAGE_CHARS_MAX] if settlement.message else None,
        error_type=settlement.error_type,
        stack=settlement.stack,
        error_text=settlement.error_text,
        detail=settlement.detail,
        took=settlement.duration_seconds,
        ago=_ago(settlement, now),
        queue=_next_queue(settlement),
        priority=routing.priority if routing else None,
        group_key=routing.group_key if routing else None,
        limit_key=routing.limit_key if routing else None,
        routed=routing is not None,
    )


def done_row(settlement: Settlement, now: float) -> DoneRow:
    job = settlement.job
    return DoneRow(job.id, job.lease_token, settlement.duration_seconds, _ago(settlement, now), settlement.detail)


def _ago(settlement: Settlement, now: float) -> float:
    ended = settlement.ended_at_monotonic
    return now - ended if 0 < ended < now else 0.0


def is_one_row(settlement: Settlement) -> bool:
    """Whether the row of the ended job holds all of its attempts: one that did the effect and has no error."""
    return (
        settlement.status == settlement.outcome == "succeeded"
        and settlement.verdict == "done"
        and not settlement.job.has_attempts
        and settlement.message is None
        and settlement.error_type is None
        and settlement.error_code is None
        and settlement.stack is None
        and settlement.error_text is None
    )


def _next_queue(settlement: Settlement) -> str:
    job, routing = settlement.job, settlement.routing
    if routing is not None:
        return routing.queue
    if settlement.lost:
        return QUARANTINE_QUEUE
    return job.home_queue if settlement.outcome else job.queue  # given back: it stays where it was
