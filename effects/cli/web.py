"""`effects web`: the stand-alone dashboard, its one-time links and its sessions; and `effects dev`."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import click

from effects.cli.context import Context, actor, pass_context
from effects.cli.options import limit_option, parse_age, reason_option
from effects.cli.results import CommandResult, command, listed
from effects.cli.table import Table
from effects.errors import ConfigurationError
from effects.kit import lazy
from effects.kit.exit_codes import ExitCode
from effects.operate.tables import sign_ins
from effects.operate.tables.sign_ins import WebSession
from effects.web.security import DEFAULT_PORT, ROLES, Person, Role, sign_in_url

with lazy.modules(__name__):
    from effects.web import dev as development  # these need the extra `web`
    from effects.web import server

DEV_PORT = 8025
SESSION_SECONDS = 12 * 3600.0
SESSION_MAX_SECONDS = 7 * 86_400.0


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, metavar="N",
              help="Port to listen on; 0 for any that is free.")  # fmt: skip
@click.option("--public-url", metavar="URL", help="HTTPS address of the proxy in front, by which people call it.")
@click.option("--title", default="effects", show_default=True, metavar="TEXT", help="Name shown on each page.")
@reason_option
@pass_context
@click.pass_context
def web(
    ctx: click.Context,
    context: Context,
    *,
    host: str,
    port: int,
    public_url: str | None,
    title: str,
    reason: str | None,
) -> None:
    """Serve the dashboard until Ctrl-C or SIGTERM.

    Prints a one-time link that signs you in as an admin; `effects web link` makes more.
    """
    if ctx.invoked_subcommand is not None:
        return
    dashboard = server.DashboardServer(context.app, host=host, port=port, public_url=public_url, title=title)
    person = Person(actor().partition(":")[2], role="admin")
    secret = sign_ins.mint_link(
        context.app.store, person=person.name, role=person.role, personal=False, session_seconds=SESSION_SECONDS,
        actor=actor(), reason=reason,
    )  # fmt: skip
    click.echo(f"dashboard: {dashboard.url} (Ctrl-C stops it)")
    click.echo(f"sign in, once, within 10 minutes: {sign_in_url(dashboard.url, secret)}")
    dashboard.run()


@web.command()
@click.option("--as", "name", required=True, metavar="NAME", help="Person, as the audit log will name them.")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the person may do.")
@click.option("--personal", is_flag=True, help="Let the person see what may be personal.")
@click.option("--for", "seconds", type=parse_age, default="12h", show_default=True, metavar="TIME",
              help="How long the session lasts, at most 7d.")  # fmt: skip
@click.option("--url", "base_url", default=f"http://127.0.0.1:{DEFAULT_PORT}", show_default=True, metavar="URL",
              help="Address of the dashboard.")  # fmt: skip
@reason_option
@command
def link(
    context: Context, *, name: str, role: Role, personal: bool, seconds: float, base_url: str, reason: str | None
) -> CommandResult:
    """Make a one-time link that signs a person in.

    It may be used within 10 minutes.
    """
    if seconds > SESSION_MAX_SECONDS:
        raise ConfigurationError("--for is longer than 7d")
    person = Person(name, role=role, personal=personal)
    secret = sign_ins.mint_link(
        context.app.store, person=person.name, role=person.role, personal=person.personal, session_seconds=seconds,
        actor=actor(), reason=reason,
    )  # fmt: skip
    url = sign_in_url(base_url, secret)
    return CommandResult({"person": name, "role": role, "personal": personal, "url": url}, url)


@web.group()
def sessions() -> None:
    """List and end sessions of the stand-alone dashboard."""


@sessions.command("list")
@limit_option
@command
def list_(context: Context, *, limit: int) -> CommandResult:
    """List open sessions and unused links, newest first."""
    return listed(sign_ins.list_sessions(context.app.store), limit, _table)


@sessions.command()
@click.argument("session_id", metavar="ID")
@reason_option
@command
def end(context: Context, *, session_id: str, reason: str | None) -> CommandResult:
    """End a session, or a link that was not used."""
    person = sign_ins.end_session(context.app.store, session_id, actor=actor(), reason=reason)
    if person is None:
        raise ConfigurationError(f"no open session has the id {session_id!r} (see `effects web sessions list`)")
    return CommandResult({"id": session_id, "person": person, "result": "ended"}, f"session of {person} ended")


def _table(sessions: Sequence[WebSession]) -> Table:
    columns = ("id", "kind", "person", "role", "personal", "created", "last seen", "ends")
    cells = [
        (session.id, session.kind, session.person, session.role, session.personal, session.created_at,
         session.seen_at, session.ends_at)
        for session in sessions
    ]  # fmt: skip
    return Table(columns, cells, empty="no open sessions")


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=DEV_PORT, show_default=True, metavar="N",
              help="Port of the dashboard; 0 for any that is free.")  # fmt: skip
@click.option("--take-over", is_flag=True, help="Carry out jobs that waited before, too: their effects are never made.")
@pass_context
def dev(context: Context, *, port: int, take_over: bool) -> int:
    """Run a worker whose effects stay here, with a dashboard.

    Only on SQLite, or on PostgreSQL on this machine, where no other worker runs. Every transport, endpoint and bucket
    is replaced by an inbox in the dashboard, whatever the settings say; your own job functions run as they are. Starts
    again when code or templates change. The clock on its page can be moved forward. Creates and migrates the tables.
    """
    inherited = os.environ.pop(development.SOCKET_VARIABLE, None)
    listening = server.listen("127.0.0.1", port) if inherited is None else socket.socket(fileno=int(inherited))
    files = development.Files()
    try:
        app = context.bare_app
    except ConfigurationError as error:
        if inherited is None:
            raise
        click.echo(f"error: {error}\nwaiting for a change", err=True)
        with suppress(KeyboardInterrupt):
            files.wait()
            development.execute_again(listening)
        return ExitCode.INTERRUPTED
    desk = development.Desk(app, files)
    desk.open(take_over=take_over)
    with desk.hearing_signals():
        click.echo(f"{desk.banner}\ndashboard: http://127.0.0.1:{listening.getsockname()[1]}/dev (Ctrl-C stops it)")
        code = desk.run(listening)
    if desk.again:
        app.dispose()
        development.execute_again(listening)
    return code
