"""`effects keys`: generate, status, rotate, retire."""

from __future__ import annotations

import datetime as dt
import os

import click

from effects.cli.context import Context, actor, pass_context
from effects.cli.options import reason_option
from effects.cli.results import CommandResult, command
from effects.cli.table import Table
from effects.errors import ConfigurationError
from effects.keys.encryption import DIGEST_KEY_ID, KeyRing, generate_key
from effects.kit.exit_codes import ExitCode
from effects.operate.tables.rotate import KeyCount, Rotation, count_keys
from effects.operate.tables.rotate import rotate as run_rotation


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
