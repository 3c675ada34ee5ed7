"""What installed packages offer to effects, by entry point group: job types, tables, settings, commands."""

from __future__ import annotations

import functools
from importlib import metadata
from importlib.metadata import EntryPoint

PREFIX = "effects."


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of this group, such as `effects.tables`, by name.

    The distributions are read once per process: searching them all takes longer than making an `Effects`.
    """
    return _by_group().get(group, ())


@functools.cache
def _by_group() -> dict[str, tuple[EntryPoint, ...]]:
    installed = metadata.entry_points()
    # A set: an editable install under the old name of the distribution leaves its entries beside the new ones.
    return {
        group: tuple(sorted(set(installed.select(group=group)), key=lambda entry: entry.name))
        for group in installed.groups
        if group.startswith(PREFIX)
    }
