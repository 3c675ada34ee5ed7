"""`effects webhooks replay` and `recover`: sending again."""

from __future__ import annotations

from datetime import datetime

import click

from effects.cli import CommandResult, Context, actor, command, parse_time, reason_option
from effects.extend import ExitCode
from effects_webhooks.admin.replay import Replayed, recover, replay_delivery, replay_event
from effects_webhooks.commands.options import tenant_option
from effects_webhooks.routing import limit_key
from effects_webhooks.tenants import Tenant


@click.command()
@click.option("--delivery", metavar="MSG:EP", help="Delivery to replay: msg_…:ep_….")
@click.option("--event", metavar="MSG", help="Event whose deliveries are all replayed.")
@click.option("--even-if-done", is_flag=True, help="Override: replay deliveries that were answered with 2xx.")
@tenant_option
@reason_option
@command
def replay(
    context: Context,
    *,
    delivery: str | None,
    event: str | None,
    even_if_done: bool,
    tenant: Tenant,
    reason: str | None,
) -> CommandResult:
    """Replay a delivery or an event, with the same id and bytes.

    Exit code 1 if a delivery was skipped, such as one that is still retrying.
    """
    if (delivery is None) == (event is None):
        raise click.UsageError("give --delivery or --event")
    if event is not None:
        done = replay_event(
            event, actor=actor(), reason=reason, confirm_done=even_if_done, tenant=tenant, effects=context.app
        )
    else:
        event_id, _, endpoint_id = (delivery or "").partition(":")
        job_id = replay_delivery(
            event_id, endpoint_id, actor=actor(), reason=reason, confirm_done=even_if_done, tenant=tenant,
            effects=context.app,
        )  # fmt: skip
        done = Replayed([job_id])
    return _result(done)


@click.command("recover")
@click.option("--endpoint", "endpoint_id", required=True, metavar="EP", help="Endpoint whose deliveries are replayed.")
@click.option(
    "--since", required=True, type=parse_time, metavar="TIME", help="Earliest end, such as 2026-11-21T08:00:00Z."
)
@click.option("--until", type=parse_time, metavar="TIME", help="Latest end.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of deliveries. Default: all.")
@tenant_option
@reason_option
@command
def recover_(
    context: Context,
    *,
    endpoint_id: str,
    since: datetime,
    until: datetime | None,
    limit: int | None,
    tenant: Tenant,
    reason: str | None,
) -> CommandResult:
    """Replay an endpoint's failed deliveries.

    Those that are still retrying are counted and left alone. Run it again to continue after a crash or a limit.
    """
    done = recover(
        endpoint_id, since=since, until=until, actor=actor(),
        reason=reason, limit=limit, tenant=tenant, effects=context.app,
    )  # fmt: skip
    advice = f"`effects jobs run-now --type webhook.deliver --limit-key {limit_key(endpoint_id)} --yes` tries them now"
    return _result(done, f"{done.retrying:,} still retrying: {advice}" if done.retrying else None)


def _result(done: Replayed, retrying: str | None = None) -> CommandResult:
    skipped = [{"delivery": name, "reason": reason} for name, reason in done.skipped]
    notes = [*(f"{name}: {reason}" for name, reason in done.skipped), *filter(None, [retrying])]
    text = f"{len(done.jobs):,} replayed, {len(done.skipped):,} skipped"
    exit_code = ExitCode.FINDINGS if done.skipped else ExitCode.DONE
    document = {"jobs": done.jobs, "skipped": skipped, "retrying": done.retrying}
    return CommandResult(document, text, note="\n".join(notes) or None, exit_code=exit_code)
