"""Where the jobs of a report go: their types, their queue, their keys and the limit key that they share."""

from __future__ import annotations

from effects import NewJob
from effects_reports.tables.runs import Run

PLAN_TYPE, CHUNK_TYPE, ASSEMBLE_TYPE = "report.plan", "report.chunk", "report.assemble"
CLEANUP_TYPE, REPAIR_TYPE, REQUEST_TYPE = "report.cleanup", "report.repair", "report.request"
SUBSCRIBED_TYPE, DELIVER_TYPE, NOTIFY_TYPE = "report.subscribed", "report.deliver", "report.notify"
QUEUE = "reports"
BUCKETS_QUEUE = "buckets"  # of its own: buckets that answer slowly hold up no report


def limit_key(report: str) -> str:
    """What all jobs of a report share: its cap in flight."""
    return f"report:{report}"


def bucket_limit_key(name: str) -> str:
    """What all deliveries into a bucket share."""
    return f"bucket:{name}"


def plan_job(run_id: str, report: str, number: int) -> NewJob:
    return NewJob(
        job_type=PLAN_TYPE, payload={"run_id": run_id}, key=f"{run_id}/plan/{number}", limit_key=limit_key(report)
    )


def chunk_job(run: Run, ordinal: str) -> NewJob:
    return NewJob(
        job_type=CHUNK_TYPE,
        payload={"run_id": run.id, "ordinal": ordinal},
        key=f"{run.id}/{ordinal}/{run.round}",
        limit_key=limit_key(run.report),
    )


def assemble_job(run: Run) -> NewJob:
    return NewJob(
        job_type=ASSEMBLE_TYPE,
        payload={"run_id": run.id},
        key=f"{run.id}/assemble/{run.round}",
        limit_key=limit_key(run.report),
    )
