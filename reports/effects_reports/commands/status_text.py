"""A run's status, as the commands print it."""

from __future__ import annotations

from typing import Any

import msgspec

from effects.cli import Context, duration, why_unserved
from effects_reports.api import ReportStatus, failing_step
from effects_reports.delivery.overview import BucketDelivery, RunDeliveries
from effects_reports.routing import QUEUE


def rows_of(status: ReportStatus) -> str:
    """`1,200,000 of 2,000,000 rows, 310,000/s, 3 s left`."""
    progress = status.progress
    total_note = "" if progress.rows_total is None else f" of {_about(progress.total_kind)}{progress.rows_total:,}"
    parts = [f"{progress.rows_done:,}{total_note} rows"]
    if progress.rows_per_second is not None and status.state == "running":
        parts.append(f"{progress.rows_per_second:,.0f}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


def _about(kind: str) -> str:
    return "about " if kind == "estimated" else ""


def document_of(status: ReportStatus) -> dict[str, Any]:
    """For scripts, without the params: as of jobs, what was given is not shown."""
    return {name: fact for name, fact in msgspec.structs.asdict(status).items() if name != "params"}


def why_not_done(context: Context, status: ReportStatus) -> str | None:
    """What a run under way waits for: a step that has failed and is tried again, or a worker."""
    if status.ended:
        return None
    step = failing_step(context.app, status.run_id)
    unserved = why_unserved(context, QUEUE)
    failed = (
        None if step is None else f"job {step.job_id} is tried again after: {step.error} (`effects why {step.job_id}`)"
    )
    return "; ".join(filter(None, (failed, unserved))) or None


def facts_of(status: ReportStatus, waits: str | None = None) -> dict[str, Any]:
    """What is known, without what is not there."""
    progress = status.progress
    facts: dict[str, Any] = {
        "id": status.run_id, "report": status.report, "key": status.key,
        "generation": status.generation if status.generation > 1 else None, "status": status.state,
        "done": f"{progress.fraction:.0%}, {rows_of(status)}, {progress.chunks_done} of {progress.chunks_total} chunks",
        "format": status.format, "consistency": status.consistency, "waits": waits,
        "error": status.error_text, "code": status.error_code,
        "file": status.filename, "bytes": status.bytes, "sha256": status.sha256,
        "created": status.created_at, "ended": status.ended_at,
        "expires": status.expires_at if status.state == "ready" else None,
    }  # fmt: skip
    return {name: fact for name, fact in facts.items() if fact is not None}


def delivery_facts(deliveries: RunDeliveries) -> dict[str, str]:
    """`bucket acme: done, attempts: 1, job 12`, one line a bucket."""
    return {f"bucket {each.bucket}": ", ".join(map(str, _parts(each))) for each in deliveries.buckets}


def _parts(each: BucketDelivery) -> list[object]:
    if each.delivery is None:
        return [each.state]
    delivery = each.delivery
    attempts = None if delivery.attempts is None else f"attempts: {delivery.attempts}"
    code = None if each.state == "done" else delivery.error_code
    return [part for part in (each.state, attempts, code, f"job {delivery.job_id}") if part is not None]


def documents_of(deliveries: RunDeliveries) -> list[dict[str, Any]]:
    """The same for scripts."""
    return [
        {
            "bucket": each.bucket, "state": each.state,
            **{name: getattr(each.delivery, name, None) for name in ("job_id", "attempts", "error_code", "changed_at")},
        }
        for each in deliveries.buckets
    ]  # fmt: skip
