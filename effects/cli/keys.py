"""`effects keys`: generate, status, rotate, retire."""

from __future__ import annotations

import datetime as dt
import os

import click

from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import Table
from effects.errors import ConfigurationError
from effects.keys import DIGEST_KEY_ID, KeyRing, generate_key
from effects.store.rotate import KeyCount, Rotation, count_keys
from effects.store.rotate import rotate as run_rotation

EXIT_LEFT = 1


@click.group()
def keys() -> None:
    """The keys that seal secrets in the database (EFFECTS_KEYS)."""


@keys.command()
def generate() -> None:
    """Print an EFFECTS_KEYS line with a new sealing key in front of those that are set.

    The old keys stay: they open what they sealed. The first time it also makes the `digest` key, by which
    payloads are compared; that one must never change. Nothing is stored: put the line where the app and the
    worker find it, and keep it out of the database's backups.
    """
    current = os.environ.get("EFFECTS_KEYS", "").strip().strip(",")
    ring = KeyRing(current)
    pairs = [f"{_fresh_id(ring)}={generate_key()}"]
    pairs.append(current if current else f"{DIGEST_KEY_ID}={generate_key()}")
    click.echo(f"EFFECTS_KEYS={','.join(pairs)}")


@keys.command()
@json_option
@pass_context
def status(context: Context, as_json: bool) -> None:
    """Which keys there are, and how many values need each of them."""
    app = context.app
    counts = count_keys(app.store)
    used = sorted({one.key_id for one in counts} - set(app.keys.ids))
    ids = [*app.keys.ids, *used]
    if as_json:
        described = [
            {"key": key_id, "role": _role(app.keys, key_id), "values": _places(counts, key_id)} for key_id in ids
        ]
        context.echo({"keys": described, "digest": app.keys.digests_are_keyed}, as_json=True)
        return
    rows = []
    for key_id in ids:
        places = _places(counts, key_id)
        where = ", ".join(f"{place} {values:,}" for place, values in places.items())
        rows.append((key_id, _role(app.keys, key_id), sum(places.values()), where or "nothing"))
    context.echo(
        Table(("key", "role", "values", "where"), rows, empty="EFFECTS_KEYS is not set, and nothing is sealed")
    )


@keys.command()
@click.option("--progress", is_flag=True, help="Say on standard error what each batch did.")
@json_option
@pass_context
def rotate(context: Context, progress: bool, as_json: bool) -> int:
    """Seal every value under the first key of EFFECTS_KEYS, while everything goes on.

    First start every process with the new key in front, so that nothing new is sealed with an old one; then
    rotate; then let go of the old key with `effects keys retire`. It works in batches of 200, and may be
    killed and run again at any time.

    Exit codes: 0 everything is under the newest key; 1 something seals with an old key still; 2 some values do not
    open, and were left as they are.
    """
    app = context.app
    told = (lambda place, count: click.echo(f"{place}: {count}", err=True)) if progress else None
    result = run_rotation(app, told)
    if as_json:
        context.echo(result, as_json=True)
    else:
        context.echo(f"{result.rotated:,} values are now under the key {result.newest}")
        for one in result.left:
            context.echo(f"{one.place}: {one.values:,} values are left under the key {one.key_id}")
    return _verdict(app.keys, result)


@keys.command()
@click.argument("key_id")
@pass_context
def retire(context: Context, key_id: str) -> None:
    """Print the EFFECTS_KEYS line without KEY_ID; refused while any value needs that key.

    Nothing is stored. A process that still has the key in front could seal with it: start those anew first.
    """
    app = context.app
    if key_id == DIGEST_KEY_ID:
        raise ConfigurationError("the key digest is not to be retired: the digests of all payloads depend on it")
    if key_id not in app.keys.ids:
        raise ConfigurationError(f"EFFECTS_KEYS holds no key {key_id!r} (it holds {', '.join(app.keys.ids) or 'none'})")
    if key_id == app.keys.ids[0]:
        raise ConfigurationError(f"{key_id} is the key that seals: put a newer one before it (`effects keys generate`)")
    counts = [one for one in count_keys(app.store) if one.key_id == key_id]
    if counts:
        places = ", ".join(f"{one.place} {one.values:,}" for one in counts)
        total = sum(one.values for one in counts)
        raise ConfigurationError(f"{total:,} values need the key {key_id} ({places}): run `effects keys rotate` first")
    pairs = [pair.strip() for pair in app.settings.keys.split(",") if pair.strip()]
    click.echo(f"EFFECTS_KEYS={','.join(pair for pair in pairs if pair.partition('=')[0] != key_id)}")


def _verdict(ring: KeyRing, result: Rotation) -> int:
    if result.unreadable:
        place, row = result.unreadable[0]
        missing = sorted({one.key_id for one in result.left} - set(ring.ids))
        why = (
            f"EFFECTS_KEYS does not hold {', '.join(missing)}" if missing else "they were altered, or a key's value was"
        )
        raise ConfigurationError(
            f"{len(result.unreadable):,} values do not open and were left as they are, such as row {row} of "
            f"{place}: {why}"
        )
    if result.left:
        click.echo(
            "some process still seals with an old key: start it with the new EFFECTS_KEYS, then rotate again", err=True
        )
        return EXIT_LEFT
    return 0


def _role(ring: KeyRing, key_id: str) -> str:
    if key_id not in ring.ids:
        return "missing"
    return "seals" if key_id == ring.ids[0] else "opens"


def _places(counts: list[KeyCount], key_id: str) -> dict[str, int]:
    return {one.place: one.values for one in counts if one.key_id == key_id}


def _fresh_id(ring: KeyRing) -> str:
    """`k` and the day; a second key of one day gets a number."""
    today = f"k{dt.datetime.now(dt.UTC):%Y%m%d}"
    taken = set(ring.ids)
    names = [today, *(f"{today}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)
