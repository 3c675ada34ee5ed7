"""Goal: no one sees or does what their role does not allow. Method: every route, with each role and with none."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from effects.web.application import build_routes
from effects.web.pages import installed_pages
from effects.web.routes import PageRoute
from effects.web.security import ROLES, Role
from effects.web.sessions import SignIn
from tests.web.conftest import Shop, Visiting
from tests.web.rows import digest

ROUTES = list(build_routes(None, installed_pages()))
PUBLIC = {"static", "alive"}
PERSONAL = {
    "job_reveal", "webhooks_reveal", "email_address", "email_reveal", "email_revealed", "email_frame",
    "email_suppressed", "email_suppress", "email_lift", "reports_rows", "reports_file",
}  # fmt: skip
SIGN_IN = {"sign_in", "enter"}


def test_every_route_declares_its_role_and_only_these_are_public(shop: Shop) -> None:
    routes = list(build_routes(SignIn(shop.app, port=1, secure=False), installed_pages()))
    assert {route.name for route in routes if route.role == "public"} == PUBLIC | SIGN_IN
    assert {route.role for route in routes} <= {*ROLES, "public"}
    assert {route.name for route in routes if route.personal} == PERSONAL


def test_every_route_that_posts_beyond_the_own_settings_counts_as_an_act() -> None:
    posting = {route.name for route in ROUTES if "POST" in route.methods and not route.acts}
    assert posting == {"settings"}


def path_of(route: PageRoute, shop: Shop) -> str:
    values: dict[str, object] = {
        "id": shop.dead,
        "hash": "0" * 12,
        "file": "app.css",
        "event": "msg_1",
        "endpoint": "ep_1",
        "run": "run_1",
    }
    return route.url({name: value for name, value in values.items() if f"{{{name}}}" in route.pattern})


def test_nobody_sees_or_posts_anything(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting(None)
    answers = {
        (route.name, method): visitor.send(
            method, path_of(route, shop), data={"name": "x"} if method == "POST" else None
        )
        for route in ROUTES
        for method in route.methods
        if route.role != "public"
    }
    assert {pair: answer.status_code for pair, answer in answers.items() if answer.status_code != 404} == {}
    assert {answer.text for answer in answers.values()} == {"not found\n"}
    assert visitor.get("/no-such-page").text == "not found\n"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_gets_what_it_may_and_nothing_else(role: Role, shop: Shop, visiting: Visiting) -> None:
    """A page that asks may also say that an action is not possible now: that is no refusal of the role."""
    visitor = visiting(role)
    token = visitor.token()
    wrong = []
    for route in ROUTES:
        if route.role == "public":
            continue
        allowed = ROLES.index(role) >= ROLES.index(route.role) and not route.personal
        for method in route.methods:
            data = {"form_token": token} if method == "POST" else None
            answer = visitor.send(method, path_of(route, shop), data=data, headers={"sec-fetch-site": "same-origin"})
            if (answer.status_code != 403) is not allowed:
                wrong.append((route.name, method, answer.status_code))
            assert answer.status_code != 500, (route.name, answer.text)
    assert wrong == []


def test_a_viewer_changes_nothing_by_any_post(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer")
    token = visitor.token()
    before = digest(shop)
    for route in ROUTES:
        if "POST" in route.methods and route.acts:
            fields = {"form_token": token, "name": "default", "reason": "because"}
            expected = 200 if route.name == "why" else 403  # a look-up, which counts towards the rate
            assert visitor.post(path_of(route, shop), fields).status_code == expected, route.name
    assert digest(shop) == before


def test_a_person_needs_the_capability_for_what_is_personal(shop: Shop, visiting: Visiting) -> None:
    path = f"/jobs/{shop.dead}/reveal"
    admin = visiting("admin")
    assert admin.post(path, {"form_token": admin.token()}).status_code == 403
    viewer = visiting("viewer", personal=True)
    assert viewer.post(path, {"form_token": viewer.token()}).status_code == 200
    with shop.app.store.read() as connection:
        rows = connection.execute(text(f"SELECT actor, action, subject FROM {shop.app.store.sql.audit_log}")).all()
    assert ("web:ann", "reveal", str(shop.dead)) in [tuple(row) for row in rows]


def test_a_method_that_a_page_does_not_have_is_refused(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("admin")
    assert visitor.send("POST", "/jobs", headers={"sec-fetch-site": "same-origin"}).status_code == 405
    assert visitor.send("DELETE", "/jobs").status_code == 405
    head = visitor.send("HEAD", "/jobs")
    assert (head.status_code, head.content) == (200, b"")
