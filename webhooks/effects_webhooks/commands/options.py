"""Options that several commands of webhooks share."""

from __future__ import annotations

import click

from effects_webhooks.tenants import ANY_TENANT, Tenant


def _tenant(ctx: click.Context, param: click.Parameter, value: str | None) -> Tenant:
    return ANY_TENANT if value is None else value


tenant_option = click.option(
    "--tenant",
    metavar="NAME",
    callback=_tenant,
    help="Tenant whose rows may be touched; others are not found. Default: any.",
)
