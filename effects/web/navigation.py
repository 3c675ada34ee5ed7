"""The pages that stand in the navigation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class NavigationEntry(NamedTuple):
    """A page in the navigation: the name of its route, what it is called, and the key that leads to it after `g`."""

    route: str
    label: str
    key: str


class NavigationGroup(NamedTuple):
    """Entries under one heading; None for the core's first ones."""

    label: str | None
    entries: Sequence[NavigationEntry]


NAVIGATION = (
    NavigationGroup(None, [
        NavigationEntry("overview", "Overview", "o"), NavigationEntry("needs", "Needs you", "n"),
        NavigationEntry("desk", "Decisions", "d"), NavigationEntry("jobs", "Jobs", "j"),
        NavigationEntry("numbers", "Numbers", "u"),
    ]),
    NavigationGroup("Machinery", [
        NavigationEntry("queues", "Queues", "q"), NavigationEntry("workers", "Workers", "w"),
        NavigationEntry("schedules", "Schedules", "s"), NavigationEntry("limits", "Limits", "l"),
        NavigationEntry("bulks", "Bulk actions", "b"), NavigationEntry("health", "Health", "h"),
        NavigationEntry("audit", "Audit log", "a"),
    ]),
)  # fmt: skip
