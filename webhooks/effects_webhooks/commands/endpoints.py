"""`effects webhooks endpoints` and `effects webhooks secrets`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from effects.cli import (
    CommandResult,
    Context,
    Table,
    TimeSpan,
    actor,
    command,
    limit_option,
    listed,
    option_group,
    reason_option,
    status_option,
)
from effects_webhooks.admin.adding import add_endpoint, ensure_endpoint
from effects_webhooks.admin.endpoints import (
    ORDERINGS,
    REVEAL,
    STATUSES,
    Endpoint,
    change_endpoint,
    disable_endpoint,
    enable_endpoint,
    get_endpoint,
    list_endpoints,
    note_endpoint,
)
from effects_webhooks.admin.rotation import OVERLAP_SECONDS, SecretInfo, expire_secret, list_secrets, rotate_secret
from effects_webhooks.echoes import shortened
from effects_webhooks.errors import EndpointInvalid
from effects_webhooks.retry_rules import PROFILES
from effects_webhooks.tenants import ANY_TENANT, Tenant


def _tenant(ctx: click.Context, param: click.Parameter, value: str | None) -> Tenant:
    return ANY_TENANT if value is None else value


tenant_option = click.option(
    "--tenant",
    metavar="NAME",
    callback=_tenant,
    help="Tenant whose rows may be touched; others are not found. Default: any.",
)


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
    facts = {"id": created.id, "url": shortened(url), "patterns": created.patterns, "secret": created.secret}
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
    facts |= {"url": shortened(url), "patterns": endpoint.patterns}
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


def _with_address(
    context: Context, endpoints: Sequence[Endpoint], *, show_url: bool, reason: str | None
) -> list[Endpoint]:
    """The endpoints, their URLs as pages show them; whole once that is noted in the audit log."""
    if not show_url:
        return [msgspec.structs.replace(endpoint, url=endpoint.address) for endpoint in endpoints]
    with context.app.store.begin() as connection:
        for endpoint in endpoints:
            note_endpoint(context.app, connection, REVEAL, endpoint.id, actor=actor(), reason=reason)
    return list(endpoints)


_url_options = option_group(
    click.option("--show-url", is_flag=True, help="Show whole URLs; partners put tokens into path and query. "
                 "Recorded in the audit log."),
    reason_option,
)  # fmt: skip


@endpoints.command("list")
@tenant_option
@status_option(STATUSES)
@_url_options
@limit_option
@command
def list_(
    context: Context, *, tenant: Tenant, status: str | None, show_url: bool, reason: str | None, limit: int
) -> CommandResult:
    """List endpoints, failing ones first, without their secrets."""
    endpoints = [
        endpoint for endpoint in list_endpoints(tenant=tenant, effects=context.app) if status in (None, endpoint.status)
    ]
    endpoints.sort(key=lambda endpoint: (endpoint.failing_since is None, endpoint.status != "active"))
    return listed(_with_address(context, endpoints, show_url=show_url, reason=reason), limit, _table)


def _table(endpoints: Sequence[Endpoint]) -> Table:
    rows = [
        (
            endpoint.id,
            endpoint.description,
            endpoint.key,
            endpoint.status,
            endpoint.failing_since,
            endpoint.patterns,
            endpoint.tenant,
            endpoint.url,
        )
        for endpoint in endpoints
    ]
    return Table(
        ("id", "description", "key", "status", "failing since", "patterns", "tenant", "url"), rows, empty="no endpoints"
    )


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@tenant_option
@_url_options
@command
def show(context: Context, *, endpoint_id: str, tenant: Tenant, show_url: bool, reason: str | None) -> CommandResult:
    """Show an endpoint, without its secret."""
    endpoint = get_endpoint(endpoint_id, tenant=tenant, effects=context.app)
    return CommandResult(_with_address(context, [endpoint], show_url=show_url, reason=reason)[0])


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

    Cancelled deliveries stay cancelled; `effects retry ENDPOINT --status cancelled` retries them.
    """
    enable_endpoint(endpoint_id, actor=actor(), reason=reason, tenant=tenant, effects=context.app)
    return CommandResult({"id": endpoint_id, "status": "active"}, f"{endpoint_id} enabled")


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
def _list_secrets_(context: Context, *, endpoint_id: str, tenant: Tenant, limit: int) -> CommandResult:
    """List an endpoint's secrets, newest first."""
    return listed(list_secrets(endpoint_id, tenant=tenant, effects=context.app), limit, _secrets_table)


def _secrets_table(secrets: Sequence[SecretInfo]) -> Table:
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
