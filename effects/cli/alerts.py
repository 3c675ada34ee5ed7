"""`effects alerts`: check, list."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from effects.alert_check import check_alerts
from effects.cli.context import Context
from effects.cli.options import limit_option
from effects.cli.output import Table
from effects.cli.results import CommandResult, command, listed
from effects.exit_codes import ExitCode
from effects.store.db.records import Moment
from effects.store.operator.alert_episodes import episodes


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
def list_(context: Context, *, limit: int) -> CommandResult:
    """List alerts with their rules and newest episodes."""
    app = context.app
    all_episodes = episodes(app.store)
    states = []
    for alert in app.alerts:
        of_alert = [episode for episode in all_episodes if episode.alert == alert.name]
        fires = ", ".join(episode.subject or "yes" for episode in of_alert if episode.open)
        newest = max((episode.opened_at for episode in of_alert), default=None)
        states.append(_AlertState(alert.name, str(alert.rule), alert.notify, fires or "no", newest))
    return listed(states, limit, _table)


class _AlertState(msgspec.Struct, frozen=True):
    alert: str
    rule: str
    enqueues: str
    fires: str
    last_began: Moment | None


def _table(states: Sequence[_AlertState]) -> Table:
    return Table(
        ("alert", "rule", "enqueues", "fires", "last began"),
        list(map(msgspec.structs.astuple, states)),
        empty="no alerts",
    )
