"""`effects status`, `effects why`, `effects audit`."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict

import click
import msgspec

from effects.cli.context import Context, json_option, pass_context
from effects.cli.evidence import actions_table, attempts_table, sentence
from effects.cli.output import Table, cell, duration
from effects.job import ENDED, LIVE
from effects.store import lookup
from effects.store.audit import CHECKS
from effects.store.audit import audit as run_audit
from effects.store.status import Status, TypeCount, read_status

EXIT_FINDINGS = 1


@click.command()
@json_option
@pass_context
def status(context: Context, as_json: bool) -> None:
    """What waits, what failed, what is paused, and who works."""
    app = context.app
    found = read_status(app.store, app.settings.lease_seconds)
    if as_json:
        context.echo(found, as_json=True)
    else:
        _print_status(context, found)


@click.command()
@click.argument("key")
@json_option
@pass_context
def why(context: Context, key: str, as_json: bool) -> None:
    """One effect in a sentence, with its attempts as evidence.

    KEY is the caller's idempotency key, or what a package's ledger knows its effects by, such as the id of a
    webhook event.
    """
    app = context.app
    stories = lookup.find_effects(app.store, app.ledgers, key)
    with app.store.read() as connection:
        now = dt.datetime.fromtimestamp(app.store.now(connection), dt.UTC)
    if as_json:
        told = [{"sentence": sentence(one, now), **msgspec.structs.asdict(one)} for one in stories]
        context.echo(told, as_json=True)
        return
    for number, story in enumerate(stories):
        if number:
            context.echo("")
        context.echo(cell(sentence(story, now)))
        context.echo(attempts_table(story.attempts))
        if story.actions:
            context.echo(actions_table(story.actions))


@click.command()
@json_option
@pass_context
def audit(context: Context, as_json: bool) -> int:
    """Check that nothing was lost, doubled or invented; exit code 1 if anything is found.

    Reads every table in full, on a live system too.
    """
    findings = run_audit(context.app)
    if as_json:
        context.echo({"clean": not findings, "checks": len(CHECKS), "findings": findings}, as_json=True)
    elif not findings:
        context.echo(f"clean: {len(CHECKS)} checks, nothing found")
    for finding in [] if as_json else findings:
        shown = ", ".join(str(job_id) for job_id in finding.job_ids)
        more = ", …" if finding.count > len(finding.job_ids) else ""
        context.echo(f"{finding.check}: {finding.sentence} Not so for {finding.count}: {shown}{more}")
    return EXIT_FINDINGS if findings else 0


def _print_status(context: Context, found: Status) -> None:
    context.echo(_counts_table(found.counts))
    context.echo("")
    oldest = found.oldest_due_seconds
    context.echo(
        {
            "oldest due job": "nothing is due" if oldest is None else f"waits for {duration(oldest)}",
            "dead in the last hour": found.dead_last_hour,
        }
    )
    if found.errors:
        rows = [(one.job_type, one.error_code, one.jobs) for one in found.errors]
        context.echo("")
        context.echo(Table(("type", "error", "jobs failing, or dead within a day"), rows, title="errors"))
    if found.paused:
        paused = [(one.limit_key, one.until, one.waiting, one.reason) for one in found.paused]
        context.echo("")
        context.echo(Table(("paused limit", "until", "jobs waiting", "reason"), paused, title="paused"))
    workers = [
        (one.id, "alive" if one.alive else "silent", duration(one.silent_seconds), one.running, one.lanes)
        for one in found.workers
    ]
    context.echo("")
    columns = ("worker", "state", "last seen ago", "running", "lanes")
    context.echo(Table(columns, workers, title="workers", empty="no worker runs"))


def _counts_table(counts: list[TypeCount]) -> Table:
    """A row a job type, a column a status."""
    statuses = (*LIVE, *ENDED)
    by_type: dict[str, dict[str, int]] = defaultdict(dict)
    for one in counts:
        by_type[one.job_type][one.status] = one.jobs
    rows = [(name, *(found.get(status, 0) for status in statuses)) for name, found in sorted(by_type.items())]
    return Table(("type", *statuses), rows, empty="no jobs yet")
