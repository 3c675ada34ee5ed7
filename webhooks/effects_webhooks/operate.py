"""`effects webhooks` for operators: secrets, replay, recover, test, explain."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from effects.cli.context import Context, actor, json_option, pass_context
from effects.cli.output import Table
from effects_webhooks.api import send_test
from effects_webhooks.budgets import PROFILES
from effects_webhooks.endpoints import get_endpoint
from effects_webhooks.explanation import Explanation, explain, parse_since
from effects_webhooks.replay import Replayed, recover, replay_delivery, replay_event
from effects_webhooks.rotation import OVERLAP_SECONDS, expire_secret, list_secrets, rotate_secret

reason_option = click.option("--reason", metavar="TEXT", help="Why; kept with your name in effects_job_actions.")


# -- secrets -----------------------------------------------------------------------------------------------------


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


# -- sending again -----------------------------------------------------------------------------------------------


@click.command()
@click.option("--delivery", metavar="MSG:EP", help="One delivery: msg_…:ep_….")
@click.option("--event", metavar="MSG", help="Every delivery of an event.")
@click.option("--again", is_flag=True, help="Those that were answered 2xx, too.")
@reason_option
@json_option
@pass_context
def replay(
    context: Context, *, delivery: str | None, event: str | None, again: bool, reason: str | None, as_json: bool
) -> None:
    """Send ended deliveries again, with the same webhook-id and the same bytes."""
    if (delivery is None) == (event is None):
        raise click.UsageError("give --delivery or --event")
    if event is not None:
        done = replay_event(event, actor=actor(), reason=reason, again=again, effects=context.app)
    else:
        event_id, _, endpoint_id = (delivery or "").partition(":")
        job_id = replay_delivery(event_id, endpoint_id, actor=actor(), reason=reason, again=again, effects=context.app)
        done = Replayed([job_id])
    _print(context, done, as_json)


@click.command("recover")
@click.option("--endpoint", "endpoint_id", required=True, metavar="EP", help="Whose deliveries.")
@click.option("--since", required=True, metavar="TIME", help="Ended since then, such as 2026-11-21T08:00:00Z.")
@click.option("--until", metavar="TIME", help="And until then.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many. Default: all.")
@reason_option
@json_option
@pass_context
def recover_(
    context: Context,
    *,
    endpoint_id: str,
    since: str,
    until: str | None,
    limit: int | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Send again what failed for an endpoint since a time. Run it again to go on after a crash or a limit."""
    done = recover(
        endpoint_id, since=parse_since(since), until=parse_since(until) if until else None, actor=actor(),
        reason=reason, limit=limit, effects=context.app,
    )  # fmt: skip
    _print(context, done, as_json)


def _print(context: Context, done: Replayed, as_json: bool) -> None:
    if as_json:
        skipped = [{"delivery": name, "reason": reason} for name, reason in done.skipped]
        context.echo({"jobs": done.jobs, "skipped": skipped}, as_json=True)
        return
    context.echo(f"{len(done.jobs):,} sent again, {len(done.skipped):,} left as they are")
    for name, reason in done.skipped:
        click.echo(f"{name}: {reason}", err=True)


@click.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@json_option
@pass_context
def test(context: Context, endpoint_id: str, as_json: bool) -> None:
    """Send an event of type webhook.test to one endpoint, whatever its patterns; `effects work` delivers it."""
    receipt = send_test(endpoint_id, effects=context.app)
    context.echo(receipt if as_json else f"event {receipt.event_id}: see `effects why {receipt.event_id}`", as_json)


# -- explain -----------------------------------------------------------------------------------------------------


@click.command("explain")
@click.argument("what", metavar="STATUS_OR_FAULT")
@click.option("--retry-after", "hint", metavar="VALUE", help="The answer's header: seconds, or a date.")
@click.option("--attempt", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N")
@click.option("--profile", type=click.Choice(PROFILES), default="default", show_default=True)
@click.option("--endpoint", "endpoint_id", metavar="EP", help="By this endpoint's profile and overrides.")
@json_option
@pass_context
def explain_(
    context: Context,
    *,
    what: str,
    hint: str | None,
    attempt: int,
    profile: str,
    endpoint_id: str | None,
    as_json: bool,
) -> None:
    """What follows a status (429) or a fault (connect_failed): class, delay and why."""
    overrides: dict[str, str] = {}
    if endpoint_id is not None:
        endpoint = get_endpoint(endpoint_id, effects=context.app)
        profile, overrides = endpoint.profile, endpoint.overrides
    found = explain(what, hint=hint, attempt=attempt, profile=profile, overrides=overrides)
    context.echo(found if as_json else _facts(found), as_json)


def _facts(found: Explanation) -> dict[str, Any]:
    rests, again = found.endpoint_rests_seconds, found.next_try_seconds
    return {
        "class": "success" if found.budget == "done" else found.budget,
        "next try": "none" if again is None else f"in {again:g} s, and up to 20 % more",
        "tries": found.tries,
        "endpoint": "goes on" if rests is None else f"rests for {rests:g} s",
        "why": found.why,
    }
