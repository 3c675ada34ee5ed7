"""Goal: no one acts but by their own form. Method: a request for every route that takes POST, from the table itself ×
what another site, a stranger, a colleague and an old page may send, all rows compared; then each as its page sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from effects.operate.tables.sign_ins import mint_link
from effects.web import Dashboard, PageRequest, Person, dashboard
from effects.web.application import build_routes
from effects.web.pages import installed_pages
from effects.web.security import form_token
from effects.web.sessions import SignIn
from tests.support.sampling import sample
from tests.web.browsing import Visitor
from tests.web.full_shop import FullShop
from tests.web.rows import digest
from tests.web.unsafe_requests import LOOKS, SITES, UnsafeRequest, refused, unsafe_requests

SAMPLED = 500
ROUTES = {route.name: route for route in build_routes(None, installed_pages())}


@pytest.fixture
def person(full: FullShop) -> Iterator[Callable[[Person | None], Visitor]]:
    """Makes a visitor; `Person` may be None: nobody is known."""
    boards: list[Dashboard] = []

    def make(person: Person | None) -> Visitor:
        def guard(request: PageRequest) -> Person | None:
            return person

        boards.append(dashboard(guard=guard, effects=full.app, hosts=["shop.test"]))
        return Visitor(boards[-1])

    yield make
    for board in boards:
        board.close()


ANN = Person("ann", role="admin", personal=True)


def wrong_tokens(ann: Visitor, ben: Visitor) -> list[str]:
    """A colleague's, and what the own cookie would make for another person; and what is none."""
    ann.token()
    nonce = ann.cookies["effects-form"]
    people = (Person("ben", role="admin"), Person("ann", role="viewer"))
    return [
        "",
        "x",
        "0" * 64,
        "\u00e9",
        ben.token(),
        form_token("", ANN),
        *(form_token(nonce, each) for each in people),
    ]


def statuses(cases: list[tuple[UnsafeRequest, int]], visitor: Visitor) -> list[tuple[UnsafeRequest, int]]:
    """Those that were not answered as they should be."""
    answered = [(request, request.send(visitor), status) for request, status in cases]
    return [(request, answer) for request, answer, status in answered if answer != status]


def test_every_route_that_takes_post_has_a_request(full: FullShop, person: Callable[[Person | None], Visitor]) -> None:
    taking = {name for name, route in ROUTES.items() if "POST" in route.methods}
    assert {request.route for request in unsafe_requests(full, person(ANN))} == taking


@pytest.mark.slow
def test_only_the_own_form_acts(full: FullShop, person: Callable[[Person | None], Visitor]) -> None:
    """Refused in every way, nothing has changed; then each of the same requests acts."""
    ann, ben = person(ANN), person(Person("ben", role="admin", personal=True))
    requests = unsafe_requests(full, ann)
    before = digest(full)
    tokens = wrong_tokens(ann, ben)
    assert statuses(sample([case for each in requests for case in refused(each, tokens)], SAMPLED), ann) == []
    assert digest(full) == before
    for request in requests:
        assert request.send(ann) in (200, 303), request
        after = digest(full)
        assert (after == before) is (request.route in LOOKS), request
        before = after


@pytest.mark.slow
def test_another_host_browser_or_person_does_nothing(
    full: FullShop, person: Callable[[Person | None], Visitor]
) -> None:
    ann, viewer, nobody = person(ANN), person(Person("ann", role="viewer")), person(None)
    requests = unsafe_requests(full, ann)
    token, before = viewer.token(), digest(full)
    elsewhere, other_browser = Visitor(ann.app, base="http://evil.test"), Visitor(ann.app)
    elsewhere.cookies = dict(ann.cookies)
    assert statuses([(request, 400) for request in requests], elsewhere) == []
    assert statuses([(request, 403) for request in requests], other_browser) == []
    assert statuses([(request, 404) for request in requests], nobody) == []
    own = [request.with_token(token) for request in requests]
    allowed = {name for name, route in ROUTES.items() if route.role == "viewer" and not route.personal}
    assert statuses([(request, 403) for request in own if request.route not in allowed], viewer) == []
    assert digest(full) == before


def test_a_look_by_get_changes_nothing(full: FullShop, person: Callable[[Person | None], Visitor]) -> None:
    """What a form holds, in a link: it asks, and does nothing."""
    ann = person(ANN)
    requests, before = unsafe_requests(full, ann), digest(full)
    for request in requests:
        for method in ("GET", "HEAD"):
            status = ann.send(method, request.path, params=dict(request.fields)).status_code
            assert status in ((200, 400, 422) if "GET" in ROUTES[request.route].methods else (405,)), request
    assert digest(full) == before


def test_a_form_is_of_one_session(full: FullShop) -> None:
    """By itself: neither another session of the same person nor one that has ended acts, nor does the link again."""
    board = Dashboard(full.app, None, sign_in=SignIn(full.app, port=80, secure=False), hosts=["shop.test"])
    with closing(board):
        ann, second, ended = (signed_in(board, full) for _ in range(3))
        requests = unsafe_requests(full, ann)
        taking = {route.name for route in board.routes.routes if "POST" in route.methods}
        requests += [UnsafeRequest("sign_out", "/sign-out", {"form_token": ann.token()})]
        assert {request.route for request in requests} | {"enter"} == taking
        session = dict(ended.cookies)
        assert ended.post("/sign-out", {"form_token": ended.token()}).status_code == 303
        ended.cookies = session
        before, foreign = digest(full), second.token()
        assert statuses([(request.with_token(foreign), 403) for request in requests], ann) == []
        assert statuses([(request, 403) for request in requests], second) == []
        assert statuses([(request, 403) for request in requests], ended) == []
        refusals = [case for request in requests[-1:] for case in refused(request, [foreign])]
        assert statuses(refusals, ann) == []
        assert digest(full) == before


def signed_in(board: Dashboard, full: FullShop) -> Visitor:
    secret = mint_link(
        full.app.store, person="ann", role="admin", personal=True, session_seconds=3_600.0, actor="cli:root"
    )
    visitor = Visitor(board)
    elsewhere = Visitor(board, base="http://evil.test")
    enter = UnsafeRequest("enter", "/sign-in/enter", {"token": secret})
    sites = [(replace(enter, site=site), 403) for site in SITES]
    assert statuses(sites, visitor) == []
    assert statuses([(enter, 400)], elsewhere) == []
    assert statuses([(enter, 303), (enter, 403)], visitor) == []
    return visitor
