"""The dashboard as an app to mount: ASGI, WSGI or Django's URLs, behind the host's own guard; and its routes."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from effects.app.default import app_of
from effects.app.effects import Effects
from effects.errors import ConfigurationError
from effects.kit.arguments import each_of, optional, printable, require
from effects.kit.logs import error_places, own_logger
from effects.kit.text.wording import described, moment_text
from effects.web import failures
from effects.web.actions import page_action_view
from effects.web.core_actions import JOB_ACTIONS, SUBJECT_ACTIONS, job_action_view
from effects.web.database import COUNT_SECONDS, PAGE_BOUNDS, DeadlineWatch, beside, bounded, twice
from effects.web.doors import asgi_door, django_urls, wsgi_door
from effects.web.exchange import BadRequestError, PageAnswer, PageRequest, cookie
from effects.web.pages import Pages, installed_pages, notices
from effects.web.rendering import PageRenderer
from effects.web.routes import PageRoute, RouteTable
from effects.web.security import (
    FORM_FIELD,
    HEADERS,
    Guard,
    Person,
    RateLimit,
    comes_from_own_page,
    is_form_token,
    is_own_host,
    new_nonce,
)
from effects.web.sessions import SignIn
from effects.web.views import bulk_pages, jobs, numbers, overview
from effects.web.visit import Site, Visit

THREADS = 3
ACTS_PER_MINUTE = 60
NONCE_COOKIE = "effects-form"
_FRAMES_MAX = 12
_FOREVER = "public, max-age=31536000, immutable"
READ_HEADER = "x-effects-read"
# When it was read, and how long ago something was: alone no news.
_READ_AT = re.compile(rb'<p id="read">.*?</p>|(?<= data-ago>)[^<]*', re.DOTALL)

_log = own_logger("effects.web")


def polled_answer(visit: Visit, answer: PageAnswer) -> PageAnswer:
    """With the tag of what the page shows, or without a body (304) where the browser has that already.

    The header `x-effects-read` has the time of reading, for the browser and in words.
    """
    if not visit.is_polled or visit.request.is_unsafe or answer.status != 200 or not answer.body:
        return answer
    tag = f'"{hashlib.sha256(_READ_AT.sub(b"", answer.body)).hexdigest()[:24]}"'
    now = dt.datetime.now(dt.UTC)
    headers = (
        *answer.headers,
        ("etag", tag),
        (READ_HEADER, f"{now.isoformat(timespec='milliseconds')} {moment_text(now)}"),
    )
    if visit.request.headers.get("if-none-match") == tag:
        return PageAnswer(304, headers=headers)
    return replace(answer, headers=headers)


def dashboard(
    *,
    guard: Guard,
    effects: Effects | None = None,
    sign_in_url: str | None = None,
    title: str = "effects",
    hosts: Collection[str] | None = None,
) -> Dashboard:
    """Make the dashboard, to mount in an app: what it returns is an ASGI app.

        app.mount("/effects", dashboard(guard=guard))                                    # FastAPI, Starlette
        DispatcherMiddleware(flask_app, {"/effects": dashboard(guard=guard).wsgi})       # Flask, any WSGI server
        path("effects/", include(dashboard(guard=guard).django_urls))                    # Django

    Args:
        guard: called for each request with a `PageRequest`, in a thread; returns the `Person` whom the host app knows,
            or None: no one whom it knows, and the page is 404. If it raises, the answer is 500, and no one is admitted.
        effects: the Effects to look at; default the process's. Its database is read over connections of the
            dashboard's own: at most three of each kind, each statement at most 2 seconds, and one for counts.
        sign_in_url: where a person whom the guard does not know is sent (303); default none.
        title: shown at the top of each page, such as the name of the environment; at most 100 characters.
        hosts: names by which the dashboard may be called, such as `admin.example.com`; others are answered 400.
            Default: any; the host app sees to it.

    Raises:
        ConfigurationError: no guard: a dashboard without one is open to all. Or another argument is wrong.
    """
    if not callable(guard):
        raise ConfigurationError(
            f"guard is {described(guard)}; give a function that returns the Person who asks, or None: without a guard "
            "the dashboard would be open to all"
        )
    require("title", title, printable(100), ConfigurationError)
    require("sign_in_url", sign_in_url, optional(printable(2_000)), ConfigurationError)
    if sign_in_url is not None and not sign_in_url.isascii():
        raise ConfigurationError("sign_in_url must be ASCII, as a header has it: quote it, such as /anmelden/f%C3%BCr")
    names = None if hosts is None else list(each_of(hosts, str, "hosts", ConfigurationError))
    return Dashboard(app_of(effects, None), guard, sign_in_url=sign_in_url, title=title, hosts=names)


class Dashboard:
    """The pages behind a guard. An ASGI app itself; `wsgi` and `django_urls` are the same for other hosts.

    It keeps no state but short readings; any number of processes may serve it. `close` ends its threads and its
    connections, as does `Effects.dispose`.
    """

    def __init__(
        self,
        app: Effects,
        guard: Guard | None,
        *,
        sign_in_url: str | None = None,
        title: str = "effects",
        hosts: Collection[str] | None = None,
        sign_in: SignIn | None = None,
        https: bool = False,
        more: Sequence[Pages] = (),
        banner: str | None = None,
    ) -> None:
        self._guard = guard if sign_in is None else sign_in.guard
        self._sign_in, self._sign_in_url = sign_in, sign_in_url
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._packages, self._banner = [*installed_pages(), *more], banner
        self.routes = RouteTable(build_routes(sign_in, self._packages))
        self._app, self._title, self._https = app, title, https
        self._acts = RateLimit(ACTS_PER_MINUTE)
        self._lock = threading.Lock()
        self._site: Site | None = None
        self._watch: DeadlineWatch | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="effects-web")
        self._door = asgi_door(self.handle, self._threads)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as an ASGI app."""
        await self._door(scope, receive, send)

    @cached_property
    def wsgi(self) -> Any:
        """The dashboard as a WSGI app (PEP 3333)."""
        return wsgi_door(self)

    @cached_property
    def django_urls(self) -> list[Any]:
        """The dashboard as URLs of Django, for `include`. The guard's `request.host` is Django's request."""
        return django_urls(self.answer, self.admit, self._threads)

    def close(self) -> None:
        """End the threads, and close the connections; the dashboard is not used again."""
        self._threads.shutdown()
        if self._watch is not None:
            self._watch.close()
        if self._sign_in is not None:
            self._sign_in.close()
        if self._site is not None:
            self._site.readings.close()
            self._site.app.store.dispose()
            self._site.counting.store.dispose()

    @property
    def site(self) -> Site:
        """What all visits share, made once; the database is not asked before the first."""
        with self._lock:
            if self._site is None:
                self._site = site = Site(
                    beside(self._app), beside(self._app, COUNT_SECONDS), self._app, self.routes, self._title,
                    PageRenderer({pages.name: pages.package for pages in self._packages}),
                    can_sign_out=self._sign_in is not None, packages=self._packages, notices=notices(self._packages),
                    banner=self._banner,
                )  # fmt: skip
                looking = [self._sign_in.looking] if self._sign_in is not None else []
                self._watch = DeadlineWatch(self._app, [app.store for app in (site.app, site.counting, *looking)])
            return self._site

    # -- a request ---------------------------------------------------------------------------------------------

    def handle(self, request: PageRequest) -> PageAnswer:
        """Answer a request. Never raises: what goes wrong is a page that says so."""
        _ = self.site  # made first: its watch is over the guard's connections, too
        return self.answer(request, self.admit(request))

    def admit(self, request: PageRequest) -> Person | Exception | None:
        """Ask the guard who it is; an error of the guard is its answer."""
        guard = self._guard
        try:
            person = twice(partial(guard, request)) if guard is not None else None
            if person is not None and not isinstance(person, Person):
                raise ConfigurationError(f"the guard returned {described(person)}; it must return a Person or None")
        except Exception as error:
            return error
        return person

    def answer(self, request: PageRequest, person: Person | Exception | None) -> PageAnswer:
        """Answer a request of this person, whom the guard admits."""
        if self._https:  # a proxy ends TLS
            request = replace(request, scheme="https")
        visit = Visit(self.site, request, person if isinstance(person, Person) else None)
        visit.secure = request.scheme == "https"
        with bounded(self.site.app.store, PAGE_BOUNDS):
            answer = self._answer_or_failure(visit, person)
        own = {name for name, _ in answer.headers}
        return replace(answer, headers=(*(pair for pair in HEADERS if pair[0] not in own), *answer.headers))

    def _answer_or_failure(self, visit: Visit, person: Person | Exception | None) -> PageAnswer:
        see = partial(self._answer, visit)
        try:
            if isinstance(person, Exception) and not self._is_public(visit.request.path):
                raise person
            return polled_answer(visit, see() if visit.request.is_unsafe else twice(see))
        except BadRequestError as error:
            return failures.bad_request(visit, str(error))
        except Exception as error:
            return self._failed(visit, error)

    def _answer(self, visit: Visit) -> PageAnswer:
        request = visit.request
        if not is_own_host(request, self._hosts):
            return failures.plain(400, "this name is not one of the dashboard's")
        if not request.path.startswith("/"):
            return PageAnswer(308, headers=(("location", f"{request.mount}/"),))
        match = self.routes.match(request.path)
        if match is not None and match[0].role == "public":
            return self._see(visit, *match)
        if visit.person is None:
            return self._unknown(visit)
        self._give_nonce(visit)
        if match is None:
            return self._with_nonce(visit, failures.not_found(visit, "there is no such page"))
        return self._with_nonce(visit, self._see(visit, *match))

    def _is_public(self, path: str) -> bool:
        """Whether no one needs to be known: a probe of the process is answered while the guard's database is away."""
        match = self.routes.match(path)
        return match is not None and match[0].role == "public"

    def _see(self, visit: Visit, route: PageRoute, values: Mapping[str, str]) -> PageAnswer:
        request, visit.route, visit.values = visit.request, route, dict(values)
        method = "GET" if request.method == "HEAD" else request.method
        if method not in route.methods:
            return failures.plain(405, "this page has no such method", ("allow", ", ".join(route.methods)))
        if request.is_unsafe and not comes_from_own_page(request):
            return failures.plain(403, "the form did not come from a page of this dashboard")
        if route.role == "public":
            return route.view(visit)
        person = visit.someone
        if not person.may(route.role, personal=route.personal):
            return failures.forbidden(visit, route)
        if request.is_unsafe:
            if not is_form_token(visit.form.get(FORM_FIELD, ""), visit.nonce, person):
                return failures.forbidden(visit, route, "the form is too old, or not yours: open the page again")
            if route.acts and not self._acts.admits(person.name):
                return failures.too_many(visit)
        answer = route.view(visit)
        if not request.is_unsafe:
            visit.query.refuse_unread()
        return answer

    def _unknown(self, visit: Visit) -> PageAnswer:
        """No one is signed in: what exists is not said."""
        if self._sign_in is not None and not visit.request.is_unsafe:
            return PageAnswer(303, headers=(("location", f"{visit.request.mount}/sign-in"),))
        if self._sign_in_url is not None and not visit.request.is_unsafe:
            return PageAnswer(303, headers=(("location", self._sign_in_url),))
        if self._sign_in is not None:
            return failures.plain(
                403, "nothing was changed: you are not signed in, or no longer; sign in, and do it again"
            )
        return failures.plain(404, "not found")

    # -- the cookie of form tokens -----------------------------------------------------------------------------

    def _give_nonce(self, visit: Visit) -> None:
        if self._sign_in is not None:
            visit.nonce = self._sign_in.secret_of(visit.request) or ""
        else:
            visit.nonce = visit.request.cookies.get(_nonce_cookie(visit.request), "")
        visit.nonce = visit.nonce or new_nonce()

    def _with_nonce(self, visit: Visit, answer: PageAnswer) -> PageAnswer:
        """With the cookie, where the browser does not have it yet."""
        request, name = visit.request, _nonce_cookie(visit.request)
        if self._sign_in is not None or request.cookies.get(name):
            return answer
        secure = request.scheme == "https"
        header = cookie(name, visit.nonce, path="/" if secure else request.mount or "/", secure=secure)
        return replace(answer, headers=(*answer.headers, header))

    def _failed(self, visit: Visit, error: Exception) -> PageAnswer:
        """What an error is for the person; one that was not foreseen is logged under a reference, without its text."""
        answer = failures.answer_of(visit, error)
        if answer is not None:
            return answer
        reference = secrets.token_hex(4)
        name = visit.route.name if visit.route is not None else "guard"
        _log.error(
            "page %s failed (%s): %s at %s", name, reference, type(error).__name__, error_places(error, _FRAMES_MAX)
        )
        return failures.plain(500, f"this page has failed; the log has it under the reference {reference}")


def _nonce_cookie(request: PageRequest) -> str:
    return f"__Host-{NONCE_COOKIE}" if request.scheme == "https" else NONCE_COOKIE


# -- the routes: nothing is served that is not among them ---------------------------------------------------------


def build_routes(sign_in: SignIn | None, packages: Sequence[Pages]) -> Iterator[PageRoute]:
    """Every route; those of sessions where they are ours."""
    yield from _core_routes()
    for pages in packages:
        yield from pages.routes
    for action in (*SUBJECT_ACTIONS, *(action for pages in packages for action in pages.actions)):
        yield PageRoute(
            action.name, ("GET", "POST"), action.pattern, page_action_view(action), role=action.role, personal=False,
            acts=True,
        )  # fmt: skip
    if sign_in is not None:
        yield PageRoute("sign_in", ("GET",), "/sign-in", sign_in.ask, role="public", personal=False)
        yield PageRoute("enter", ("POST",), "/sign-in/enter", sign_in.enter, role="public", personal=False)
        yield PageRoute("sign_out", ("POST",), "/sign-out", sign_in.leave, role="viewer", personal=False)


def _core_routes() -> Iterator[PageRoute]:
    yield PageRoute("static", ("GET",), "/-/static/{hash}/{file}", _static, role="public", personal=False)
    yield PageRoute("alive", ("GET",), "/-/alive", _alive, role="public", personal=False)
    yield PageRoute("overview", ("GET",), "/", overview.overview, role="viewer", personal=False)
    yield PageRoute("needs", ("GET",), "/needs", jobs.needs, role="viewer", personal=False)
    yield PageRoute("needs_bulk", ("GET", "POST"), "/needs/bulk", bulk_pages.of_needs, role="operator", personal=False,
                    acts=True)  # fmt: skip
    yield PageRoute("needs_ticked", ("GET", "POST"), "/needs/ticked", bulk_pages.ticked_needs, role="operator",
                    personal=False, acts=True)  # fmt: skip
    yield PageRoute("jobs_ticked", ("GET", "POST"), "/jobs/ticked", bulk_pages.ticked_jobs, role="operator",
                    personal=False, acts=True)  # fmt: skip
    yield PageRoute("desk", ("GET",), "/decisions", jobs.desk, role="viewer", personal=False)
    yield PageRoute("numbers", ("GET",), "/numbers", numbers.numbers, role="viewer", personal=False)
    yield PageRoute("numbers_file", ("GET",), "/numbers.csv", numbers.numbers_file, role="viewer", personal=False)
    yield PageRoute("why", ("GET", "POST"), "/why", jobs.why, role="viewer", personal=False, acts=True)
    yield PageRoute("jobs", ("GET",), "/jobs", jobs.jobs, role="viewer", personal=False)
    yield PageRoute("jobs_bulk", ("GET", "POST"), "/jobs/bulk", bulk_pages.of_jobs, role="operator", personal=False,
                    acts=True)  # fmt: skip
    yield PageRoute("job", ("GET",), "/jobs/{id}", jobs.job, role="viewer", personal=False)
    yield PageRoute("job_reveal", ("POST",), "/jobs/{id}/reveal", jobs.reveal, role="viewer", personal=True, acts=True)
    for job_action in JOB_ACTIONS:
        yield PageRoute(
            f"job_{job_action.name}", ("GET", "POST"), f"/jobs/{{id}}/{job_action.name}",
            job_action_view(job_action), role=job_action.role, personal=False, acts=True,
        )  # fmt: skip
    yield PageRoute("queues", ("GET",), "/queues", overview.queues, role="viewer", personal=False)
    yield PageRoute("workers", ("GET",), "/workers", overview.workers, role="viewer", personal=False)
    yield PageRoute("schedules", ("GET",), "/schedules", overview.schedules, role="viewer", personal=False)
    yield PageRoute("limits", ("GET",), "/limits", overview.limits, role="viewer", personal=False)
    yield PageRoute("bulks", ("GET",), "/bulk", bulk_pages.bulks, role="viewer", personal=False)
    yield PageRoute("bulk", ("GET",), "/bulk/{id}", bulk_pages.bulk, role="viewer", personal=False)
    yield PageRoute("health", ("GET",), "/health", overview.health, role="viewer", personal=False)
    yield PageRoute("audit", ("GET",), "/audit", overview.audit, role="viewer", personal=False)
    yield PageRoute("settings", ("GET", "POST"), "/settings", overview.settings, role="viewer", personal=False)


def _static(visit: Visit) -> PageAnswer:
    file = visit.site.renderer.static.find(visit.values["hash"], visit.values["file"])
    if file is None:
        return PageAnswer(404)
    body, kind = file
    return PageAnswer(200, body, kind, (("cache-control", _FOREVER),))


def _alive(visit: Visit) -> PageAnswer:
    """That the process answers; nothing of the database."""
    return PageAnswer(200, b"alive\n", "text/plain; charset=utf-8", (("cache-control", "no-store"),))
