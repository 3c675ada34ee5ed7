"""The pages of reports, by the entry point `effects.pages`: runs, buckets, and what the core's pages show of both."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median
from typing import Any

from effects import DeliveryError
from effects.extend.actions import AuditAction
from effects.extend.files import attachment
from effects.web import (
    LIVE_SECONDS,
    PAGE_ROWS,
    ActionCall,
    NavigationEntry,
    PageAction,
    PageAnswer,
    PageRoute,
    Pages,
    StandingLine,
    StoryLink,
    Visit,
    choice_of,
    filters_of,
    notice,
    page_of,
    story_values,
)
from effects_reports.admin import cancel_report, resume_report
from effects_reports.api import (
    ReportStatus,
    bucket_health,
    current_step,
    find_reports,
    list_reports,
    ready_status,
    report_status,
    run_deliveries,
)
from effects_reports.errors import ReportNotFound, ReportStateError
from effects_reports.routing import ASSEMBLE_TYPE, CHUNK_TYPE, DELIVER_TYPE, PLAN_TYPE
from effects_reports.tables.chunks import shown_chunks
from effects_reports.tables.reports import count_download
from effects_reports.tables.runs import RunFilters

REVEAL, DOWNLOAD = AuditAction("report", "reveal"), AuditAction("report", "download")
STATES = ("requested", "planning", "running", "assembling", "ready", "failed", "cancelled", "expired")
CHUNKS_MAX = 2_000
ROWS_SHOWN = 20
HEAD_BYTES = 64 * 1024
_CELLS_MAX = 50
_COMPARED, _USUAL_SECONDS = 10, 60.0
_SHOWN_TYPES = ("text/csv", "application/x-ndjson")


def runs(visit: Visit) -> PageAnswer:
    """Runs, newest first."""
    chosen = filters_of(visit.query, ("report", "before"))
    state = choice_of(visit.query, "status", STATES)
    shown, older = page_of(find_reports(visit.app, RunFilters(**chosen, state=state, limit=PAGE_ROWS + 1)), "run_id")
    return visit.page(
        "reports/runs.html", runs=shown, older=older, first=chosen["before"] is None, state=state,
        states=STATES, report=chosen["report"], notice=notice(visit),
    )  # fmt: skip


def run(visit: Visit) -> PageAnswer:
    """One run with its chunks."""
    return _run(visit)


def first_rows(visit: Visit) -> PageAnswer:
    """The same with the first rows of its file, noted in the audit log first."""
    status = ready_status(visit.values["run"], effects=visit.app)
    visit.note_look(REVEAL, status.run_id)
    return _run(visit, rows=_head(visit, status))


def _run(visit: Visit, rows: list[list[str]] | None = None) -> PageAnswer:
    run_id = visit.values["run"]
    status = visit.read(("run", run_id), LIVE_SECONDS / 2, lambda: report_status(run_id, effects=visit.app))
    with visit.app.store.read() as connection:
        chunks = shown_chunks(visit.app.store, connection, run_id)
    return visit.page(
        "reports/run.html", revealed=rows is not None, run=status, chunks=chunks[:CHUNKS_MAX],
        deliveries=run_deliveries(visit.app, status),
        more=len(chunks) - CHUNKS_MAX, rows=rows, usual=_usual_seconds(visit, status.report),
        step=None if status.ended else _step(visit, run_id),
        failed=next((chunk for chunk in chunks if chunk.state == "failed"), None),
        is_text=(status.content_type or "").partition(";")[0] in _SHOWN_TYPES, notice=notice(visit),
    )  # fmt: skip


def _step(visit: Visit, run_id: str) -> Any:
    """What it waits for, as that job's story has it; None between two steps."""
    job_id = current_step(visit.app, run_id)
    return None if job_id is None else story_values(visit, visit.evidence(job_id))


def _usual_seconds(visit: Visit, report: str) -> float | None:
    """How long the newest runs of a report took, the median; None before the first one."""

    def read() -> float | None:
        done = find_reports(visit.app, RunFilters(report=report, state="ready", limit=_COMPARED))
        seconds = [(each.ended_at - each.created_at).total_seconds() for each in done if each.ended_at is not None]
        return median(seconds) if seconds else None

    return visit.read(("usual", report), _USUAL_SECONDS, read)


def _head(visit: Visit, status: ReportStatus) -> list[list[str]]:
    """The first rows of a text file; one that goes on behind what was read is left out."""
    if (status.content_type or "").partition(";")[0] not in _SHOWN_TYPES:
        raise ReportStateError("only text files show their first rows here: download it")
    try:
        stop = min(HEAD_BYTES, status.bytes or 0)
        data = b"".join(visit.app.storage.read(str(status.artifact), 0, stop))
    except DeliveryError as error:
        raise ReportNotFound(f"the file cannot be read now: {error}") from None
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data.removeprefix(codecs.BOM_UTF8))
    rows = list(islice(_rows(text, status), ROWS_SHOWN + 2))
    is_whole = stop == status.bytes or len(rows) == ROWS_SHOWN + 2
    return (rows if is_whole else rows[:-1])[: ROWS_SHOWN + 1]


def _rows(text: str, status: ReportStatus) -> Iterator[list[str]]:
    if "ndjson" in str(status.content_type):
        return ([line] for line in text.split("\n") if line)
    delimiter = ";" if status.dialect.startswith("excel_semicolon") else ","
    return (row[:_CELLS_MAX] for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


def download(visit: Visit) -> PageAnswer:
    """The file, piece by piece, noted in the audit log first and counted as a download."""
    status = ready_status(visit.values["run"], effects=visit.app)
    visit.note_look(DOWNLOAD, status.run_id)
    try:
        pieces: Any = iter(visit.app.storage.read(str(status.artifact)))
        first = next(pieces, b"")
    except DeliveryError as error:
        raise ReportNotFound(f"the file cannot be read now: {error}") from None
    count_download(visit.app.store, status.run_id)
    headers = (
        ("content-disposition", attachment(status.filename or status.run_id)), ("cache-control", "private, no-store"),
        ("content-length", str(status.bytes or 0)), ("content-security-policy", "default-src 'none'; sandbox"),
    )  # fmt: skip
    return PageAnswer(200, b"", status.content_type or "application/octet-stream", headers, _with_first(first, pieces))


def _with_first(first: bytes, pieces: Any) -> Any:
    if first:
        yield first
        yield from pieces


BUCKETS_MAX = 500
RECENT = 60


def buckets(visit: Visit) -> PageAnswer:
    """Buckets by name; no credentials, which are sealed."""
    every = visit.read("buckets", LIVE_SECONDS, lambda: bucket_health(visit.app))
    return visit.page(
        "reports/buckets.html", buckets=every[:BUCKETS_MAX], more=len(every) - BUCKETS_MAX, recent=RECENT,
        notice=notice(visit),
    )  # fmt: skip


_NAMED_MAX = 3


def _links(visit: Visit, evidence: Any) -> Sequence[StoryLink]:
    """Of the jobs of a run: the run. Of a delivery into a bucket: the buckets."""
    run_id = evidence.facts.about.get("run")
    if evidence.job_type == DELIVER_TYPE:
        return (StoryLink("The buckets", visit.url("reports_buckets")),)
    if evidence.job_type not in (PLAN_TYPE, CHUNK_TYPE, ASSEMBLE_TYPE) or run_id is None:
        return ()
    return (StoryLink("The run", visit.url("reports_run", run=run_id)),)


def _find(visit: Visit, question: str) -> Sequence[StoryLink]:
    """A run by its id."""
    if not question.startswith("rep_"):
        return ()
    try:
        run = report_status(question, effects=visit.app)
    except ReportNotFound:
        return ()
    return (StoryLink(f"Run of {run.report}", visit.url("reports_run", run=run.run_id)),)


def _standing(visit: Visit) -> Sequence[StandingLine]:
    """Runs that are under way."""
    runs = list_reports(state="running", limit=_NAMED_MAX, effects=visit.app)
    return [
        StandingLine("running", f"report {run.report}: {run.progress.fraction:.0%}",
                 visit.url("reports_run", run=run.run_id))
        for run in runs
    ]  # fmt: skip


def _to_run(visit: Visit, name: str) -> str:
    return visit.url("reports_run", run=name)


def _cancel(call: ActionCall) -> None:
    cancel_report(call.subject, actor=call.actor, reason=call.reason, effects=call.visit.app)


def _resume(call: ActionCall) -> None:
    resume_report(call.subject, actor=call.actor, reason=call.reason, effects=call.visit.app)


ACTIONS = (
    PageAction("reports_cancel", "/reports/cancel", "run", "operator", "Cancel",
               "Chunks that wait end unmade, those under way stop within a second, finished ones are kept. It can be "
               "resumed.", "It is cancelled, or is about to be.", _cancel, _to_run),
    PageAction("reports_resume", "/reports/resume", "run", "operator", "Resume",
               "Only chunks that are not done are made.", "It is taken up again.", _resume, _to_run),
)  # fmt: skip

PAGES = Pages(
    name="reports",
    label="Reports",
    package="effects_reports.dashboard",
    navigation=(NavigationEntry("reports", "Runs", "r"), NavigationEntry("reports_buckets", "Buckets", "f")),
    routes=(
        PageRoute("reports", ("GET",), "/reports", runs, role="viewer", personal=False),
        PageRoute("reports_buckets", ("GET",), "/reports/buckets", buckets, role="viewer", personal=False),
        PageRoute("reports_run", ("GET",), "/reports/runs/{run}", run, role="viewer", personal=False),
        PageRoute("reports_rows", ("POST",), "/reports/runs/{run}/rows", first_rows, role="viewer",
                  personal=True, acts=True),
        PageRoute("reports_file", ("POST",), "/reports/runs/{run}/file", download, role="viewer",
                  personal=True, acts=True),
    ),
    actions=ACTIONS,
    missing=(ReportNotFound,),
    links=_links,
    standing=_standing,
    find=_find,
)  # fmt: skip
