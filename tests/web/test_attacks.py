"""What a stranger tried: numbers that are another message's key, addresses in other forms, odd headers and cookies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from effects import Effects
from effects.operate.tables import sign_ins
from effects.web import Dashboard, Person, dashboard
from effects.web.application import ACTS_PER_MINUTE
from effects.web.doors import wsgi_door
from effects.web.rendering import shown
from effects.web.security import BARE_HEADERS
from effects.web.sessions import LINKS_PER_MINUTE, SignIn
from effects.worker import Worker
from effects_email import send_templated_email
from tests.web.browsing import Visitor
from tests.web.full_shop import full_app
from tests.web.rows import audit_actions


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> Iterator[Effects]:
    app = full_app(database_url, tmp_path)
    app.create_tables()
    yield app
    app.dispose()


@pytest.fixture
def visitor(app: Effects) -> Iterator[Visitor]:
    board = dashboard(guard=lambda request: Person("ann", role="admin", personal=True), effects=app)
    yield Visitor(board)
    board.close()


def test_a_number_means_the_message_of_that_job_and_not_one_of_that_key(app: Effects, visitor: Visitor) -> None:
    carl = send_templated_email("welcome", to="carl@example.com", context={"name": "Carl"}, effects=app).job_id
    send_templated_email("welcome", to="dora@example.com", context={"name": "Dora"}, key=str(carl), effects=app)
    Worker(app).drain(30)
    page = visitor.post(f"/email/messages/{carl}/reveal", {"form_token": visitor.token()}).text
    assert ("Carl" in page, "Dora" in page) == (True, False)
    form = {"form_token": visitor.token(), "reason": "again", "render_again": "yes"}
    answer = visitor.post("/email/messages/requeue", {**form, "name": str(carl)})
    assert (answer.status_code, f"The effect of job {carl} is done" in answer.text) == (409, True)


@pytest.mark.parametrize("name", ["x", "1.5", "9" * 30, "٣", "-1"])
def test_what_is_no_number_is_no_message(name: str, visitor: Visitor) -> None:
    assert visitor.get(f"/email/messages/{name}").status_code == 404


HIDDEN = {
    '"john doe"@example.com': "•••@example.com",
    "to ann%40shop.example": "to •••@shop.example",
    "ann@localhost": "•••@localhost",
    "<ann@[10.0.0.1]>": "<•••@[10.0.0.1]>",
    "ann＠shop.example": "•••@shop.example",
    "o'brien@shop.example": "•••@shop.example",
    "b+7-ann=shop.example@bounces.example": "•••@bounces.example",
    '{"to":"ann@a.example","cc":"a/b@c.example"}': '{"to":"•••@a.example","cc":"•••@c.example"}',
    "one@a.example, two@b.example": "•••@a.example, •••@b.example",
    "at 5 @ noon": "at 5 @ noon",
    "@handle": "@handle",
}  # fmt: skip


@pytest.mark.parametrize("text", HIDDEN)
def test_addresses_are_hidden_however_they_are_written(text: str) -> None:
    assert shown(text, revealed=False) == HIDDEN[text]
    assert shown(text, revealed=True) == text


def test_hiding_takes_time_in_proportion_to_the_text() -> None:
    """A quadratic search would not end within a test's time."""
    assert shown("@" + "a" * 2_000_000, revealed=False).endswith("aaa")
    assert shown("a@" * 500_000, revealed=False).startswith("•••@")


def test_wrong_guesses_keep_no_one_with_a_link_out(app: Effects) -> None:
    sign_in = SignIn(app, port=80, secure=False)
    board = Dashboard(app, None, sign_in=sign_in)
    visitor = Visitor(board)
    for _ in range(LINKS_PER_MINUTE):
        visitor.post("/sign-in/enter", {"token": "guess"})
    assert visitor.post("/sign-in/enter", {"token": "guess"}).status_code == 429
    secret = sign_ins.mint_link(
        app.store, person="ann", role="operator", personal=False, session_seconds=3600.0, actor="cli:root"
    )
    assert visitor.post("/sign-in/enter", {"token": secret}).status_code == 303
    board.close()


@pytest.mark.parametrize("theme", ["x; Domain=evil.example", "x\r\nset-cookie: a=b", "日本"])
def test_a_theme_of_someone_elses_ends_the_cookie(theme: str, visitor: Visitor) -> None:
    answer = visitor.post("/settings", {"form_token": visitor.token(), "theme": theme})
    cookies = answer.headers.get("set-cookie", "")
    assert answer.status_code == 303
    assert [word for word in ("evil", "a=b", "日") if word in cookies] == []


def test_an_origin_that_is_no_url_is_a_foreign_one(visitor: Visitor) -> None:
    form = {"form_token": visitor.token(), "theme": "dark"}
    answer = visitor.send("POST", "/settings", data=form, headers={"origin": "http://[::1", "sec-fetch-site": ""})
    assert answer.status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_an_answer_without_a_page_has_the_headers_of_one(method: str, visitor: Visitor) -> None:
    answer = visitor.send(method, "/")
    assert answer.status_code == 405
    assert {name: answer.headers.get(name) for name, _ in BARE_HEADERS} == dict(BARE_HEADERS)


@pytest.mark.parametrize("environ", [{"PATH_INFO": "/\xff"}, {"PATH_INFO": "/", "QUERY_STRING": "a=\xe9"}])
def test_a_wsgi_host_passes_on_no_path_that_is_no_text(environ: dict[str, str]) -> None:
    started: list[tuple[str, list[tuple[str, str]]]] = []
    door = wsgi_door(_never)  # type: ignore[arg-type]
    assert b"".join(door(environ, lambda status, headers: started.append((status, headers)))) == b""
    assert started[0][0] == "400 Bad Request"


def _never(*_: object) -> Callable[..., object]:
    raise AssertionError("it was passed on")


def test_ids_that_are_typed_leave_nothing_behind(visitor: Visitor) -> None:
    visitor.get("/")
    readings = visitor.app.site.readings
    before = len(readings._locks)
    for number in range(30):
        assert visitor.get(f"/bulk/{number + 1000}").status_code == 404
    assert len(readings._locks) <= before + 2


def test_no_word_of_a_persons_is_noted_before_it_is_checked(app: Effects, visitor: Visitor) -> None:
    form = {"form_token": visitor.token(), "cause": "victim@example.com was here"}
    assert visitor.post("/email/suppressions/reveal", form).status_code == 400
    assert "reveal" not in {action for _, action in audit_actions(app)}


def test_a_mount_is_written_as_a_url_has_it(app: Effects, visitor: Visitor) -> None:
    below = Visitor(visitor.app, mount="/a b<c")
    page = below.get("/a%20b%3Cc/jobs")
    assert page.status_code == 200
    assert 'href="/a%20b%3Cc/needs"' in page.text
    assert below.get("/a%20b%3Cc").headers["location"] == "/a%20b%3Cc/"


def test_looking_effects_up_has_a_rate(app: Effects, visitor: Visitor) -> None:
    """Else a viewer could try keys and addresses one by one."""
    form = {"form_token": visitor.token(), "q": "order:1"}
    answers = {visitor.post("/why", form).status_code for _ in range(ACTS_PER_MINUTE + 1)}
    assert answers == {200, 429}
    assert visitor.get("/jobs").status_code == 200


def test_many_threads_make_one_site(app: Effects) -> None:
    board = dashboard(guard=lambda request: None, effects=app)
    with ThreadPoolExecutor(8) as threads:
        sites = list(threads.map(lambda _: board.site, range(64)))
    assert len({id(site) for site in sites}) == 1
    board.close()
