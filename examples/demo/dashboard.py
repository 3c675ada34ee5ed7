"""The end of the demo: the dashboard on this run's data, where a person is there to look at it."""

from __future__ import annotations

import contextlib
import sys

import click

from effects import ConfigurationError, Effects
from effects.operate.tables.sign_ins import mint_link
from effects.web.security import sign_in_url
from effects.web.server import DashboardServer
from examples.demo.view import effects_command

PORT = 8765
SESSION_SECONDS = 12 * 3600.0


def show_dashboard(app: Effects) -> None:
    """Serve until Ctrl-C. Without a terminal, as in CI, say how to start it instead: the demo ends by itself."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo("The dashboard on this run's data, until Ctrl-C:")
        click.echo(f"  {effects_command(app.settings.database_url)} web")
        return
    server = _server(app)
    secret = mint_link(
        app.store, person="you", role="admin", personal=True, session_seconds=SESSION_SECONDS, actor="demo"
    )
    click.echo("\nAnd in a browser, on this run's data:")
    click.echo(f"  {sign_in_url(server.url, secret)}")
    click.echo("The link works once, within 10 minutes. Ctrl-C stops the dashboard and ends the demo.")
    with contextlib.suppress(KeyboardInterrupt):
        server.run()


def _server(app: Effects) -> DashboardServer:
    """On the usual port, or on any that is free."""
    try:
        return DashboardServer(app, host="127.0.0.1", port=PORT, public_url=None, title="demo")
    except ConfigurationError:
        return DashboardServer(app, host="127.0.0.1", port=0, public_url=None, title="demo")
