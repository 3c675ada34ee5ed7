"""The table of routes, and the navigation: each route says which role it needs. Nothing is served that is not in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from effects.web.exchange import PageAnswer
from effects.web.security import Role

View: TypeAlias = Callable[[Any], PageAnswer]  # of a `Visit`, which knows the routes
_PARAMETER = re.compile(r"\{(\w+)\}")
_NAME = "[A-Za-z0-9_-]{1,100}"  # an id of a package, such as `run_…`
_PARAMETERS = {"id": "[1-9][0-9]{0,17}", "hash": "[0-9a-f]{12}", "file": r"[a-z]+\.[a-z]+"}


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One page or action.

    Args:
        name: by which pages link to it.
        methods: `GET`, `POST` or both; `HEAD` comes with `GET`.
        pattern: below the mount, such as `/jobs/{id}`; a parameter is a number (`id`), the `hash` or name of a
            `file` of ours, or an id of up to 100 letters, digits, `_` and `-`.
        view: what answers.
        role: the least role that may use it; `public` needs none. No default.
        personal: whether it needs the capability `personal`. No default.
        acts: whether its POST changes something beyond the person's own session, or looks up what may be personal;
            it counts towards the rate.
    """

    name: str
    methods: tuple[Literal["GET", "POST"], ...]
    pattern: str
    view: View
    role: Role | Literal["public"]
    personal: bool
    acts: bool = False
    compiled: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = _PARAMETER.split(self.pattern)
        texts = [
            f"(?P<{part}>{_PARAMETERS.get(part, _NAME)})" if at % 2 else re.escape(part)
            for at, part in enumerate(parts)
        ]
        object.__setattr__(self, "compiled", re.compile("".join(texts)))

    def url(self, values: dict[str, Any]) -> str:
        """The path with these parameters, which are taken out of `values`."""
        return _PARAMETER.sub(lambda match: quote(str(values.pop(match[1])), safe=""), self.pattern)


class RouteTable:
    """All routes, by path and by name."""

    def __init__(self, routes: Iterable[PageRoute]) -> None:
        # `/runs/cancel` before `/runs/{run}`, whoever declares them.
        self.routes: Sequence[PageRoute] = sorted(routes, key=lambda route: "{" in route.pattern)
        self.by_name = {route.name: route for route in self.routes}
        assert len(self.by_name) == len(self.routes), "two routes have one name"

    def match(self, path: str) -> tuple[PageRoute, dict[str, str]] | None:
        """The route of a path, with its parameters."""
        for route in self.routes:
            if (match := route.compiled.fullmatch(path)) is not None:
                return route, match.groupdict()
        return None


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
