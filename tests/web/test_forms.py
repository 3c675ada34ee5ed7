"""Goal: a form acts once, in bounds, with its headers. Method: one action. Every action: `test_form_matrix.py`."""

from __future__ import annotations

from typing import Any

import pytest

from effects.web import Person, dashboard
from tests.web.browsing import Visitor
from tests.web.conftest import Shop, Visiting
from tests.web.unsafe_requests import OWN


@pytest.fixture
def path(shop: Shop) -> str:
    return f"/jobs/{shop.queued}/cancel"


@pytest.mark.parametrize("headers", OWN)
def test_a_form_of_the_own_page_acts_once(headers: dict[str, str], shop: Shop, visiting: Visiting, path: str) -> None:
    visitor = visiting("operator")
    fields = visitor.form(path)
    first = visitor.send("POST", path, data=fields, headers=visitor.with_own_name(headers))
    assert (first.status_code, first.headers["location"]) == (303, f"/jobs/{shop.queued}?did=cancelled")
    again = visitor.send("POST", path, data=fields, headers=visitor.with_own_name(headers))
    assert again.status_code == 409
    assert "is cancelled" in again.text


def test_what_is_too_long_or_broken_is_refused(visiting: Visiting) -> None:
    visitor = visiting("operator")
    answers: dict[str, Any] = {
        "long query": visitor.get("/jobs?queue=" + "x" * 5_000),
        "long value": visitor.get("/jobs?queue=" + "x" * 1_001),
        "long filter": visitor.get("/jobs?queue=" + "x" * 300),
        "many fields": visitor.get("/jobs?" + "&".join(f"a{n}=1" for n in range(70))),
        "NUL": visitor.get("/jobs?queue=a%00b"),
        "control": visitor.get("/jobs?queue=a%1bb"),
        "no UTF-8": visitor.get("/jobs?queue=%ff"),
        "no id": visitor.get("/jobs?before=1e9"),
        "a negative id": visitor.get("/needs?before=-1"),
    }
    assert {name: answer.status_code for name, answer in answers.items() if answer.status_code != 400} == {}
    assert visitor.get("/jobs/0").status_code == 404
    assert visitor.get("/jobs/99999999999999999999").status_code == 404
    assert visitor.post("/settings", {"theme": "x" * 20_000}).status_code == 413


def test_many_acts_in_a_minute_are_refused(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator")
    fields = {"form_token": visitor.token(), "name": "nothing"}
    answers = [visitor.post("/limits/resume", fields).status_code for _ in range(61)]
    assert (set(answers[:60]), answers[60]) == ({404}, 429)


@pytest.mark.parametrize("host", ["evil.test", "shop.test.evil.test", ""])
def test_a_foreign_name_is_refused(host: str, shop: Shop) -> None:
    board = dashboard(guard=lambda request: Person("ann", role="admin"), effects=shop.app, hosts=["shop.test"])
    try:
        assert Visitor(board).get("/", headers={"host": host}).status_code == 400
        assert Visitor(board).get("/", headers={"host": "shop.test:8000"}).status_code == 200
    finally:
        board.close()


@pytest.mark.parametrize("path", ["/", "/needs", "/jobs", "/-/alive", "/no-such-page", "/jobs/1/cancel"])
def test_every_answer_has_the_headers(path: str, visiting: Visiting) -> None:
    for visitor in (visiting("admin"), visiting(None)):
        headers = visitor.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_the_cookie_of_forms_is_closed(shop: Shop) -> None:
    board = dashboard(guard=lambda request: Person("ann", role="admin"), effects=shop.app)
    try:
        plain = Visitor(board).get("/").headers["set-cookie"]
        secure = Visitor(board, base="https://shop.test").get("/").headers["set-cookie"]
    finally:
        board.close()
    assert plain.startswith("effects-form=")
    assert secure.startswith("__Host-effects-form=")
    assert plain.endswith("; Path=/; HttpOnly; SameSite=Lax")
    assert secure.endswith("; Path=/; HttpOnly; SameSite=Lax; Secure")
