"""What the job types that make a report have in common."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection

from effects import ConfigurationError, Exponential, Job, JobType, Outcome, RetryPolicy, Snooze
from effects.extend import Action, Explanation, Instead, declare
from effects_reports.classify import refusal_of
from effects_reports.definitions.registry import ReportRegistry
from effects_reports.errors import ReportRefused
from effects_reports.formats import open_format
from effects_reports.formats.base import Column
from effects_reports.loading import load_runs
from effects_reports.routing import QUEUE
from effects_reports.runs.planner import Plan, Resolved
from effects_reports.source.replica import ReplicaUnfit
from effects_reports.tables.chunks import Chunk
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects
    from effects_reports.definitions.definition import ReportDefinition

UNKNOWN = "this worker does not know it: start it with `effects --app`, whose Effects(reports=[…]) has it"
REPLICA_WAIT_SECONDS = 5.0
P = TypeVar("P", bound="RunPayload")
_log = logging.getLogger("effects.reports")

declare(
    {
        "report.chunk_begun": "a chunk is this attempt's, not yet written",
        "report.part_written": "all of a part is written, not under its name",
        "report.part_renamed": "a part is under its name, the chunk not done",
        "report.assembly_begun": "all parts are there, nothing is joined",
        "report.part_joined": "a part is appended to the file, others may not be",
        "report.joined": "the file is joined, not under its name",
        "report.renamed": "the file is under its name, the run not ready",
    }
)


class RunPayload(msgspec.Struct, frozen=True):
    """Which run a job works on."""

    run_id: str


class ReportWork(JobType[P]):
    """A step of a report: few retries, a long time limit, a queue of its own.

    Nothing leaves the house here: a failure is tried again, 5 times with 10, 20, 40 and 80 s between, unless it is the
    definition's, a value's or the statement's own, which would fail again.
    """

    queue = QUEUE
    retry = RetryPolicy(backoff=Exponential(seconds=10.0), max_attempts=5)

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self.app, self.registry = app, registry

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, P]]) -> Mapping[int, Any]:
        return load_runs(self.app, connection, [(job, payload.run_id) for job, payload in jobs])

    def classify(self, error: Exception, *, released: bool) -> Outcome:
        if (refusal := refusal_of(error)) is not None:
            return refusal
        return super().classify(error, released=False)

    def instead_of_requeue(self, key: str | None, error_code: str | None) -> Instead | None:
        """A step is nothing without its run, which knows its steps."""
        if key is None:
            return None
        resume = Action(name="resume", command=f"effects reports resume {key.partition('/')[0]}")
        return Instead(text=f"`{resume.command}` takes up its run again", actions=(resume,))

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        """Say whose step it is: the run knows what becomes of all of them."""
        if key is None:
            return None
        run_id = key.partition("/")[0]
        return Explanation(
            meaning=f"a step of the report run {run_id}", follows=f"`effects reports show {run_id}` shows the run"
        )

    def unknown_report(self, run: Run) -> Outcome | None:
        """Where this worker was started without the app's definitions, another may have them: no try is used up."""
        if run.report in self.registry:
            return None
        return self.wait_for_operator(f"report {run.report!r}: {UNKNOWN}")

    def missing_packing(self, run: Run) -> Outcome | None:
        """Where the plan chose a compressor that is not installed here, another worker has it: no part differs."""
        try:
            open_format(run.format, run.dialect, run.packing)
        except ConfigurationError as error:
            return self.wait_for_operator(f"report {run.report!r}: {error}")
        return None

    def wait_for_replica(self, unfit: ReplicaUnfit) -> Outcome:
        """Look again soon: what it lacks may come by itself, and no try is used up."""
        _log.warning("report.replica_unfit", extra={"code": unfit.code, "reason": str(unfit)})
        return Snooze(REPLICA_WAIT_SECONDS, str(unfit), ages=False, code=unfit.code)


def check_unchanged(
    definition: ReportDefinition, run: Run, sheets: Sequence[FrozenSheet], parts: Sequence[Resolved]
) -> None:
    """Refuse a run that another version of its definition has planned, or one with other columns.

    Raises:
        ReportRefused: the message tells what to do.
    """
    planned = [(sheet.name, _plain(sheet.columns)) for sheet in sheets]
    if definition.version == run.version and planned == [(part.sheet, _plain(part.columns)) for part in parts]:
        return
    raise ReportRefused(
        f"report {run.report!r} was planned as version {run.version} and is version {definition.version} now, or has "
        "other columns: request it again",
        code="definition_changed",
    )


class FrozenSheet(msgspec.Struct, frozen=True):
    """The columns of a sheet, and the number of its first chunk. The one sheet of any other report has no name."""

    name: str | None
    first: int
    columns: list[Column]


def freeze_columns(parts: Sequence[Resolved], plans: Sequence[Plan]) -> list[Any]:
    """The columns as a plan keeps them, with their kinds in a typed file; of a workbook report, those of each sheet."""
    if parts[0].sheet is None:
        return _plain(parts[0].columns)
    firsts = accumulate((len(plan.ranges) for plan in plans), initial=1)
    return [
        {"sheet": part.sheet, "first": first, "columns": _plain(part.columns)}
        for part, first in zip(parts, firsts, strict=False)
    ]


def frozen_sheets(frozen: str | None) -> list[FrozenSheet]:
    """What a plan has kept."""
    kept = msgspec.json.decode(frozen or "[]")
    if not kept or isinstance(kept[0], list):
        return [FrozenSheet(None, 1, _columns(kept))]
    return [FrozenSheet(sheet["sheet"], sheet["first"], _columns(sheet["columns"])) for sheet in kept]


def sheet_of(sheets: Sequence[FrozenSheet], chunk: Chunk) -> int:
    """Which of the sheets a chunk belongs to, from 0 on."""
    return sum(sheet.first <= chunk.place[0] for sheet in sheets) - 1


def _plain(columns: Sequence[Column]) -> list[list[str]]:
    return [[column.name, column.header, *filter(None, [column.kind])] for column in columns]


def _columns(plain: list[list[str]]) -> list[Column]:
    return [Column(name, header, kind="".join(kind)) for name, header, *kind in plain]
