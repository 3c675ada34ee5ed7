"""A live row as the handler's side sees it: one list of columns and one conversion for all who read jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects.job import Job
from effects.store.sql import Sql


def job_columns(sql: Sql, alias: str = "") -> str:
    """What `job_of` reads, in its order; first in a SELECT or RETURNING. `alias` ends with its dot."""
    names = (
        "queue priority attempts max_attempts lease_token lost_count unknown_count group_key limit_key idempotency_key "
        "quarantined_from requeued_from trace_context on_unknown prepared cancel_requested"
    )
    columns = ", ".join(alias + name for name in names.split())
    payload = sql.json_text(f"{alias}payload")
    age = sql.seconds(f"{alias}age_from")
    return f"{alias}id, {alias}job_type, {payload} AS payload, {columns}, {age} AS age_seconds"


def job_of(row: Sequence[Any], *, expired: object = False) -> Job:
    """The job of a row that begins with `job_columns`. By position: by name costs four times as much."""
    (
        job_id, job_type, payload, queue, priority, attempts, max_attempts, lease_token, lost_count, unknown_count,
        group_key, limit_key, key, quarantined_from, requeued_from, trace_context, on_unknown, prepared,
        cancel_requested, age_seconds, *_,
    ) = row  # fmt: skip
    return Job(
        id=job_id,
        job_type=job_type,
        payload=payload,
        queue=queue,
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
        lease_token=lease_token,
        lost_count=lost_count,
        unknown_count=unknown_count,
        released=False,
        prepared=bool(prepared),
        expired=bool(expired),
        cancel_requested=bool(cancel_requested),
        age_seconds=age_seconds,
        key=key,
        group_key=group_key,
        limit_key=limit_key,
        quarantined_from=quarantined_from,
        requeued_from=requeued_from,
        trace_context=trace_context,
        on_unknown=on_unknown,
    )
