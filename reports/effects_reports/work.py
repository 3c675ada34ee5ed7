"""What the job types that make a report have in common."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection

from effects.crashpoints import declare
from effects.errors import ConfigurationError, EnqueueError
from effects.job import Job
from effects.job_type import JobType
from effects.logs import Seldom
from effects.outcome import Outcome, Refused, Snooze
from effects.retry import Exponential, RetryPolicy
from effects_reports.catalogue import QUEUE, Catalogue
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import Column
from effects_reports.tables import runs as run_table
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects.app import Effects
    from effects_reports.definition import ReportDefinition

RECHECK_SECONDS = 30.0
UNKNOWN = "this worker does not know it: start it with `effects --app`, whose Effects(reports=[…]) has it"
_log = logging.getLogger("effects.reports")
P = TypeVar("P", bound="RunPayload")

declare(
    {
        "report.chunk_begun": "a chunk is this attempt's, nothing of it is written",
        "report.part_written": "all of a part is written, not under its name",
        "report.part_renamed": "a part is under its name, the chunk not done",
        "report.assembly_begun": "all parts are there, nothing is joined",
        "report.joined": "the file is joined, not under its name",
        "report.renamed": "the file is under its name, the run not ready",
    }
)


class RunPayload(msgspec.Struct, frozen=True):
    """Which run a job works on."""

    run_id: str


class Loaded(msgspec.Struct, frozen=True):
    """The run as it is now, and the lease of the attempt."""

    run: Run | None
    job_id: int
    token: int


class ReportWork(JobType[P]):
    """A step of a report: few retries, a long time limit, a lane of its own.

    Nothing leaves the house here: a failure is tried again, whatever it was, 5 times with 10, 20, 40 and 80 s between.
    """

    queue = QUEUE
    retry = RetryPolicy(backoff=Exponential(seconds=10.0), max_attempts=5)

    def __init__(self, app: Effects, catalogue: Catalogue) -> None:
        self.app, self.catalogue = app, catalogue
        self._unknown = Seldom(_log, "report.unknown")

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, P]]) -> Mapping[int, Any]:
        runs = run_table.get_runs(self.app.store, connection, sorted({payload.run_id for _, payload in jobs}))
        return {job.id: Loaded(runs.get(payload.run_id), job.id, job.lease_token) for job, payload in jobs}

    def classify(self, error: Exception, *, released: bool) -> Outcome:
        if isinstance(error, ConfigurationError | EnqueueError):  # the definition, or a request that no longer fits it
            return Refused(str(error), code=type(error).__name__)
        return super().classify(error, released=False)

    def unknown_report(self, run: Run) -> Outcome | None:
        """Where this worker was started without the app's definitions, another may have them: no try is used up."""
        if run.report in self.catalogue:
            return None
        reason = f"report {run.report!r}: {UNKNOWN}"
        self._unknown.say(reason)
        return Snooze(RECHECK_SECONDS, reason, ages=False)


def check_unchanged(definition: ReportDefinition, run: Run, columns: Sequence[Column]) -> None:
    """Refuse a run that another version of its definition has planned, or one with other columns.

    Raises:
        ReportRefused: says what to do.
    """
    if definition.version == run.version and frozen_columns(columns) == msgspec.json.decode(run.columns or "[]"):
        return
    raise ReportRefused(
        f"report {run.report!r} was planned as version {run.version} and is version {definition.version} now, or has "
        "other columns: request it again",
        code="definition_changed",
    )


def frozen_columns(columns: Sequence[Column]) -> list[list[str]]:
    """The file's columns as a plan keeps them."""
    return [[column.name, column.header] for column in columns]
