"""What looks after the database: `effects init`, `prune`, `grants`, `keys`, `doctor`."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence

import click

from effects.app.retention import prune as run_prune
from effects.cli.context import Context, actor, pass_context, refuse_missing_file
from effects.cli.options import limit_option, reason_option
from effects.cli.results import CommandResult, command, listed
from effects.cli.table import Checklist, Table
from effects.errors import ConfigurationError
from effects.keys.encryption import DIGEST_KEY_ID, KeyRing, generate_key
from effects.kit.exit_codes import ExitCode
from effects.operate.doctor import check_all_declared, examine, exit_code
from effects.operate.tables import grants as store_grants
from effects.operate.tables.grants import Grant
from effects.operate.tables.rotate import KeyCount, Rotation, count_keys
from effects.operate.tables.rotate import rotate as run_rotation
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


@click.group()
def keys() -> None:
    """Manage encryption keys (EFFECTS_KEYS)."""


@keys.command()
def generate() -> None:
    """Print an EFFECTS_KEYS line with a new active key.

    The old keys follow it: they still decrypt what they encrypted. A missing `digest` key is created, too; it
    compares payloads and must never change. Nothing is stored: put the line into the environment of the app
    and the worker, and keep it out of the database's backups.
    """
    current = os.environ.get("EFFECTS_KEYS", "").strip().strip(",")
    ring = KeyRing(current)
    pairs = [f"{_fresh_id(ring)}={generate_key()}", *([current] if current else [])]
    if not ring.digests_are_keyed:
        pairs.append(f"{DIGEST_KEY_ID}={generate_key()}")
    click.echo(f"EFFECTS_KEYS={','.join(pairs)}")


@keys.command()
@command
def status(context: Context) -> CommandResult:
    """Show the keys and how many values need each."""
    app = context.app
    counts = count_keys(app.store)
    used = sorted({count.key_id for count in counts} - set(app.keys.ids))
    ids = [*app.keys.ids, *used]
    described, rows = [], []
    for key_id in ids:
        places = _places(counts, key_id)
        where = [f"{place} {values:,}" for place, values in places.items()]
        described.append({"key": key_id, "role": _role(app.keys, key_id), "values": places})
        rows.append((key_id, _role(app.keys, key_id), sum(places.values()), where))
    empty = "no keys: EFFECTS_KEYS is not set, and nothing is encrypted"
    document = {"keys": described, "digest": app.keys.digests_are_keyed}
    return CommandResult(document, Table(("key", "role", "values", "where"), rows, empty=empty))


@keys.command()
@click.option("--progress", is_flag=True, help="Progress of each batch on standard error.")
@reason_option
@command
def rotate(context: Context, *, progress: bool, reason: str | None) -> CommandResult:
    """Re-encrypt all values with the newest key, online.

    First restart every process with the new key in front, so that nothing new is encrypted with an old one; then
    rotate; then remove the old key with `effects keys retire`. Works in batches of 200 and can be killed and run
    again at any time.

    Exit codes: 0 everything is under the newest key; 1 some process still uses an old key; 2 some values could not be
    decrypted and were left as they are.
    """
    app = context.app
    on_progress = (lambda place, count: click.echo(f"{place}: {count}", err=True)) if progress else None
    result = run_rotation(app.store, app.keys, on_progress, actor=actor(), reason=reason)
    lines = [f"{result.rotated:,} values are now under the key {result.newest}"]
    lines += [f"{count.place}: {count.values:,} values still under the key {count.key_id}" for count in result.left]
    note, exit_code = _verdict(app.keys, result)
    return CommandResult(result, "\n".join(lines), note=note, exit_code=exit_code)


@keys.command()
@click.argument("key_id")
@pass_context
def retire(context: Context, key_id: str) -> None:
    """Print the EFFECTS_KEYS line without KEY_ID.

    Refused while any value needs the key. Nothing is stored. First restart every process that still seals with this
    key.
    """
    app = context.app
    if key_id == DIGEST_KEY_ID:
        raise ConfigurationError("the key digest cannot be retired: the digests of all payloads depend on it")
    if key_id not in app.keys.ids:
        raise ConfigurationError(f"EFFECTS_KEYS holds no key {key_id!r} (it holds {', '.join(app.keys.ids) or 'none'})")
    if key_id == app.keys.ids[0]:
        raise ConfigurationError(f"{key_id} is the active key; add a newer one first (`effects keys generate`)")
    counts = [count for count in count_keys(app.store) if count.key_id == key_id]
    if counts:
        places = ", ".join(f"{count.place} {count.values:,}" for count in counts)
        total = sum(count.values for count in counts)
        raise ConfigurationError(f"{total:,} values need the key {key_id} ({places}): run `effects keys rotate` first")
    pairs = [pair.strip() for pair in app.settings.keys.split(",") if pair.strip()]
    click.echo(f"EFFECTS_KEYS={','.join(pair for pair in pairs if pair.partition('=')[0] != key_id)}")


def _verdict(ring: KeyRing, result: Rotation) -> tuple[str | None, ExitCode]:
    if result.unreadable:
        place, row = result.unreadable[0]
        missing = sorted({count.key_id for count in result.left} - set(ring.ids))
        why = (
            f"EFFECTS_KEYS does not hold {', '.join(missing)}" if missing else "they were altered, or a key's value was"
        )
        left = f"{len(result.unreadable):,} values do not open and were left as they are"
        return f"error: {left}, such as row {row} of {place}: {why}", ExitCode.ERROR
    if result.left:
        advice = "some process still seals with an old key: start it with the new EFFECTS_KEYS, then rotate again"
        return advice, ExitCode.FINDINGS
    return None, ExitCode.DONE


def _role(ring: KeyRing, key_id: str) -> str:
    if key_id not in ring.ids:
        return "missing"
    return "seals" if key_id == ring.ids[0] else "opens"


def _places(counts: list[KeyCount], key_id: str) -> dict[str, int]:
    return {count.place: count.values for count in counts if count.key_id == key_id}


def _fresh_id(ring: KeyRing) -> str:
    """`k` and the day; a second key of one day gets a number."""
    today = f"k{dt.datetime.now(dt.UTC):%Y%m%d}"
    taken = set(ring.ids)
    names = [today, *(f"{today}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


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
