"""`effects alerts`: check, list."""

from __future__ import annotations

import click

from effects.alerting import check_alerts
from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import Table
from effects.store.alerts import episodes

EXIT_FIRING = 1


@click.group()
def alerts() -> None:
    """The alerts that the app declares: `Effects(alerts=[…])`."""


@alerts.command()
@json_option
@pass_context
def check(context: Context, as_json: bool) -> int:
    """Measure every alert now; enqueue one job for each episode that begins.

    The built-in schedule `effects.alerts` does so every minute. Exit codes: 0 nothing is wrong, 1 an alert fires.
    """
    firing = check_alerts(context.app)
    if as_json:
        context.echo(firing, as_json=True)
    else:
        rows = [(one.alert, one.summary, one.job_id) for one in firing]
        context.echo(Table(("alert", "what", "new job"), rows, empty="no alert fires"))
    return EXIT_FIRING if firing else 0


@alerts.command("list")
@json_option
@pass_context
def list_(context: Context, as_json: bool) -> None:
    """Every alert, its rule, and its newest episodes."""
    app = context.app
    known = episodes(app.store)
    rows = []
    for alert in app.alerts:
        mine = [one for one in known if one.alert == alert.name]
        fires = ", ".join(one.subject or "yes" for one in mine if one.open)
        newest = max((one.opened_at for one in mine), default=None)
        rows.append((alert.name, str(alert.rule), alert.notify, fires or "no", newest))
    columns = ("alert", "rule", "enqueues", "fires", "last began")
    context.echo(Table(columns, rows, empty="the app declares no alerts"), as_json)
