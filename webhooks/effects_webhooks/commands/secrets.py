"""`effects webhooks secrets`: what requests are signed with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from effects.cli import CommandResult, Context, Table, TimeSpan, actor, command, limit_option, listed, reason_option
from effects_webhooks.admin.rotation import OVERLAP_SECONDS, SecretInfo, expire_secret, list_secrets, rotate_secret
from effects_webhooks.commands.options import tenant_option
from effects_webhooks.tenants import Tenant


@click.group()
def secrets() -> None:
    """Manage signing secrets."""


@secrets.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.option("--secret", metavar="WHSEC", help="Existing secret of the partner. Default: a new one.")
@click.option(
    "--overlap-hours", type=TimeSpan(0, 168), default=OVERLAP_SECONDS / 3600, show_default=True, metavar="N",
    help="Hours for which the old secrets still sign; 0 if one has leaked.",
)  # fmt: skip
@tenant_option
@reason_option
@command
def rotate(
    context: Context, *, endpoint_id: str, secret: str | None, overlap_hours: float, tenant: Tenant, reason: str | None
) -> CommandResult:
    """Rotate an endpoint's secret and print the new one.

    The secret is stored encrypted and shown only once.
    """
    overlap = timedelta(hours=overlap_hours).total_seconds()
    created = rotate_secret(
        endpoint_id, secret=secret, overlap_seconds=overlap, tenant=tenant, actor=actor(), reason=reason,
        effects=context.app,
    )  # fmt: skip
    note = f"Give it to the partner now: the previous secrets expire in {overlap_hours:g} h."
    return CommandResult({"id": created.id, "endpoint_id": endpoint_id, "secret": created.secret}, note=note)


@secrets.command("list")
@click.argument("endpoint_id", metavar="ENDPOINT")
@tenant_option
@limit_option
@command
def list_(context: Context, *, endpoint_id: str, tenant: Tenant, limit: int) -> CommandResult:
    """List an endpoint's secrets, newest first."""
    return listed(list_secrets(endpoint_id, tenant=tenant, effects=context.app), limit, _table)


def _table(secrets: Sequence[SecretInfo]) -> Table:
    rows = [(secret.id, secret.signs, secret.created_at, secret.expires_at) for secret in secrets]
    return Table(("id", "signs", "created", "expires"), rows, empty="no secrets")


@secrets.command()
@click.argument("secret_id", metavar="SECRET_ID")
@tenant_option
@reason_option
@command
def expire(context: Context, *, secret_id: str, tenant: Tenant, reason: str | None) -> CommandResult:
    """Expire a secret now."""
    expire_secret(secret_id, actor=actor(), reason=reason, tenant=tenant, effects=context.app)
    return CommandResult({"id": secret_id, "signs": False}, f"{secret_id} no longer signs")
