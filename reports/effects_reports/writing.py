"""Writing a checked request: the run, its ledger row and the job that plans it. A known key gives what it holds.

The notices of a request that finds its run there are added to those of the run.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects
from effects.extend.jobs import insert_reserved, reserve_jobs
from effects.extend.ledger import IdempotentWriter, KeyHolder, write_once
from effects_reports.delivery.buckets import check_buckets
from effects_reports.request import CheckedRequest
from effects_reports.routing import plan_job
from effects_reports.runs.notify import Notify, add_notices, keep_notices, lacks_notices, tell
from effects_reports.tables import reports as report_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.reports import Artifact
from effects_reports.tables.runs import NewRun, Run

AGAIN = ("failed", "cancelled", "expired")  # states after which a repeated request begins a new generation


class ReportReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `request_report` gives back. It becomes true when the caller's transaction commits.

    `existing`: the key was already used; `run_id` is then its run, in the state `state`.
    """

    run_id: str
    report: str
    key: str
    generation: int = 1
    state: str = "requested"
    existing: bool = False


def write_request(app: Effects, connection: Connection, request: CheckedRequest) -> ReportReceipt:
    """Write it, after a look at the buckets that it names.

    Raises:
        ReportInvalid: there is no such bucket.
        IdempotencyConflict: the key belongs to a run of other params or another format.
        KeyUnavailable: EFFECTS_KEYS lacks the key of a bucket, or of the notices that the run has.
    """
    check_buckets(app, connection, request.notify)
    return write_run(app, connection, request)


def write_run(app: Effects, connection: Connection, request: CheckedRequest) -> ReportReceipt:
    """The same without that look: a bucket that is gone is the matter of its own delivery."""
    while True:
        [receipt] = write_once(app.keys, connection, [request], _RunWriter(app, connection))
        if not receipt.existing or not lacks_notices(app, connection, receipt.run_id, request.notify):
            return receipt
        run = run_table.lock_run(app.store, connection, receipt.run_id)
        if run is not None and run.state not in AGAIN:  # else it ended between the two: the key is free again
            _join(app, connection, run, request.notify)
            return msgspec.structs.replace(receipt, state=run.state)


def _join(app: Effects, connection: Connection, run: Run, notices: Sequence[Notify]) -> None:
    """Have a run that is there tell these too; at once where it is ready. Its row is locked: each is told once."""
    first = add_notices(app, connection, run.id, notices)
    if run.state == "ready":
        generated = report_table.generated(app.store, connection, [run.id])[run.id]
        artifact = msgspec.convert(generated, Artifact, from_attributes=True)
        tell(app, connection, run, "ready", artifact, "", first=first)


class _RunWriter(IdempotentWriter[CheckedRequest, ReportReceipt]):
    """Writes one run; a key whose newest run has failed, was cancelled or has expired is free again."""

    def __init__(self, app: Effects, connection: Connection) -> None:
        self._app = app
        self._connection = connection
        self._newest: Row[Any] | None = None

    def insert(self, requests: Sequence[CheckedRequest]) -> list[ReportReceipt | None]:
        [request] = requests
        run_id = new_id()
        self._newest = run_table.newest_generation(self._app.store, self._connection, request.report, request.key)
        if self._newest is not None and self._newest.state not in AGAIN:
            return [None]
        generation = 1 if self._newest is None else self._newest.generation + 1
        if not _insert(self._app, self._connection, request, run_id, generation):
            return [None]  # another request has just taken this generation
        return [ReportReceipt(run_id=run_id, report=request.report, key=request.key, generation=generation)]

    def holders(self, requests: Sequence[CheckedRequest]) -> list[KeyHolder[ReportReceipt] | None]:
        """The run that `insert` has seen."""
        if self._newest is None or self._newest.state in AGAIN:
            return [None]
        return [_holder(self._newest)]

    def content(self, request: CheckedRequest) -> str:
        return request.canonical


def _holder(row: Row[Any]) -> KeyHolder[ReportReceipt]:
    receipt = ReportReceipt(
        run_id=row.run_id, report=row.report, key=row.key, generation=row.generation, state=row.state, existing=True
    )
    return KeyHolder(
        receipt=receipt,
        digest=row.digest,
        key=f"report {row.report!r}: the request key {row.key!r}",
        owner=f"run {row.run_id}",
        job_id=row.job_id,
    )


def _insert(app: Effects, connection: Connection, request: CheckedRequest, run_id: str, generation: int) -> bool:
    [job] = reserve_jobs(app, connection, [plan_job(run_id, request.report, 1)])
    run = NewRun(
        id=run_id, report=request.report, key=request.key, generation=generation,
        digest=app.keys.digest(request.canonical), job_id=job.id, params=request.params,
        format=request.format, dialect=request.dialect, consistency=request.consistency,
        prefix=f"reports/{request.report}/{run_id}-{secrets.token_hex(16)}",
    )  # fmt: skip
    if not run_table.insert_run(app.store, connection, run):
        return False
    keep_notices(app, connection, run_id, request.notify)
    insert_reserved(app, connection, [job])
    return True


def new_id() -> str:
    """`rep_…`: 48 bits of milliseconds and 80 random ones in hexadecimal, so that ids sort by the time of making."""
    return f"rep_{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
