"""`effects webhooks replay` and `recover`: sending again."""

from __future__ import annotations

import click

from effects.cli.context import Context, actor, json_option, pass_context
from effects_webhooks.explanation import parse_since
from effects_webhooks.replay import Replayed, recover, replay_delivery, replay_event

reason_option = click.option("--reason", metavar="TEXT", help="Why; kept with your name in effects_job_actions.")


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
