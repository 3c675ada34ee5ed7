"""`effects stats`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from effects.cli.context import Context
from effects.cli.options import queue_option, type_option, window_options
from effects.cli.output import Table
from effects.cli.results import CommandResult, command
from effects.observation.stats import QueueStats, Stats, TypeStats, read_stats
from effects.store.db.sql import Window
from effects.text.wording import duration

BARS = "▁▂▃▄▅▆▇█"
NOTHING, GAP = "·", " "
_SHOWN = {
    "done": "done", "failed": "retried", "refused": "refused", "unknown": "unknown", "timed_out": "timed out",
    "lost": "lost", "cancelled": "cancelled", "snoozed": "snoozed",
}  # fmt: skip
_ALWAYS = ("done", "failed")


@click.command()
@window_options("were recorded")
@type_option
@queue_option
@command
def stats(context: Context, *, window: Window, job_type: str | None, queue: str | None) -> CommandResult:
    """Show throughput, outcomes and waits over time.

    The last hour by default. Workers record a row a minute for each job type and queue; minutes are kept for a day,
    hours for 30 days. Percentiles are accurate to within 25 %. A gap in a chart means that no worker ran.
    """
    numbers = read_stats(context.app.store, window, job_type=job_type, queue=queue)
    key = f"one column of a drawing is {duration(numbers.point_seconds)}; {NOTHING} is nothing, a gap is no worker"
    facts = {"since": numbers.since, "until": numbers.until}
    return CommandResult(numbers, [facts, _types_table(numbers), _queues_table(numbers.queues), key])


def drawing(points: Sequence[float | None]) -> str:
    """One character for each point, as high as it is beside the greatest; a gap where nothing is known."""
    greatest = max((point for point in points if point is not None), default=0)

    def bar(point: float | None) -> str:
        if point is None:
            return GAP
        return BARS[min(len(BARS) - 1, int(point / greatest * len(BARS)))] if point > 0 else NOTHING

    return "".join(map(bar, points))


def shown_seconds(seconds: float | None) -> str | None:
    """A short length of time: `3 ms`, `1.2 s`, `2 min 5 s`."""
    if seconds is None:
        return None
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _types_table(numbers: Stats) -> Table:
    """Rare outcomes have a column if there were any."""
    outcomes = [name for name in _SHOWN if name in _ALWAYS or any(row.outcomes[name] for row in numbers.types)]
    columns = ("type", "queue", *(_SHOWN[name] for name in outcomes), "dead", "per minute", "wait p50", "wait p95",
               "run p50", "run p95", "attempts")  # fmt: skip
    return Table(columns, [_type_row(row, outcomes) for row in numbers.types], empty="no attempts")


def _type_row(row: TypeStats, outcomes: Sequence[str]) -> tuple[object, ...]:
    durations = (row.wait.p50, row.wait.p95, row.run.p50, row.run.p95)
    return (
        row.job_type,
        row.queue,
        *(row.outcomes[name] for name in outcomes),
        row.dead,
        None if row.per_minute is None else f"{row.per_minute:.1f}",
        *map(shown_seconds, durations),
        drawing(row.points),
    )


def _queues_table(queues: Sequence[QueueStats]) -> Table:
    rows = [
        (row.queue, row.due, row.held, shown_seconds(row.oldest_due_seconds), shown_seconds(row.longest_due_seconds),
         row.unresolved, drawing(row.points))
        for row in queues
    ]  # fmt: skip
    columns = ("queue", "due", "held by limits", "oldest due", "longest due", "unresolved", "oldest due over time")
    return Table(columns, rows, empty="no live jobs")
