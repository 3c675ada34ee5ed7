"""What the entry points of this package name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from effects import JobType
from effects.extend.jobs import Settlement
from effects.extend.secrets import SealedColumn
from effects_reports.delivery import buckets, subscriptions
from effects_reports.jobs.assemble import ReportAssemble
from effects_reports.jobs.chunk import ReportChunk
from effects_reports.jobs.compose import ReportRequest, ReportSubscribed
from effects_reports.jobs.deliver import ReportDeliver, ReportNotify
from effects_reports.jobs.plan import ReportPlan
from effects_reports.jobs.repair import ReportCleanup, ReportRepair
from effects_reports.jobs.step import Shares
from effects_reports.routing import CHUNK_TYPE
from effects_reports.runs import notify, state_machine
from effects_reports.runs.notify import note_followers
from effects_reports.state import state_of
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.ledger import ReportLedger

if TYPE_CHECKING:
    from effects import Effects


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    registry = state_of(app).registry
    ledger = ReportLedger(partial(_settled, app))
    shares = Shares(app, registry)
    plan, chunk = (make(app, registry, shares) for make in (ReportPlan, ReportChunk))
    assemble = ReportAssemble(app, registry)
    plan.ledger = chunk.ledger = assemble.ledger = ledger
    repair = ReportRepair(app, scheduled=len(registry) > 0)
    return [
        plan,
        chunk,
        assemble,
        ReportCleanup(app, registry),
        repair,
        ReportRequest(app, registry),
        ReportSubscribed(app, registry),
        ReportDeliver(app),
        ReportNotify(app),
    ]


def sealed_columns() -> list[SealedColumn]:
    """The entry point `effects.sealed`."""
    addresses = SealedColumn(
        "report_subscriptions", "sealed", id_column="id", columns=(), context=subscriptions.sealed_context
    )
    credentials = SealedColumn("report_buckets", "sealed", id_column="name", columns=(), context=buckets.sealed_context)
    return [*notify.sealed_columns(), addresses, credentials]


def _settled(app: Effects, connection: Connection, settlement: Settlement) -> None:
    """Effects of a job's failure, loss, death or cancellation on its run, which the job's key names."""
    run_id, _, step = (settlement.job.key or "").partition("/")
    name, _, number = step.rpartition("/")
    code, text = settlement.error_code or settlement.outcome, settlement.message or ""
    if settlement.job.job_type == CHUNK_TYPE:
        _chunk_settled(app, connection, settlement, run_id, name, code, text)
    elif settlement.ends:
        run = run_table.lock_run(app.store, connection, run_id)
        if run is not None and number == str(run.round):
            state_machine.fail(app, connection, run.id, code, text)
    if settlement.status == "dead":
        note_followers(app, connection, run_id, [settlement.job.id])


def _chunk_settled(
    app: Effects, connection: Connection, settlement: Settlement, run_id: str, ordinal: str, code: str, text: str
) -> None:
    job = settlement.job
    if settlement.ends:
        died = settlement.status == "dead"
        state_machine.chunk_ended(app, connection, run_id, ordinal, job.id, died=died, code=code, text=text)
    else:
        chunk_table.wait_again(app.store, connection, run_id, ordinal, job.id, job.lease_token, code=code, text=text)
