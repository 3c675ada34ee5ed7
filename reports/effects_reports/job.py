"""The job types of reports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects.job_type import JobType
from effects.settlement import Settlement
from effects_reports import steps
from effects_reports.assemble import ReportAssemble
from effects_reports.catalogue import CHUNK_TYPE, Catalogue
from effects_reports.chunk import ReportChunk
from effects_reports.clean import ReportClean
from effects_reports.plan import ReportPlan
from effects_reports.sweep import ReportSweep
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.ledger import ReportLedger

if TYPE_CHECKING:
    from effects.app import Effects


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    catalogue = Catalogue(app)
    ledger = ReportLedger(partial(_settled, app))
    plan, chunk, assemble = (make(app, catalogue) for make in (ReportPlan, ReportChunk, ReportAssemble))
    plan.ledger = chunk.ledger = assemble.ledger = ledger
    return [plan, chunk, assemble, ReportClean(app, catalogue), ReportSweep(app, scheduled=len(catalogue) > 0)]


class _Ids(msgspec.Struct):
    run_id: str
    ordinal: str | None = None


def _settled(app: Effects, connection: Connection, one: Settlement) -> None:
    """What the failure, loss, death or cancellation of a job says about its run."""
    try:
        ids = msgspec.json.decode(one.job.payload, type=_Ids)
    except msgspec.DecodeError:  # a plain INSERT with another payload; its attempt was refused
        return
    code, text = one.error_code or one.outcome, one.message or ""
    if one.job.job_type == CHUNK_TYPE and ids.ordinal is not None:
        _chunk_settled(app, connection, one, ids.run_id, ids.ordinal, code, text)
    elif one.ends:
        run = run_table.get_run(app.store, connection, ids.run_id)
        if run is not None and one.job.key is not None and one.job.key.endswith(f"/{run.round}"):
            steps.fail(app, connection, run.id, code, text)


def _chunk_settled(
    app: Effects, connection: Connection, one: Settlement, run_id: str, ordinal: str, code: str, text: str
) -> None:
    job = one.job
    if one.ends:
        died = one.status == "dead"
        steps.chunk_ended(app, connection, run_id, ordinal, job.id, died=died, code=code, text=text)
    else:
        chunk_table.wait_again(app.store, connection, run_id, ordinal, job.id, job.lease_token, code=code, text=text)
