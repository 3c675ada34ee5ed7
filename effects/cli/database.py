"""What looks after the database: `effects init`, `effects prune`, `effects grants`, `effects doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from effects.app.retention import prune as run_prune
from effects.cli.context import Context, actor, refuse_missing_file
from effects.cli.options import limit_option, reason_option
from effects.cli.results import CommandResult, command, listed
from effects.cli.table import Checklist, Table
from effects.operate.doctor import check_all_declared, examine, exit_code
from effects.operate.tables import grants as store_grants
from effects.operate.tables.grants import Grant
from effects.store import schedules as schedule_definitions
from effects.store.db import revisions
from effects.store.schedules import Registered


@click.command()
@reason_option
@command
def init(context: Context, *, reason: str | None) -> CommandResult:
    """Create or migrate tables and register schedules.

    Running it again changes nothing. It is the only command that creates a database. With --app, schedules that were
    removed from the app's code are stopped and listed; paused schedules stay paused.
    If the job of a schedule or an alert, or what follows from it, would be refused when it runs, init fails and
    registers nothing; names and templates are looked at before the tables, buckets and subscriptions after them.
    Workers may run meanwhile, this version's and the one's before. Tables that a later version has migrated stay
    as they are: init succeeds where they work with this one.
    """
    app = context.bare_app
    check_all_declared(app)
    applied = app.create_tables(actor=actor(), reason=reason)
    with app.store.read() as connection:
        check_all_declared(app, connection)
    # Without --app we know the built-in schedules only: what else there is belongs to an app that we have not seen.
    types = app.job_types.names() if context.app_path else []
    registered = schedule_definitions.register(app.store, list(app.schedules.values()), retire_types=types)
    newer = revisions.check(app.store)
    tables = f"tables are ready (applied {', '.join(applied)})" if applied else "tables are up to date"
    if newer:
        tables = f"tables are newer than this version, which works with them ({', '.join(newer)})"
    mixed = app.job_types.mixed_queues()
    database = str(app.database)
    result = {"database": database, "applied": applied, "schedules": registered, "mixed_queues": mixed}
    lines = [f"database: {database}", tables, *_changes(registered), *_warnings(mixed)]
    return CommandResult(result, "\n".join(lines), has_database=True)


def _warnings(mixed: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"warning: queue {queue} has blocking and async job types, so its threads bound both: give {', '.join(names)} "
        "a queue without blocking ones"
        for queue, names in mixed.items()
    ]


def _changes(registered: Registered) -> list[str]:
    words = {
        "registered": registered.added,
        "changed": registered.changed,
        "removed from the app's code, stopped": registered.retired,
    }
    return [f"schedules {word}: {', '.join(names)}" for word, names in words.items() if names]


@click.command()
@click.option("--dry-run", is_flag=True, help="Preview only: count what would be deleted.")
@reason_option
@command
def prune(context: Context, *, dry_run: bool, reason: str | None) -> CommandResult:
    """Delete ended jobs past their retention, in batches.

    Workers also do this every ten minutes, by the schedule effects.prune. Retention is set by
    EFFECTS_RETENTION_JOBS_DAYS, EFFECTS_RETENTION_DEAD_DAYS, EFFECTS_RETENTION_EFFECTS_DAYS,
    EFFECTS_RETENTION_AUDIT_DAYS and per job type.
    Unresolved dead and unknown jobs are never deleted. Rows of job types that are not registered here (see --app) are
    kept for the longest of these.
    """
    result = run_prune(context.app, dry_run=dry_run, actor=actor(), reason=reason)
    rows = [
        ("ended jobs", result.jobs),
        ("effects", result.effects),
        ("groups", result.groups),
        ("limits", result.limits),
        ("slots", result.slots),
        ("audit log", result.audit_log),
        ("bulk actions", result.bulks),
        ("evidence of failovers", result.evidence),
        ("failovers", result.failovers),
        ("numbers over time", result.numbers),
    ]
    packages = [(f"rows of {name}", count) for name, count in sorted(result.packages.items())]
    columns = ("what", "would be deleted" if dry_run else "deleted")
    return CommandResult(result, Table(columns, [*rows, *packages], empty="no rows"))


@click.group()
def grants() -> None:
    """Manage what PostgreSQL roles may enqueue."""


@grants.command("list")
@click.option("--role", metavar="ROLE", help="Only grants of this role.")
@limit_option
@command
def list_grants(context: Context, *, role: str | None, limit: int) -> CommandResult:
    """List the grants by role and job type."""
    with context.app.store.read() as connection:
        rows = store_grants.list_grants(context.app.store, connection, role)
    return listed(rows, limit, _grants_table)


@grants.command()
@click.argument("role")
@click.argument("job_type")
@reason_option
@command
def add(context: Context, *, role: str, job_type: str, reason: str | None) -> CommandResult:
    """Let ROLE enqueue jobs of JOB_TYPE by effects_enqueue().

    ROLE is the one that logs in, or one from which it inherits; SET ROLE changes nothing. It also needs USAGE of the
    schema and EXECUTE on the function, by GRANT. Steps that only effects enqueues are refused.
    """
    app = context.app
    with app.store.begin() as connection:
        is_new = store_grants.add(
            app.store, connection, role, app.job_types.get(job_type), actor=actor(), reason=reason
        )
    text = f"{role} may enqueue {job_type}" if is_new else f"{role} already may enqueue {job_type}"
    return CommandResult({"role": role, "job_type": job_type, "result": "added", "is_new": is_new}, text)


@grants.command()
@click.argument("role")
@click.argument("job_type")
@reason_option
@command
def remove(context: Context, *, role: str, job_type: str, reason: str | None) -> CommandResult:
    """Take the grant of JOB_TYPE from ROLE. Jobs that it has enqueued still run."""
    app = context.app
    with app.store.begin() as connection:
        was_there = store_grants.remove(app.store, connection, role, job_type, actor=actor(), reason=reason)
    text = f"{role} may no longer enqueue {job_type}" if was_there else f"{role} has no grant for {job_type}"
    return CommandResult({"role": role, "job_type": job_type, "result": "removed", "was_there": was_there}, text)


def _grants_table(rows: Sequence[Grant]) -> Table:
    return Table(
        ("role", "type", "created"), [(row.role, row.job_type, row.created_at) for row in rows], empty="no grants"
    )


@click.command()
@click.option("--quiet", is_flag=True, help="Print problems only; nothing if there are none.")
@click.option("-v", "--verbose", is_flag=True, help="On a terminal too, list what passed.")
@command
def doctor(context: Context, *, quiet: bool, verbose: bool) -> CommandResult:
    """Check database, workers, keys and settings.

    Each problem comes with advice. Exit codes, for monitoring: 0 no problems, 1 warnings, 2 errors.
    """
    app = context.bare_app
    refuse_missing_file(app)
    findings = examine(app)
    shown = [finding for finding in findings if finding.level != "ok"] if quiet else findings
    entries = [(finding.level, finding.check, finding.text, finding.advice) for finding in shown]
    text = [Checklist(entries, verbose=verbose)] if shown or not quiet else []
    return CommandResult(shown, text, exit_code=exit_code(findings), has_database=not quiet)
