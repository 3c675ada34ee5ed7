"""What the job types that make a report have in common, and how many chunks one worker takes at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection

from effects import ConfigurationError, Effects, Exponential, Job, JobType, Outcome, RetryPolicy, Snooze
from effects.extend.actions import Action, Explanation, Instead, read_worker_queues
from effects.extend.files import StorageFull
from effects.extend.process import RateLimitedLogger, declare, own_logger
from effects.extend.sql import Sql, as_json
from effects_reports.admin import cancel_report, resume_report
from effects_reports.classify import refusal_of
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import Column
from effects_reports.formats.opening import open_format
from effects_reports.loading import load_runs
from effects_reports.routing import QUEUE, limit_key
from effects_reports.runs.planner import Plan, Resolved
from effects_reports.source.replica import ReplicaUnfit
from effects_reports.state import ReportRegistry
from effects_reports.tables import runs as run_table
from effects_reports.tables.chunks import Chunk
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects
    from effects_reports.definitions.definition import ReportDefinition

UNKNOWN = "this worker does not know it: start it with `effects --app`, whose Effects(reports=[…]) has it"
_REPLICA_WAIT_SECONDS = 5.0
FULL_SECONDS_MAX = 86_400.0  # how long a run waits for room in the storage
_ROOM_SECONDS_MIN, _ROOM_SECONDS_MAX, _LOOK_SHARE = 60.0, 300.0, 0.1
P = TypeVar("P", bound="RunPayload")
_log = own_logger("effects.reports")

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
    """A step of a report: few retries, a long time limit, its own queue.

    Nothing leaves the house here: a failure is tried again, 5 times with 10, 20, 40 and 80 s between, unless it is the
    definition's, a value's or the statement's own, which would fail again.
    """

    internal = True
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
        resume = Action(name="resume", command=f"effects retry {key.partition('/')[0]}")
        return Instead(text=f"`{resume.command}` takes up its run again", actions=(resume,))

    def retry_effect(self, connection: Connection, key: str, *, actor: str, reason: str | None) -> str:
        """Resume the run."""
        run_id = self._run_of(connection, key)
        state = resume_report(run_id, actor=actor, reason=reason, session=connection, effects=self.app)
        return f"{run_id} {state}: what is missing is made, finished chunks are kept"

    def cancel_effect(self, connection: Connection, key: str, *, actor: str, reason: str | None) -> str:
        """Stop the run. Its finished chunks are kept for a day."""
        run_id = self._run_of(connection, key)
        state = cancel_report(run_id, actor=actor, reason=reason, session=connection, effects=self.app)
        return f"{run_id} {state}"

    def _run_of(self, connection: Connection, key: str) -> str:
        """The run of a step's key, or of its name in the ledger."""
        assert self.ledger is not None
        return self.ledger.about(self.app.store, connection, key).get("run", key.partition("/")[0])

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

    def wait_for_room(self, run: Run, full: StorageFull) -> Outcome:
        """Look again for a day, less and less often: no try is used up. Then the run ends, to be resumed."""
        with self.app.store.begin() as connection:
            waited = run_table.note_full(self.app.store, connection, run.id)
        if waited >= FULL_SECONDS_MAX:
            return full
        self._full_log.error(f"{self.app.storage.url}: {full.cure}")
        seconds = min(max(waited * _LOOK_SHARE, _ROOM_SECONDS_MIN), _ROOM_SECONDS_MAX)
        return Snooze(seconds, f"the storage {self.app.storage.url} is full: {full.cure}", ages=False, code=full.code)

    @cached_property
    def _full_log(self) -> RateLimitedLogger:
        return RateLimitedLogger(_log, "report.storage_full")

    def wait_for_replica(self, unfit: ReplicaUnfit) -> Outcome:
        """Look again soon: what it lacks may come by itself, and no try is used up."""
        _log.warning("report.replica_unfit", extra={"code": unfit.code, "reason": str(unfit)})
        return Snooze(_REPLICA_WAIT_SECONDS, str(unfit), ages=False, code=unfit.code)


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


class Shares:
    """A worker's share of each report: its cap in flight, divided by the workers that are alive and have its queue.

    A worker with free threads would take all that the cap allows, and Python would make them one after the other. Kept
    in memory and brought up to date with every batch that is loaded; a report of which nothing is known has one.
    """

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app, self._registry = app, registry
        self._shares: dict[str, int | None] = {}

    def of(self, key: str) -> int | None:
        """How many attempts of this limit key this worker may have; None: any number."""
        return self._shares.get(key, 1)

    def update(self, connection: Connection, reports: Iterable[str]) -> None:
        """Look again how many workers there are, and what the caps are."""
        caps = {limit_key(name): self._registry.get(name).parallel for name in reports if name in self._registry}
        if not caps:
            return
        store, lease_seconds = self._app.store, self._app.settings.lease_seconds
        rows = store.all(connection, _caps, keys=as_json(sorted(caps)))
        stored: dict[str, int | None] = {row.limit_key: row.max_in_flight for row in rows}
        workers = sum(QUEUE in queues for queues in read_worker_queues(store, connection, lease_seconds))
        for key, parallel in caps.items():
            cap = stored.get(key, parallel)
            self._shares[key] = None if cap is None else max(1, math.ceil(cap / max(1, workers)))


def _caps(sql: Sql) -> str:
    return f"SELECT limit_key, max_in_flight FROM {sql.limits} WHERE limit_key {sql.any_of('keys')}"
