"""One request of one person, as views have it, and what all visits of a dashboard share."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from effects.app.effects import Effects
from effects.errors import EnqueueError
from effects.operate.evidence import Evidence, job_evidence
from effects.operate.tables.actions import LOOK_UP, note_look, run_now
from effects.operate.tables.dead_letters import Unresolved, count_unresolved
from effects.operate.tables.limit_status import Limit, find
from effects.operate.tables.lookup import last_attempts
from effects.store.audit_log import AuditAction
from effects.store.db.records import AttemptRecord
from effects.store.limits import key_limits as limit_rows
from effects.version import VERSION
from effects.web.database import ACT_BOUNDS, COUNT_BOUNDS, Readings, bounded, twice
from effects.web.exchange import PageAnswer, PageRequest, ReadFields, cookie, form_of, query_of
from effects.web.rendering import Exact, PageRenderer, in_address
from effects.web.routes import NAVIGATION, NavigationGroup, PageRoute, RouteTable
from effects.web.security import FORM_FIELD, Person, form_token, is_ticket, ticket

T = TypeVar("T")

LIVE_SECONDS = 2.0  # for how long a reading of what moves is shared
LIVE_HEADER = "x-effects-live"
THEMES = ("dark", "light")
THEME_COOKIE = "effects-theme"
YEAR_SECONDS = 31_536_000

TICKET_SECONDS = 120.0
CLOSED_FILTERS = {"status", "newer", "effect"}  # whose values are words of ours


@dataclass
class Site:
    """What all visits share.

    Args:
        app: on connections of the dashboard's own.
        counting: the same on one more, for what counts over every live job.
        notifier_app: the host's own Effects, whose notifier tells workers of new work.
        title: shown at the top, such as the name of the environment.
        can_sign_out: whether sessions are ours.
        packages: the pages of installed packages.
        notices: what is said after an action, by its name.
        banner: what stands above every page.
    """

    app: Effects
    counting: Effects
    notifier_app: Effects
    routes: RouteTable
    title: str
    renderer: PageRenderer
    can_sign_out: bool = False
    packages: Sequence[Any] = ()  # `Pages`, which know visits
    notices: Mapping[str, str] = field(default_factory=dict)
    banner: str | None = None
    readings: Readings = field(default_factory=Readings)
    clock: Callable[[], float] = time.time

    @cached_property
    def navigation(self) -> Sequence[NavigationGroup]:
        """The core's entries, and those of packages."""
        theirs = [NavigationGroup(pages.label, pages.navigation) for pages in self.packages if pages.navigation]
        return [*NAVIGATION, *theirs]


@dataclass
class Visit:
    """One request.

    Args:
        person: who asks; None on pages that need no sign-in.
        values: the parameters of the path.
        nonce: what form tokens are made of.
        secure: whether cookies may be sent over https only.
        counted_seconds: how old the oldest count is that the page shows.
        is_counting: whether a count is asked for that is not there yet.
        shown_unresolved: what the page itself says of what needs a person; its frame says the same.
    """

    site: Site
    request: PageRequest
    person: Person | None
    route: PageRoute | None = None
    values: dict[str, str] = field(default_factory=dict)
    nonce: str = ""
    secure: bool = False
    counted_seconds: float = 0.0
    is_counting: bool = False
    shown_unresolved: Unresolved | None = None

    @property
    def app(self) -> Effects:
        return self.site.app

    @cached_property
    def query(self) -> ReadFields:
        return ReadFields(query_of(self.request))

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
        """While an action writes: it waits for locks as `ACT_BOUNDS` has it, and no statement is ended half-way."""
        try:
            with self.app.store.within(ACT_BOUNDS):
                yield
        finally:  # of several rows some may have been acted on
            self.site.readings.forget()

    def reason(self, *, needed: bool) -> str | None:
        """Why the person acts, as the form has it.

        Raises:
            EnqueueError: it is needed and missing.
        """
        reason = self.form.get("reason")
        if needed and reason is None:
            raise EnqueueError("a reason is needed, for the audit log")
        return reason

    @property
    def is_polled(self) -> bool:
        """Whether the page refreshes itself."""
        return LIVE_HEADER in self.request.headers

    def read(self, question: Hashable, seconds: float, read: Callable[[], T]) -> T:
        """A reading that is shared: at most `seconds` old, or longer where it takes long.

        Args:
            question: names it; of few values, none of which a person types freely.
        """
        return self.site.readings.get(question, seconds, read, polled=self.is_polled)

    def count(self, question: Hashable, seconds: float, read: Callable[[Effects], T]) -> T:
        """The same for what counts over every live job; where it takes longer than a page waits, the page says so.

        Args:
            read: of the app on the connection for that.

        Raises:
            StillCountingError: as `Readings.count`.
        """
        readings, counting, self.is_counting = self.site.readings, self.site.counting, True

        def bounded_read() -> T:
            with bounded(counting.store, COUNT_BOUNDS):
                return twice(partial(read, counting))

        answer = readings.count(question, seconds, bounded_read, polled=self.is_polled)
        self.is_counting = False
        self.counted_seconds = max(self.counted_seconds, readings.age(question))
        return answer

    def unresolved(self) -> Unresolved:
        """What needs a person, in numbers."""

        def read() -> Unresolved:
            with self.app.store.read() as connection:
                return count_unresolved(self.app.store, connection)

        return self.read("unresolved", LIVE_SECONDS, read)

    def read_list(self, name: str, chosen: Mapping[str, str], before: int | None, read: Callable[[], T]) -> T:
        """The first page of a list is shared where its filters are words of ours; others are read."""
        if before is not None or not chosen.keys() <= CLOSED_FILTERS:
            return read()
        return self.read((name, *sorted(chosen.items())), LIVE_SECONDS, read)

    def notify(self, queues: Collection[str]) -> None:
        """Tell workers of these queues that there is work."""
        self.site.notifier_app.notifier.send(queues)

    def note_look(self, action: AuditAction, subject: str | int) -> None:
        """Note in the audit log that this person is about to see what may be personal; to be called before it is read.

        Args:
            action: such as `AuditAction("message", "reveal")`, declared by a module.
            subject: nothing personal: an id, or the digest of an address.
        """
        with self.app.store.within(ACT_BOUNDS):
            note_look(self.app.store, action, subject, actor=self.someone.actor, reason=self.form.get("reason"))

    def note_address(self, address: str) -> None:
        """Note that an address is looked up; by its digest."""
        self.note_look(LOOK_UP, self.app.keys.digest(address))

    def evidence(self, job_id: int) -> Evidence:
        """The story of an effect as one job of it has it, with those that it was requeued from."""
        return job_evidence(self.app, job_id, earlier=True)

    def limit_of(self, key: str) -> Limit | None:
        """The state of a limit key, of a reading that is shared; None where it has no row."""

        def read(app: Effects) -> Limit | None:
            with app.store.read() as connection:
                return find(app.store, connection, key)

        return self.count(("limit", key), LIVE_SECONDS, read)

    def last_attempts(self, job_ids: Sequence[int]) -> dict[int, AttemptRecord]:
        """The newest attempt of each of these jobs that was tried: what the other side said last."""
        with self.app.store.read() as connection:
            return last_attempts(self.app.store, connection, job_ids)

    def resume_limit(self, key: str, reason: str | None) -> None:
        """End the pause of a limit key, and close its breaker."""
        with self.app.store.begin() as connection:
            limit_rows.resume(self.app.store, connection, key, actor=self.someone.actor, reason=reason)
        self.notify(self.app.queues)  # in which its jobs wait is not known here

    def run_now(self, job_id: int, reason: str | None) -> None:
        """Make a waiting job due now."""
        self.notify([run_now(self.app.store, job_id, actor=self.someone.actor, reason=reason)])

    def ticket(self, what: str) -> str:
        """A text that lets this person see `what` for two minutes by GET, such as in a frame of the page."""
        return ticket(self.nonce, self.someone, what, self.site.clock() + TICKET_SECONDS)

    def has_ticket(self, what: str) -> bool:
        """Whether the query's `ticket` was made for this person and this, and its time is not over."""
        return is_ticket(self.query.get("ticket", ""), self.nonce, self.someone, what, self.site.clock())

    def url(self, name: str, /, **values: Any) -> Exact:
        """The address of a page; what its path does not take becomes the query, None left out.

        Of a row's text it has what this person may see; a text that is `Exact` it has as it is.
        """
        personal = self.person is not None and self.person.personal
        shown = {key: in_address(value, personal=personal) for key, value in values.items() if value is not None}
        path = self.request.mount + self.site.routes.by_name[name].url(shown)
        return Exact(f"{path}?{urlencode(shown)}" if shown else path)

    def asset(self, name: str) -> str:
        """The address of a file of ours."""
        return self.url("static", hash=self.site.renderer.static.hashes[name], file=name)

    def page(self, template: str, /, *, code: int = 200, revealed: bool = False, **values: Any) -> PageAnswer:
        """Render a template, which knows the person and the navigation.

        Args:
            revealed: with addresses as they are; only after the look was noted in the audit log.
        """
        shared = {
            "visit": self, "person": self.person, "url": self.url, "asset": self.asset, "title": self.site.title,
            "theme": self.theme, "navigation": self.site.navigation, "version": VERSION, "form_field": FORM_FIELD,
            "form_token": form_token(self.nonce, self.person) if self.person is not None else "",
            "here": self.route.name if self.route is not None else "", "now": dt.datetime.now(dt.UTC),
            "database": "PostgreSQL" if self.app.store.is_postgresql else "SQLite",
        }  # fmt: skip
        assert shared.keys().isdisjoint(values), "a page would show another value in its frame"
        body = self.site.renderer.render(template, {**shared, "revealed": revealed, **values}, revealed=revealed)
        return PageAnswer(code, body, headers=(("cache-control", "no-store"),))

    @property
    def theme(self) -> str | None:
        """What the person has chosen; None: as the system has it."""
        theme = self.request.cookies.get(THEME_COOKIE)
        return theme if theme in THEMES else None

    @cached_property
    def needing(self) -> int | None:
        """How many jobs need a person; None where the database does not say."""
        try:
            return (self.shown_unresolved or self.unresolved()).jobs
        except Exception:  # a page about an error shows its frame all the same
            return None

    def redirect(self, name: str, /, **values: Any) -> PageAnswer:
        """Lead the browser to a page by GET."""
        return self.lead_to(self.url(name, **values))

    def lead_to(self, url: str) -> PageAnswer:
        """Lead the browser to an address of ours by GET."""
        return PageAnswer(303, headers=(("location", str(url)), ("cache-control", "no-store")))

    def theme_cookie(self, theme: str) -> tuple[str, str]:
        chosen = theme if theme in THEMES else ""  # which ends the cookie
        seconds = YEAR_SECONDS if chosen else 0
        return cookie(THEME_COOKIE, chosen, path=self.request.mount or "/", secure=self.secure, seconds=seconds)
