"""`effects webhooks secrets`: what requests are signed with."""

from __future__ import annotations

from datetime import timedelta

import click

from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import Table
from effects_webhooks.rotation import OVERLAP_SECONDS, expire_secret, list_secrets, rotate_secret


@click.group()
def secrets() -> None:
    """What requests are signed with."""


@secrets.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.option("--secret", metavar="WHSEC", help="The partner's own. Default: a fresh one.")
@click.option(
    "--overlap-hours", type=click.FloatRange(0, 168), default=OVERLAP_SECONDS / 3600, show_default=True, metavar="N",
    help="How long the old ones sign beside it; 0 where one has leaked.",
)  # fmt: skip
@json_option
@pass_context
def rotate(context: Context, endpoint_id: str, secret: str | None, overlap_hours: float, as_json: bool) -> None:
    """Give an endpoint a new secret and print it. It is stored sealed and never shown again."""
    overlap = timedelta(hours=overlap_hours).total_seconds()
    made = rotate_secret(endpoint_id, secret=secret, overlap_seconds=overlap, effects=context.app)
    context.echo({"id": made.id, "endpoint_id": endpoint_id, "secret": made.secret}, as_json)
    if not as_json:
        click.echo(f"Give it to the partner now: those before it end in {overlap_hours:g} h.", err=True)


@secrets.command("list")
@click.argument("endpoint_id", metavar="ENDPOINT")
@json_option
@pass_context
def list_(context: Context, endpoint_id: str, as_json: bool) -> None:
    """An endpoint's secrets, newest first, without their values."""
    found = list_secrets(endpoint_id, effects=context.app)
    rows = [(one.id, one.signs, one.created_at, one.expires_at) for one in found]
    context.echo(found if as_json else Table(("id", "signs", "created_at", "expires_at"), rows), as_json)


@secrets.command()
@click.argument("secret_id", metavar="SECRET_ID")
@json_option
@pass_context
def expire(context: Context, secret_id: str, as_json: bool) -> None:
    """End a secret now, before its overlap does."""
    expire_secret(secret_id, effects=context.app)
    context.echo({"id": secret_id, "signs": False} if as_json else f"{secret_id} no longer signs", as_json)
