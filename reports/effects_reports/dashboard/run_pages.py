"""Runs: a list with bars, one with its chunks, and its file for those who may see what is personal."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from itertools import islice
from typing import Any

from effects import DeliveryError
from effects.extend import AuditAction, attachment
from effects.web import LIVE_SECONDS, PAGE_ROWS, PageAnswer, Visit, choice_of, filters_of, notice, page_of
from effects_reports.api import ReportStatus, failing_step, find_reports, report_status
from effects_reports.delivery.overview import run_deliveries
from effects_reports.errors import ReportNotFound, ReportStateError
from effects_reports.results.result_file import ready_status
from effects_reports.tables.chunks import chunks_of
from effects_reports.tables.lists import RunFilters
from effects_reports.tables.reports import count_download

REVEAL, DOWNLOAD = AuditAction("report", "reveal"), AuditAction("report", "download")
STATES = ("requested", "planning", "running", "assembling", "ready", "failed", "cancelled", "expired")
CHUNKS_MAX = 2_000
ROWS_SHOWN = 20
HEAD_BYTES = 64 * 1024
_CELLS_MAX = 50
_SHOWN_TYPES = ("text/csv", "application/x-ndjson")


def runs(visit: Visit) -> PageAnswer:
    """Runs, newest first."""
    chosen = filters_of(visit.query, ("report", "before"))
    state = choice_of(visit.query, "state", STATES)
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
        chunks = chunks_of(visit.app.store, connection, run_id)
    return visit.page(
        "reports/run.html", revealed=rows is not None, run=status, chunks=chunks[:CHUNKS_MAX],
        deliveries=run_deliveries(visit.app, status),
        more=len(chunks) - CHUNKS_MAX, step=None if status.ended else failing_step(visit.app, run_id), rows=rows,
        is_text=(status.content_type or "").partition(";")[0] in _SHOWN_TYPES, notice=notice(visit),
    )  # fmt: skip


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
