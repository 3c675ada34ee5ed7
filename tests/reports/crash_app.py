"""What `effects --app tests.reports.crash_app:app` loads in a worker that is to be struck."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Row

from effects import Effects, Fixed, RetryPolicy
from effects_reports import report, workbook_report
from effects_reports.formats.opening import FORMATS
from tests.reports.shop import REPORTS, orders, totals_report

ROW_SECONDS = 0.0005
CHUNK_ROWS = 25
_pause = threading.Event()


def slowly(row: Row[Any]) -> Sequence[Any]:
    _pause.wait(ROW_SECONDS)
    return row


@report(
    "slow", key=("id",), chunk_rows=CHUNK_ROWS, columns=("id", "customer", "cents"), map_row=slowly, dialect="rfc4180"
)
def slow_report(params: dict[str, Any]) -> sa.Select[Any]:
    """Its rows take their time, so that a kill finds a chunk half written."""
    return sa.select(orders)


PASSWORD = "correct horse battery"


@report(
    "quick", key=("id",), chunk_rows=CHUNK_ROWS, dialect="rfc4180", formats=(*FORMATS, "csv.zip"),
    password=lambda params, key: PASSWORD,
)  # fmt: skip
def quick_report(params: dict[str, Any]) -> sa.Select[Any]:
    """The route without Python."""
    return sa.select(orders)


both_report = workbook_report("both", {"Quick": quick_report, "Totals": totals_report, "Again": quick_report})


def make(url: str | None = None, **options: Any) -> Effects:
    """An app that tries again soon."""
    app = Effects(url, reports=[*REPORTS, slow_report, quick_report, both_report], **options)
    for name in ("report.plan", "report.chunk", "report.assemble"):
        app.job_types.get(name).retry = RetryPolicy(backoff=Fixed(0.1), max_attempts=100)
    return app


app = make()
