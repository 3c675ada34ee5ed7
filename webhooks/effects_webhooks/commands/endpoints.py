"""`effects webhooks endpoints`: the addresses that events go to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import Table
from effects_webhooks.budgets import PROFILES
from effects_webhooks.endpoints import (
    ORDERINGS,
    add_endpoint,
    change_endpoint,
    disable_endpoint,
    enable_endpoint,
    get_endpoint,
    list_endpoints,
)
from effects_webhooks.errors import EndpointInvalid


@click.group()
def endpoints() -> None:
    """The addresses that events go to."""


def _pairs(name: str, sep: str, values: Sequence[str]) -> dict[str, str]:
    """`404=full`, `X-Team: billing` → a mapping."""
    found = {}
    for value in values:
        left, middle, right = value.partition(sep)
        if not middle:
            raise EndpointInvalid(f"{name} is written NAME{sep}VALUE")
        found[left.strip()] = right.strip()
    return found


_profile_option = click.option(
    "--profile", type=click.Choice(PROFILES), help="Which failures are tried again for how long. Default: default."
)
_retry_option = click.option(
    "--retry", "retries", multiple=True, metavar="STATUS=BUDGET",
    help="Over the profile: 404=full, 5xx=short, 409=none. Give it again for more.",
)  # fmt: skip
_ordering_option = click.option(
    "--ordering", type=click.Choice(ORDERINGS), help="One event after the other: of all, or of each ordering_key."
)
_header_option = click.option(
    "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Sent with each request; stored sealed."
)


@endpoints.command()
@click.argument("url")
@click.option("--pattern", "patterns", multiple=True, metavar="PATTERN",
              help="Event type, a prefix such as 'order.*', or '*'; give it again for more. Default '*'.")  # fmt: skip
@click.option("--secret", metavar="WHSEC", help="The partner's own secret. Default: a fresh one.")
@click.option("--description", metavar="TEXT", help="For people.")
@click.option("--tenant", metavar="NAME", help="It gets the events of this tenant only.")
@_profile_option
@_retry_option
@_ordering_option
@_header_option
@json_option
@pass_context
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
    as_json: bool,
) -> None:
    """Add an endpoint and print its secret. It is stored sealed and never shown again."""
    made = add_endpoint(
        url, patterns or ("*",), secret=secret, description=description, tenant=tenant, profile=profile or "default",
        overrides=_pairs("--retry", "=", retries), ordering=ordering or "none",
        headers=_pairs("--header", ":", headers), effects=context.app,
    )  # fmt: skip
    context.echo(
        {"id": made.id, "url": url, "patterns": _listed(made.patterns, as_json), "secret": made.secret}, as_json
    )
    if not as_json:
        click.echo("Give the secret to the partner now: it is not shown again.", err=True)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@click.option("--url", metavar="URL", help="Where to from the next try on, for what waits too.")
@click.option("--pattern", "patterns", multiple=True, metavar="PATTERN", help="In place of all there were.")
@_profile_option
@_retry_option
@_ordering_option
@_header_option
@json_option
@pass_context
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
    as_json: bool,
) -> None:
    """Change an endpoint; what is not given stays. --retry and --header take the place of all there were."""
    change_endpoint(
        endpoint_id, url=url, patterns=patterns or None, profile=profile, ordering=ordering,
        overrides=_pairs("--retry", "=", retries) if retries else None,
        headers=_pairs("--header", ":", headers) if headers else None, effects=context.app,
    )  # fmt: skip
    context.echo({"id": endpoint_id, "changed": True} if as_json else f"{endpoint_id} is changed", as_json)


@endpoints.command("list")
@click.option("--tenant", metavar="NAME", help="Of this tenant only.")
@json_option
@pass_context
def list_(context: Context, *, tenant: str | None, as_json: bool) -> None:
    """All endpoints, oldest first. No secret is shown."""
    found = list_endpoints(tenant=tenant, effects=context.app)
    rows = [(one.id, one.status, one.failing_since, ", ".join(one.patterns), one.tenant, one.url) for one in found]
    table = Table(("id", "status", "failing_since", "patterns", "tenant", "url"), rows, empty="no endpoints")
    context.echo(found if as_json else table, as_json)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@json_option
@pass_context
def show(context: Context, *, endpoint_id: str, as_json: bool) -> None:
    """One endpoint, without its secret."""
    found = msgspec.structs.asdict(get_endpoint(endpoint_id, effects=context.app))
    context.echo({**found, "patterns": _listed(found["patterns"], as_json)}, as_json)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="Why; shown with the endpoint.")
@json_option
@pass_context
def disable(context: Context, *, endpoint_id: str, reason: str | None, as_json: bool) -> None:
    """Send nothing more to it; deliveries that wait end cancelled when they fall due."""
    disable_endpoint(endpoint_id, reason=reason, effects=context.app)
    context.echo({"id": endpoint_id, "status": "disabled"} if as_json else f"{endpoint_id} is disabled", as_json)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@json_option
@pass_context
def enable(context: Context, *, endpoint_id: str, as_json: bool) -> None:
    """Send to it again. What was cancelled stays cancelled; `effects webhooks recover` sends it again."""
    enable_endpoint(endpoint_id, effects=context.app)
    context.echo({"id": endpoint_id, "status": "active"} if as_json else f"{endpoint_id} is active", as_json)


def _listed(patterns: Sequence[str], as_json: bool) -> Sequence[str] | str:
    return list(patterns) if as_json else ", ".join(patterns)
