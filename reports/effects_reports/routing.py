"""Where the jobs of a report go: their types, their queue, their keys and the limit key that they share."""

from __future__ import annotations

from datetime import datetime

from effects import NewJob
from effects.extend.text import moment
from effects_reports.tables.runs import Run

PLAN_TYPE, CHUNK_TYPE, ASSEMBLE_TYPE = "report.plan", "report.chunk", "report.assemble"
CLEANUP_TYPE, REPAIR_TYPE, REQUEST_TYPE = "report.cleanup", "report.repair", "report.request"
SUBSCRIBED_TYPE, DELIVER_TYPE, NOTIFY_TYPE = "report.subscribed", "report.deliver", "report.notify"
QUEUE = "reports"
BUCKETS_QUEUE = "buckets"  # of its own: buckets that answer slowly hold up no report
# The further a run is, the sooner its next step: what ends it, then its chunks; plans have every job's 5.
FINISHING_PRIORITY, CHUNK_PRIORITY = 3, 4


def limit_key(report: str) -> str:
    """What the plans and chunks of a report share: its cap in flight."""
    return f"report:{report}"


def report_of(key: str) -> str:
    """The report that a limit key is of."""
    return key.partition(":")[2]


def bucket_limit_key(name: str) -> str:
    """What all deliveries into a bucket share."""
    return f"bucket:{name}"


def plan_job(run_id: str, report: str, number: int) -> NewJob:
    return NewJob(
        job_type=PLAN_TYPE, payload={"run_id": run_id}, key=f"{run_id}/plan/{number}", limit_key=limit_key(report)
    )


def chunk_job(run: Run, ordinal: str, *, run_at: datetime | None = None) -> NewJob:
    """By default it is due since the run was requested: chunks of older runs come first, whenever they were made."""
    return NewJob(
        job_type=CHUNK_TYPE,
        payload={"run_id": run.id, "ordinal": ordinal},
        key=f"{run.id}/{ordinal}/{run.round}",
        limit_key=limit_key(run.report),
        run_at=run_at or moment(run.created_at),
    )


def assemble_job(run: Run) -> NewJob:
    """Without a limit key: chunks of other runs that fill the report's cap do not keep a finished one from its file."""
    return NewJob(job_type=ASSEMBLE_TYPE, payload={"run_id": run.id}, key=f"{run.id}/assemble/{run.round}")
