"""What an installed package adds to the dashboard, by an entry point `effects.pages`: routes, actions, templates.

    pages = Pages(name="webhooks", label="Webhooks", package="shop_webhooks.pages", routes=…)

Its templates stand in the folder `templates` of `package`, are named `webhooks/endpoints.html`, and extend `base.html`.
They get no scripts and no styles of their own, and are rendered as the core's are: every text is escaped. What is said
after an action, the core's or a package's, stands here too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from effects.kit.importing import entry_points
from effects.kit.text.unsafe import whole_number
from effects.operate.evidence import Evidence
from effects.operate.tables.held_up import HeldUp
from effects.web.actions import PageAction
from effects.web.core_actions import SUBJECT_ACTIONS
from effects.web.routes import NavigationEntry, PageRoute
from effects.web.visit import Visit

GROUP = "effects.pages"
LinksOfStory: TypeAlias = "Callable[[Visit, Evidence], Sequence[StoryLink]]"
ReadStanding: TypeAlias = "Callable[[Visit], Sequence[StandingLine]]"
ReadProblems: TypeAlias = "Callable[[Visit], Sequence[Problem]]"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A row of the overview: one thing that is wrong, however many it concerns.

    Args:
        word: its chip, such as `failing`.
        text: what is wrong, by name.
        url: the page about it.
        affected: how many it concerns, in words.
        since: when it began.
        error: what the other side said last, or what ends it.
        button, button_url: what an operator presses first.
        names: of those that it concerns the first, each with its page.
    """

    word: str
    text: str
    url: str
    affected: str = ""
    since: dt.datetime | None = None
    error: str = ""
    button: str = ""
    button_url: str = ""
    names: Sequence[tuple[str, str]] = ()


def _no_problems(visit: Visit) -> Sequence[Problem]:
    return ()


def _covers_nothing(held: HeldUp) -> bool:
    return False


def _finds_nothing(visit: Visit, question: str) -> Sequence[StoryLink]:
    return ()


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
        actions: each becomes its own route.
        notices: what its own views say by `did` in an address, beside the notices of the actions.
        missing: its errors that mean that there is no such thing: they are answered 404.
        links: pages about the effect whose story is shown. Default none.
        standing: what is under way; read at most every 15 seconds for all who look. Default nothing.
        problems: what is wrong with what it delivers; read as often. Default nothing.
        covers: whether a row of `problems` says what this one thing that holds jobs up says. Default no.
        find: the pages of what a search names, by a whole id or a part of a name; at most ten. Default none.
        subjects: by a check of the doctor, the address of the page of what a finding is `about`.
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
    problems: ReadProblems = _no_problems
    covers: Callable[[HeldUp], bool] = _covers_nothing
    find: Callable[[Visit, str], Sequence[StoryLink]] = _finds_nothing
    subjects: Mapping[str, Callable[[Visit, str], str]] = field(default_factory=dict)


def installed_pages() -> list[Pages]:
    """The pages of every installed package, in the order of their names."""
    return [entry.load() for entry in entry_points(GROUP)]


_DIGITS_MAX = 9
_OF_JOBS = {
    "cancelled": "Cancelled.",
    "cancel_requested": "It is running: asked to stop, and will not be tried again.",
    "due": "It is due now.",
    "requeued": "Requeued: this is the new job.",
    "mark-done": "Recorded as done, on your word.",
    "give-up": "Left unknown.",
    "ignored": "Ignored.",
    "settings": "Saved.",
    "bulk_started": "It has started: a worker carries it out. This page can be left.",
}


def notices(packages: Sequence[Pages]) -> Mapping[str, str]:
    """What is said after each action, by its name."""
    words = {name: text for pages in packages for name, text in pages.notices.items()}
    actions = [*SUBJECT_ACTIONS, *(action for pages in packages for action in pages.actions)]
    return {**_OF_JOBS, **words, **{action.name: action.notice for action in actions}}


def notice(visit: Visit) -> str | None:
    """The sentence about what was just done."""
    text = visit.site.notices.get(visit.query.get("did", ""))
    if text is None or "{n}" not in text:
        return text
    count = whole_number(visit.query.get("n", ""), _DIGITS_MAX)
    return text.replace("{n}", "Some" if count is None else f"{count:,}")
