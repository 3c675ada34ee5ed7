"""One request of one person, as views have it, and what all visits of a dashboard share."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from effects.app import Effects
from effects.store.operator.dead_letters import Unresolved, count_unresolved
from effects.version import VERSION
from effects.web.database import ACT_BOUNDS
from effects.web.exchange import PageAnswer, PageRequest, cookie, form_of, query_of
from effects.web.people import Person
from effects.web.readings import Readings
from effects.web.rendering import PageRenderer
from effects.web.routes import PageRoute, RouteTable
from effects.web.security import FORM_FIELD, form_token

LIVE_SECONDS = 2.0  # for how long a reading of what moves is shared
THEMES = ("dark", "light")
THEME_COOKIE = "effects-theme"
YEAR_SECONDS = 31_536_000

# Page → its name in the navigation, and the key that leads to it after `g`.
NAVIGATION = (
    ("overview", "Overview", "o"), ("needs", "Needs you", "n"), ("jobs", "Jobs", "j"), ("queues", "Queues", "q"),
    ("workers", "Workers", "w"), ("schedules", "Schedules", "s"), ("limits", "Limits", "l"),
    ("health", "Health", "h"), ("audit", "Audit log", "a"),
)  # fmt: skip


@dataclass
class Site:
    """What all visits share.

    Args:
        app: on connections of the dashboard's own.
        notifier_app: the host's own Effects, whose notifier tells workers of new work.
        title: shown at the top, such as the name of the environment.
        can_sign_out: whether sessions are ours.
    """

    app: Effects
    notifier_app: Effects
    routes: RouteTable
    title: str
    can_sign_out: bool = False
    renderer: PageRenderer = field(default_factory=PageRenderer)
    readings: Readings = field(default_factory=Readings)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def unresolved(self) -> Unresolved:
        """What needs a person, in numbers."""

        def read() -> Unresolved:
            with self.app.store.read() as connection:
                return count_unresolved(self.app.store, connection)

        return self.readings.get("unresolved", LIVE_SECONDS, read)


@dataclass
class Visit:
    """One request.

    Args:
        person: who asks; None on pages that need no sign-in.
        values: the parameters of the path.
        nonce: what form tokens are made of.
        secure: whether cookies may be sent over https only.
    """

    site: Site
    request: PageRequest
    person: Person | None
    route: PageRoute | None = None
    values: dict[str, str] = field(default_factory=dict)
    nonce: str = ""
    secure: bool = False

    @property
    def app(self) -> Effects:
        return self.site.app

    @cached_property
    def query(self) -> dict[str, str]:
        return query_of(self.request)

    @cached_property
    def form(self) -> dict[str, str]:
        return form_of(self.request)

    @property
    def someone(self) -> Person:
        """The person; only on routes that need a role."""
        assert self.person is not None
        return self.person

    @contextmanager
    def acting(self) -> Iterator[None]:
        """While an action writes: it waits 2 seconds for a lock, and no statement is ended half-way."""
        with self.app.store.within(ACT_BOUNDS):
            yield
        self.site.readings.forget()

    def url(self, name: str, /, **values: Any) -> str:
        """The address of a page; what its path does not take becomes the query, None left out."""
        route = self.site.routes.by_name[name]
        path = self.request.mount + route.url(values)
        query = urlencode({key: value for key, value in values.items() if value is not None})
        return f"{path}?{query}" if query else path

    def asset(self, name: str) -> str:
        """The address of a file of ours."""
        return self.url("static", hash=self.site.renderer.static.hashes[name], file=name)

    def page(self, template: str, *, code: int = 200, revealed: bool = False, **values: Any) -> PageAnswer:
        """Render a template, which knows the person and the navigation.

        Args:
            revealed: with addresses as they are; only after the look was noted in the audit log.
        """
        shared = {
            "visit": self, "person": self.person, "url": self.url, "asset": self.asset, "title": self.site.title,
            "theme": self.theme, "navigation": NAVIGATION, "version": VERSION, "form_field": FORM_FIELD,
            "form_token": form_token(self.nonce, self.person) if self.person is not None else "",
            "here": self.route.name if self.route is not None else "", "now": dt.datetime.now(dt.UTC),
            "database": "PostgreSQL" if self.app.store.is_postgresql else "SQLite",
        }  # fmt: skip
        body = self.site.renderer.render(template, {**shared, "revealed": revealed, **values}, revealed=revealed)
        return PageAnswer(code, body, headers=(("cache-control", "no-store"),))

    @property
    def theme(self) -> str | None:
        """What the person has chosen; None: as the system has it."""
        theme = self.request.cookies.get(THEME_COOKIE)
        return theme if theme in THEMES else None

    @property
    def needing(self) -> int | None:
        """How many jobs need a person; None where the database does not say."""
        try:
            return self.site.unresolved().jobs
        except Exception:  # a page about an error shows its frame all the same
            return None

    def redirect(self, name: str, /, **values: Any) -> PageAnswer:
        """Lead the browser to a page by GET."""
        return PageAnswer(303, headers=(("location", self.url(name, **values)), ("cache-control", "no-store")))

    def theme_cookie(self, theme: str) -> tuple[str, str]:
        seconds = YEAR_SECONDS if theme in THEMES else 0
        return cookie(THEME_COOKIE, theme, path=self.request.mount or "/", secure=self.secure, seconds=seconds)
