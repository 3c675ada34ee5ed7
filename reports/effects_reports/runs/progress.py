"""How far a run is. Pure: numbers in, numbers out."""

from __future__ import annotations

import msgspec

from effects_reports.tables.chunks import ChunkCounts
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


def progress_of(run: Run, counts: ChunkCounts) -> Progress:
    """The run's progress by its chunks.

    Rows that an attempt has read count at once; another attempt at the same chunk reads them again, and until it has
    come as far nothing moves. The rate is that of the finished chunks, times those that run now.
    """
    rate = _rate(counts)
    total = run.rows_total
    left = None if rate is None or total is None or run.state != "running" else max(0, total - counts.rows_seen) / rate
    return Progress(
        fraction=max(run.progress_floor, _fraction(run, counts)),
        rows_done=counts.rows_seen if total is None or run.total_kind != "exact" else min(counts.rows_seen, total),
        rows_total=total,
        total_kind=run.total_kind,
        bytes_done=counts.bytes_done,
        chunks_done=counts.done,
        chunks_total=counts.chunks,
        rows_per_second=rate,
        seconds_left=left,
    )


def has_all_chunks(run: Run, counts: ChunkCounts) -> bool:
    """Whether the chunks hold all rows that the plan has counted; of rows that it has not, whether there is a chunk."""
    if run.total_kind != "exact" or counts.unplanned:
        return counts.chunks > 0
    return counts.rows_planned == run.rows_total


def _fraction(run: Run, counts: ChunkCounts) -> float:
    if run.state in ("ready", "expired"):
        return 1.0
    if run.state == "assembling":
        return 1.0 - ASSEMBLY_SHARE
    if not counts.chunks:
        return 0.0
    done = min(1.0, counts.rows_seen / run.rows_total) if run.rows_total else counts.done / counts.chunks
    return (1.0 - ASSEMBLY_SHARE) * done


def _rate(counts: ChunkCounts) -> float | None:
    if not counts.rows_done or counts.seconds_done <= 0:
        return None
    return counts.rows_done / counts.seconds_done * max(1, counts.running)
