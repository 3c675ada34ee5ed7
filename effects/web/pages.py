"""What an installed package adds to the dashboard, by an entry point `effects.pages`: routes, actions, templates.

    pages = Pages(name="webhooks", label="Webhooks", package="shop_webhooks.pages", routes=…)

Its templates stand in the folder `templates` of `package`, are named `webhooks/endpoints.html`, and extend `base.html`.
They get no scripts and no styles of their own, and are rendered as the core's are: every text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from effects.observation.evidence import Evidence
from effects.process.entry_points import entry_points
from effects.web.actions import PageAction
from effects.web.navigation import NavigationEntry
from effects.web.routes import PageRoute
from effects.web.visit import Visit

GROUP = "effects.pages"
LinksOfStory: TypeAlias = "Callable[[Visit, Evidence], Sequence[StoryLink]]"
ReadStanding: TypeAlias = "Callable[[Visit], Sequence[StandingLine]]"


@dataclass(frozen=True, slots=True)
class StoryLink:
    """A page of a package about the effect whose story is shown."""

    label: str
    url: str


@dataclass(frozen=True, slots=True)
class StandingLine:
    """A line of the overview: something that a person should know of.

    Args:
        word: the state, one that the pages have a colour and a shape for, such as `failing` or `running`.
    """

    word: str
    text: str
    url: str


def _no_links(visit: Visit, evidence: Evidence) -> Sequence[StoryLink]:
    return ()


def _no_standing(visit: Visit) -> Sequence[StandingLine]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The pages of one package.

    Args:
        name: what the names of its routes and templates begin with.
        label: above its part of the navigation.
        package: the importable package whose folder `templates` has its templates.
        navigation: its entries.
        routes: each declares its role and whether it needs the capability `personal`.
        actions: each becomes a route of its own.
        notices: what its own views say by `did` in an address, beside the notices of the actions.
        missing: its errors that mean that there is no such thing: they are answered 404.
        links: pages about the effect whose story is shown. Default none.
        standing: lines of the overview; read at most every two seconds for all who look. Default none.
    """

    name: str
    label: str
    package: str
    navigation: Sequence[NavigationEntry] = ()
    routes: Sequence[PageRoute] = ()
    actions: Sequence[PageAction] = ()
    notices: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[type[Exception], ...] = ()
    links: LinksOfStory = _no_links
    standing: ReadStanding = _no_standing


def installed_pages() -> list[Pages]:
    """The pages of every installed package, in the order of their names."""
    return [entry.load() for entry in entry_points(GROUP)]
