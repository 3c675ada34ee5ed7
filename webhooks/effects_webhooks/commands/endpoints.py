"""`effects webhooks endpoints`: the addresses that events go to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from effects.cli import (
    CommandResult,
    Context,
    Table,
    actor,
    command,
    limit_option,
    listed,
    option_group,
    reason_option,
    status_option,
)
from effects_webhooks.admin.adding import add_endpoint, ensure_endpoint
from effects_webhooks.admin.endpoint_rules import ORDERINGS
from effects_webhooks.admin.endpoints import (
    STATUSES,
    Endpoint,
    change_endpoint,
    disable_endpoint,
    enable_endpoint,
    get_endpoint,
    list_endpoints,
)
from effects_webhooks.commands.options import tenant_option
from effects_webhooks.errors import EndpointInvalid
from effects_webhooks.retry_rules import PROFILES
from effects_webhooks.tenants import Tenant


@click.group()
def endpoints() -> None:
    """Manage webhook endpoints."""


_SHOWN_ONCE = "Give the secret to the partner now: it is shown only once."


def _pairs(option: str, sep: str, values: Sequence[str]) -> dict[str, str] | None:
    """`404=full`, `X-Team: billing` → a mapping; None if there are none."""
    pairs: dict[str, str] = {}
    for value in values:
        left, middle, right = value.partition(sep)
        name = left.strip()
        if not middle:
            raise EndpointInvalid(f"{option} is written NAME{sep}VALUE")
        if name in pairs:
            raise EndpointInvalid(f"{option} {name} is given twice")
        pairs[name] = right.strip()
    return pairs or None


_delivery_options = option_group(
    click.option("--profile", type=click.Choice(PROFILES),
                 help="Retry profile: which failures are retried and for how long. Default: default."),
    click.option("--retry", "retries", multiple=True, metavar="STATUS=CLASS",
                 help="Override of the profile: 404=full, 5xx=short, 409=none. Repeatable."),
    click.option("--ordering", type=click.Choice(ORDERINGS),
                 help="Order of delivery: of all events, or per ordering_key."),
    click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
                 help="Header of each request, stored encrypted. Repeatable."),
)  # fmt: skip
_new_endpoint_options = option_group(
    click.option("--pattern", "patterns", multiple=True, metavar="PATTERN",
                 help="Event type, a prefix such as 'order.*', or '*'. Repeatable. Default: '*'."),
    click.option("--secret", metavar="WHSEC", help="Existing secret of the partner. Default: a new one."),
    click.option("--description", metavar="TEXT", help="Description for people."),
    click.option("--tenant", metavar="NAME", help="Tenant whose events it receives."),
    _delivery_options,
)  # fmt: skip


@endpoints.command()
@click.argument("url")
@_new_endpoint_options
@reason_option
@command
def add(
    context: Context,
    *,
    url: str,
    patterns: Sequence[str],
    secret: str | None,
    description: str | None,
    tenant: str | None,
    profile: Any,
    retries: Sequence[str],
    ordering: Any,
    headers: Sequence[str],
    reason: str | None,
) -> CommandResult:
    """Add an endpoint and print its secret.

    The secret is stored encrypted and shown only once.
    """
    created = add_endpoint(
        url, patterns or ("*",), secret=secret, description=description, tenant=tenant, profile=profile or "default",
        overrides=_pairs("--retry", "=", retries), ordering=ordering or "none",
        headers=_pairs("--header", ":", headers), actor=actor(), reason=reason, effects=context.app,
    )  # fmt: skip
    facts = {"id": created.id, "url": url, "patterns": created.patterns, "secret": created.secret}
    return CommandResult(facts, note=f"{_SHOWN_ONCE}{_same_url(created.same_url)}")


@endpoints.command()
@click.argument("key")
@click.argument("url")
@_new_endpoint_options
@reason_option
@command
def ensure(
    context: Context,
    *,
    key: str,
    url: str,
    patterns: Sequence[str],
    secret: str | None,
    description: str | None,
    tenant: str | None,
    profile: Any,
    retries: Sequence[str],
    ordering: Any,
    headers: Sequence[str],
    reason: str | None,
) -> CommandResult:
    """Have one endpoint named KEY: add it, or change what differs.

    Safe to repeat, such as on every deploy. URL and patterns are those given; other options you omit keep their value.
    The secret is printed only when the endpoint is added.
    """
    endpoint = ensure_endpoint(
        key, url, patterns or ("*",), secret=secret, description=description, tenant=tenant, profile=profile,
        overrides=_pairs("--retry", "=", retries), ordering=ordering,
        headers=_pairs("--header", ":", headers), actor=actor(), reason=reason,
        effects=context.app,
    )  # fmt: skip
    facts: dict[str, Any] = {"key": key, "id": endpoint.id, "result": endpoint.outcome, "changed": endpoint.changed}
    facts |= {"url": url, "patterns": endpoint.patterns}
    if endpoint.secret is not None:
        facts["secret"] = endpoint.secret
    note = f"{_SHOWN_ONCE if endpoint.secret is not None else ''}{_same_url(endpoint.same_url)}".strip()
    return CommandResult(facts, note=note or None)


def _same_url(others: Sequence[str]) -> str:
    if not others:
        return ""
    return f"\nThe tenant has other endpoints of this URL, and it gets each event once for each: {', '.join(others)}."


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@click.option("--url", metavar="URL", help="New URL, from the next attempt on, also for waiting deliveries.")
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Event type pattern. Repeatable. Replaces all patterns.",
)
@_delivery_options
@tenant_option
@reason_option
@command
def change(
    context: Context,
    *,
    endpoint_id: str,
    url: str | None,
    patterns: Sequence[str],
    profile: Any,
    retries: Sequence[str],
    ordering: Any,
    headers: Sequence[str],
    tenant: Tenant,
    reason: str | None,
) -> CommandResult:
    """Update an endpoint. Omitted options keep their value.

    --retry and --header replace all previous ones.
    """
    change_endpoint(
        endpoint_id, url=url, patterns=patterns or None, profile=profile, ordering=ordering,
        overrides=_pairs("--retry", "=", retries),
        headers=_pairs("--header", ":", headers), tenant=tenant, actor=actor(), reason=reason,
        effects=context.app,
    )  # fmt: skip
    return CommandResult({"id": endpoint_id, "changed": True}, f"{endpoint_id} updated")


@endpoints.command("list")
@tenant_option
@status_option(STATUSES)
@limit_option
@command
def list_(context: Context, *, tenant: Tenant, status: str | None, limit: int) -> CommandResult:
    """List endpoints, oldest first, without their secrets."""
    endpoints = [
        endpoint for endpoint in list_endpoints(tenant=tenant, effects=context.app) if status in (None, endpoint.status)
    ]
    return listed(endpoints, limit, _table)


def _table(endpoints: Sequence[Endpoint]) -> Table:
    rows = [
        (
            endpoint.id,
            endpoint.key,
            endpoint.status,
            endpoint.failing_since,
            endpoint.patterns,
            endpoint.tenant,
            endpoint.url,
        )
        for endpoint in endpoints
    ]
    return Table(("id", "key", "status", "failing since", "patterns", "tenant", "url"), rows, empty="no endpoints")


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@tenant_option
@command
def show(context: Context, *, endpoint_id: str, tenant: Tenant) -> CommandResult:
    """Show an endpoint, without its secret."""
    return CommandResult(get_endpoint(endpoint_id, tenant=tenant, effects=context.app))


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@tenant_option
@reason_option
@command
def disable(context: Context, *, endpoint_id: str, tenant: Tenant, reason: str | None) -> CommandResult:
    """Disable an endpoint.

    Waiting deliveries are cancelled when they fall due.
    """
    disable_endpoint(endpoint_id, actor=actor(), reason=reason, tenant=tenant, effects=context.app)
    return CommandResult({"id": endpoint_id, "status": "disabled"}, f"{endpoint_id} disabled")


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@tenant_option
@reason_option
@command
def enable(context: Context, *, endpoint_id: str, tenant: Tenant, reason: str | None) -> CommandResult:
    """Enable a disabled endpoint.

    Cancelled deliveries stay cancelled; `effects webhooks recover` replays them.
    """
    enable_endpoint(endpoint_id, actor=actor(), reason=reason, tenant=tenant, effects=context.app)
    return CommandResult({"id": endpoint_id, "status": "active"}, f"{endpoint_id} enabled")
