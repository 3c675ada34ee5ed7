"""How far a run is. Pure: numbers in, numbers out."""

from __future__ import annotations

import msgspec

from effects_reports.tables.chunks import Tally
from effects_reports.tables.runs import Run

ASSEMBLY_SHARE = 0.05  # of the bar is kept for joining the parts


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, as `report_status` reads it. `fraction` is 0 to 1 and never less than it was before."""

    fraction: float
    rows_done: int
    rows_total: int | None
    total_kind: str
    bytes_done: int
    chunks_done: int
    chunks_total: int
    rows_per_second: float | None
    seconds_left: float | None


def progress_of(run: Run, tally: Tally) -> Progress:
    """The run's progress by its chunks.

    Rows that an attempt has read count at once; another attempt at the same chunk reads them again, and until it has
    come as far nothing moves. The rate is that of the finished chunks, times those that run now.
    """
    rate = _rate(tally)
    total = run.rows_total
    left = None if rate is None or total is None or run.state != "running" else max(0, total - tally.rows_seen) / rate
    return Progress(
        fraction=max(run.progress_floor, _fraction(run, tally)),
        rows_done=tally.rows_seen if total is None or run.total_kind != "exact" else min(tally.rows_seen, total),
        rows_total=total,
        total_kind=run.total_kind,
        bytes_done=tally.bytes_done,
        chunks_done=tally.done,
        chunks_total=tally.chunks,
        rows_per_second=rate,
        seconds_left=left,
    )


def _fraction(run: Run, tally: Tally) -> float:
    if run.state in ("ready", "expired"):
        return 1.0
    if run.state == "assembling":
        return 1.0 - ASSEMBLY_SHARE
    if not tally.chunks:
        return 0.0
    done = min(1.0, tally.rows_seen / run.rows_total) if run.rows_total else tally.done / tally.chunks
    return (1.0 - ASSEMBLY_SHARE) * done


def _rate(tally: Tally) -> float | None:
    if not tally.rows_done or tally.seconds_done <= 0:
        return None
    return tally.rows_done / tally.seconds_done * max(1, tally.running)
