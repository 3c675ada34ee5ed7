"""Signing in to the stand-alone dashboard: a link from the command line, used once, begins a session."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from effects.app.effects import Effects
from effects.operate.tables.sign_ins import find_link, find_session, sign_in, sign_out
from effects.web import failures
from effects.web.database import PAGE_BOUNDS, beside, bounded
from effects.web.exchange import PageAnswer, PageRequest, cookie
from effects.web.security import Person, RateLimit, Role
from effects.web.visit import Visit

LINKS_PER_MINUTE = 10
TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
_COOKIE = "effects-session"


class SignIn:
    """The guard of the stand-alone dashboard.

    Args:
        app: whose table has the sessions.
        port: of the server: without https, cookies of two dashboards on one host must not meet.
        secure: whether people come by https; the cookie is then sent over nothing else.
    """

    def __init__(self, app: Effects, *, port: int, secure: bool) -> None:
        self._app, self.secure = app, secure
        self.looking = beside(app)  # each request asks who it is: no other writer may hold it up as it may an action
        self.cookie_name = f"__Host-{_COOKIE}" if secure else f"{_COOKIE}-{port}"
        self.links = RateLimit(LINKS_PER_MINUTE)

    def guard(self, request: PageRequest) -> Person | None:
        """The person whose session the cookie names."""
        secret = self.secret_of(request)
        with bounded(self.looking.store, PAGE_BOUNDS):
            session = find_session(self.looking.store, secret) if secret else None
        if session is None:
            return None
        return Person(session.person, role=cast("Role", session.role), personal=session.personal)

    def secret_of(self, request: PageRequest) -> str | None:
        return request.cookies.get(self.cookie_name)

    def close(self) -> None:
        """Close the connections of the guard."""
        self.looking.store.dispose()

    # -- pages -------------------------------------------------------------------------------------------------

    def ask(self, visit: Visit) -> PageAnswer:
        """GET: say who would be signed in. A scanner that opens links uses none up."""
        secret = visit.query.get(TOKEN_FIELD)
        link = find_link(self._app.store, secret) if secret else None
        return visit.page("sign_in.html", link=link, secret=secret, refused=secret is not None and link is None)

    def enter(self, visit: Visit) -> PageAnswer:
        """POST: use the link up, and begin the session."""
        secret = visit.form.get(TOKEN_FIELD, "")
        link = find_link(self._app.store, secret)
        if link is None and not self.links.admits(visit.request.client or ""):  # only wrong guesses count
            return failures.plain(429, "too many tries: wait a minute")
        session = sign_in(self._app.store, secret, actor=f"web:{link.person}") if link is not None else None
        if link is None or session is None:
            return visit.page("sign_in.html", code=403, link=None, secret=None, refused=True)
        header = cookie(self.cookie_name, session, path="/", secure=self.secure)
        return _with(visit.redirect("overview"), header)

    def leave(self, visit: Visit) -> PageAnswer:
        """End the own session."""
        secret = self.secret_of(visit.request)
        if secret:
            sign_out(self._app.store, secret, actor=visit.someone.actor)
        header = cookie(self.cookie_name, "", path="/", secure=self.secure, seconds=0)
        return _with(visit.redirect("sign_in"), header)


def _with(answer: PageAnswer, header: tuple[str, str]) -> PageAnswer:
    return replace(answer, headers=(*answer.headers, header))
