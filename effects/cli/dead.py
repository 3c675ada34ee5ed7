"""`effects dead`: what waits for a person: list, show, requeue, ignore, resolve."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from effects.cli.context import Context, actor, json_option, pass_context
from effects.cli.jobs import print_story, reason_option
from effects.cli.output import Table
from effects.store import dead as store_dead
from effects.store.dead import RESOLUTIONS, BulkResult, Resolution
from effects.store.dead_letters import LIST_MAX, DeadFilters, DeadLetter, list_dead
from effects.store.lookup import get_job

EXIT_REFUSED = 1
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """`90s`, `15m`, `6h`, `3d` → seconds."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([smhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no age; give a number and s, m, h or d, such as 6h", ctx, param)
    return float(int(found[1]) * _UNITS[found[2]])


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


_FILTERS = (
    click.option("--type", "job_type", metavar="NAME", help="Job type, such as webhook.deliver."),
    click.option("--code", "error_code", metavar="CODE", help="Error code, such as http_410."),
    click.option("--text", metavar="TEXT", help="Part of the last error's text."),
    click.option("--endpoint", metavar="ID", help="Limit key, or what follows its colon: ep_… of webhook:ep_…."),
    click.option(
        "--older", "older_seconds", metavar="AGE", callback=_seconds, help="Ended at least so long ago, such as 6h."
    ),
    click.option(
        "--newer", "newer_seconds", metavar="AGE", callback=_seconds, help="Ended less than so long ago, such as 15m."
    ),
)


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """IDs, or filters with a preview: what every action that may concern many takes."""
    for option in reversed(
        (
            click.argument("job_ids", type=click.IntRange(min=1), metavar="[ID]...", nargs=-1),
            filter_options,
            click.option("--all", "all_", is_flag=True, help="Every open one, up to --limit."),
            click.option("--limit", type=click.IntRange(1, LIST_MAX), default=100, show_default=True),
            click.option("--yes", is_flag=True, help="Do it. Without it, a filter only shows what it would act on."),
            click.option("--dry-run", is_flag=True, help="Only show."),
        )
    ):
        command = option(command)
    return command


@click.group()
def dead() -> None:
    """Dead letters and unknown outcomes: what waits for a person."""


@dead.command("list")
@filter_options
@click.option("--unknown/--known", default=None, help="Only those whose effect may have happened; or did not.")
@click.option("--closed", is_flag=True, help="Those that somebody has closed, instead of the open ones.")
@click.option("--limit", type=click.IntRange(1, LIST_MAX), default=50, show_default=True)
@json_option
@pass_context
def list_(context: Context, /, as_json: bool, **filters: Any) -> None:
    """What is open, newest first."""
    found = list_dead(context.app.store, context.app.ledgers, DeadFilters(**filters))
    context.echo(found if as_json else _table(found), as_json)


@dead.command()
@click.argument("job_id", type=click.IntRange(min=1), metavar="ID")
@json_option
@pass_context
def show(context: Context, job_id: int, as_json: bool) -> None:
    """One job with every attempt, those of the jobs that it was requeued from included."""
    print_story(context, get_job(context.app.store, context.app.ledgers, job_id, earlier=True), as_json)


@dead.command()
@selection_options
@reason_option
@json_option
@pass_context
def requeue(context: Context, /, as_json: bool, reason: str | None, **selection: Any) -> int:
    """Try them again as new jobs; the old ones stay as they are.

    By ID at once; by filter only with --yes. One whose effect may have happened is refused, unless its type repeats
    such by itself: decide with `resolve`. Exit code 1 if any was refused.
    """
    app = context.app
    repeating = [one.name for one in app.job_types if one.on_unknown == "repeat"]

    def act(job_id: int) -> Any:
        return store_dead.requeue(app.store, app.ledgers, job_id, actor=actor(), reason=reason, repeating=repeating)

    return _act(context, selection, act, "requeued", as_json)


@dead.command()
@selection_options
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept with your name in effects_job_actions.")
@json_option
@pass_context
def ignore(context: Context, /, as_json: bool, reason: str, **selection: Any) -> int:
    """Close them as they are. Nothing more happens, and retention may take them.

    By ID at once; by filter only with --yes. Exit code 1 if any was refused.
    """
    app = context.app
    return _act(
        context,
        selection,
        lambda job_id: store_dead.ignore(app.store, app.ledgers, job_id, actor=actor(), reason=reason),
        "ignored",
        as_json,
    )


@dead.command()
@selection_options
@click.option("--as", "resolution", type=click.Choice(RESOLUTIONS), required=True,
              help="send-again: a new job. mark-done: it did happen. give-up: leave it unknown.")  # fmt: skip
@reason_option
@json_option
@pass_context
def resolve(context: Context, /, as_json: bool, resolution: Resolution, reason: str | None, **selection: Any) -> int:
    """Decide about effects that may have happened.

    By ID at once; by filter only with --yes. Exit code 1 if any was refused.
    """
    app = context.app
    return _act(
        context,
        selection,
        lambda job_id: store_dead.resolve(app.store, app.ledgers, job_id, resolution, actor=actor(), reason=reason),
        f"resolved as {resolution}",
        as_json,
        unknown=True,
    )


def _act(
    context: Context,
    selection: dict[str, Any],
    act: Callable[[int], Any],
    word: str,
    as_json: bool,
    unknown: bool | None = None,
) -> int:
    """Act on the IDs, or on what the filters find; without --yes only show the latter."""
    job_ids, all_, yes, dry_run = (selection.pop(name) for name in ("job_ids", "all_", "yes", "dry_run"))
    filters = DeadFilters(**selection, unknown=unknown)
    filtered = any(selection[name] is not None for name in selection if name != "limit")
    if bool(job_ids) + (filtered or all_) != 1:
        raise click.UsageError("give IDs, or filters, or --all")
    found: list[DeadLetter] = []
    if not job_ids:
        found = list_dead(context.app.store, context.app.ledgers, filters)
        job_ids = [one.id for one in found]
    if dry_run or (not yes and (filtered or all_)):
        _preview(context, found, job_ids, word, as_json)
        return 0
    result = store_dead.each(job_ids, act)
    _wake(context, result)
    _print_result(context, result, word, as_json)
    return EXIT_REFUSED if result.refused else 0


def _preview(context: Context, found: list[DeadLetter], job_ids: list[int], word: str, as_json: bool) -> None:
    if as_json:
        context.echo({"preview": True, "job_ids": list(job_ids)}, as_json=True)
        return
    if found:
        context.echo(_table(found))
    context.echo(f"{len(job_ids)} would be {word}; nothing was done (add --yes to do it)")


def _print_result(context: Context, result: BulkResult, word: str, as_json: bool) -> None:
    if as_json:
        context.echo(result, as_json=True)
        return
    for job_id, made in result.done.items():
        context.echo(f"job {job_id} is {word}" + (f": job {made} tries it again" if made else ""))
    for reason in result.refused.values():
        context.echo(f"refused: {reason}")
    if not result.done and not result.refused:
        context.echo("nothing matches")


def _wake(context: Context, result: BulkResult) -> None:
    app = context.app
    if any(result.done.values()):
        app.hints.send({one.queue for one in app.job_types})


def _table(found: list[DeadLetter]) -> Table:
    columns = ("id", "type", "effect", "ended", "attempts", "key", "limit", "code", "error")
    rows = [
        (
            one.id,
            one.job_type,
            "unknown" if one.unknown else one.status,
            one.finished_at,
            one.attempts,
            one.key,
            one.limit_key,
            one.error_code,
            one.last_error,
        )
        for one in found
    ]
    return Table(columns, rows, empty="nothing waits for a person")
