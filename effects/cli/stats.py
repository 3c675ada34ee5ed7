"""Numbers and what watches them: `effects stats`, `effects metrics`, `effects alerts` (check, list)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import click
import msgspec

from effects.cli.context import Context, pass_context
from effects.cli.options import limit_option, queue_option, type_option, window_options
from effects.cli.results import CommandResult, command, listed
from effects.cli.table import Table
from effects.kit.exit_codes import ExitCode
from effects.kit.text.wording import duration
from effects.operate.alert_check import check_alerts
from effects.operate.metrics import database_families, render
from effects.operate.stats import QueueStats, Stats, TypeStats, read_stats
from effects.operate.tables.alert_episodes import episodes
from effects.store.db.sql import Window

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


@click.command()
@pass_context
def metrics(context: Context) -> None:
    """Print queue metrics in the Prometheus text format.

    For the textfile collector of node_exporter, from cron. `effects work --metrics-port` serves the same metrics and
    those of the worker.
    """
    click.echo(render(database_families(context.app)), nl=False)


@click.group()
def alerts() -> None:
    """Check the alerts of the app (`Effects(alerts=[…])`)."""


@alerts.command()
@command
def check(context: Context) -> CommandResult:
    """Evaluate every alert and enqueue a job per new episode.

    The built-in schedule `effects.alerts` does so every minute. Exit codes: 0 no alert fires, 1 an alert fires.
    """
    firing = check_alerts(context.app)
    rows = [(fired.alert, fired.summary, fired.job_id) for fired in firing]
    table = Table(("alert", "what", "new job"), rows, empty="no alerts firing")
    return CommandResult(firing, table, exit_code=ExitCode.FINDINGS if firing else ExitCode.DONE)


@alerts.command("list")
@limit_option
@command
def list_alerts(context: Context, *, limit: int) -> CommandResult:
    """List alerts with their rules and newest episodes."""
    app = context.app
    all_episodes = episodes(app.store)
    states = []
    for alert in app.alerts:
        of_alert = [episode for episode in all_episodes if episode.alert == alert.name]
        fires = ", ".join(episode.subject or "yes" for episode in of_alert if episode.open)
        newest = max((episode.opened_at for episode in of_alert), default=None)
        states.append(_AlertState(alert.name, str(alert.rule), alert.notify, fires or "no", newest))
    return listed(states, limit, _alerts_table)


class _AlertState(msgspec.Struct, frozen=True):
    alert: str
    rule: str
    enqueues: str
    fires: str
    last_began: dt.datetime | None


def _alerts_table(states: Sequence[_AlertState]) -> Table:
    return Table(
        ("alert", "rule", "enqueues", "fires", "last began"),
        list(map(msgspec.structs.astuple, states)),
        empty="no alerts",
    )
