"""`effects keys generate`."""

from __future__ import annotations

import datetime as dt
import os

import click

from effects.keys import DIGEST_KEY_ID, KeyRing, generate_key


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


def _fresh_id(ring: KeyRing) -> str:
    """`k` and the day; a second key of one day gets a number."""
    today = f"k{dt.datetime.now(dt.UTC):%Y%m%d}"
    taken = set(ring.ids)
    names = [today, *(f"{today}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)
