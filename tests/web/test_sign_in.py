"""Goal: a link admits one person once. Method: twice, at once, late, elsewhere, by a scanner; sessions that end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import text

from effects import ConfigurationError, Effects
from effects.operate.tables import sign_ins
from effects.web.application import Dashboard
from effects.web.server import DashboardServer
from effects.web.sessions import SignIn
from tests.web.browsing import Visitor
from tests.web.rows import audit_actions


@pytest.fixture
def sign_in(app: Effects) -> SignIn:
    return SignIn(app, port=80, secure=False)


@pytest.fixture
def board(app: Effects, sign_in: SignIn) -> Iterator[Dashboard]:
    board = Dashboard(app, None, sign_in=sign_in)
    yield board
    board.close()


@pytest.fixture
def visitor(board: Dashboard) -> Visitor:
    return Visitor(board)


def link(app: Effects, **options: object) -> str:
    values = {"person": "ann", "role": "operator", "personal": False, "session_seconds": 3600.0, "actor": "cli:root"}
    return sign_ins.mint_link(app.store, **{**values, **options})  # type: ignore[arg-type]


def enter(visitor: Visitor, secret: str) -> int:
    return visitor.post("/sign-in/enter", {"token": secret}).status_code


def test_without_a_session_each_page_leads_to_the_sign_in(visitor: Visitor) -> None:
    answer = visitor.get("/jobs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert "effects web link" in visitor.get("/sign-in").text
    answer = visitor.post("/sign-out", {})
    assert (answer.status_code, answer.text.partition(":")[0]) == (403, "nothing was changed")


def test_a_link_signs_in_once(app: Effects, visitor: Visitor, board: Dashboard) -> None:
    secret = link(app)
    for _ in range(2):  # a scanner that opens links uses none up
        assert "Continue as ann" in visitor.get(f"/sign-in?token={secret}").text
    assert enter(visitor, secret) == 303
    page = visitor.get("/")
    assert page.status_code == 200
    assert '<span class="role">operator</span>' in page.text
    stranger = Visitor(board)
    assert "was used already" in stranger.get(f"/sign-in?token={secret}").text
    assert enter(stranger, secret) == 403
    assert stranger.get("/").status_code == 303
    assert audit_actions(app) == [("cli:root", "mint"), ("web:ann", "sign_in")]


@pytest.mark.slow
def test_whom_the_database_cannot_note_as_seen_looks_all_the_same(
    app: Effects, sign_in: SignIn, visitor: Visitor
) -> None:
    assert enter(visitor, link(app)) == 303
    sign_in.looking.store.shift_clock(120.0)
    with app.store.begin() as connection:  # holds the row, as what takes no writes would
        connection.execute(text(f"UPDATE {app.store.sql.web_sessions} SET seen_at = seen_at"))
        assert visitor.get("/settings").status_code == 200


def test_of_two_who_use_a_link_at_once_one_is_signed_in(app: Effects, board: Dashboard) -> None:
    secret, codes = link(app), list[int]()
    people = [threading.Thread(target=lambda: codes.append(enter(Visitor(board), secret))) for _ in range(4)]
    for person in people:
        person.start()
    for person in people:
        person.join(30)
    assert sorted(codes) == [303, 403, 403, 403]


def test_a_link_that_is_late_is_refused(app: Effects, visitor: Visitor) -> None:
    secret = link(app)
    app.store.shift_clock(sign_ins.LINK_SECONDS + 1)
    assert enter(visitor, secret) == 403


@pytest.mark.parametrize("secret", ["", "x", "0" * 64, "\u00e9"])
def test_a_secret_that_is_none_is_refused(secret: str, app: Effects, visitor: Visitor) -> None:
    link(app)
    assert enter(visitor, secret) == 403


def test_a_link_is_no_session_and_a_session_no_link(app: Effects, visitor: Visitor) -> None:
    secret = link(app)
    visitor.cookies["effects-session-80"] = secret
    assert visitor.get("/").status_code == 303
    assert enter(visitor, secret) == 303
    session = visitor.cookies["effects-session-80"]
    assert session != secret
    assert enter(visitor, session) == 403


def test_a_form_of_another_site_signs_no_one_in(app: Effects, visitor: Visitor) -> None:
    secret = link(app)
    answer = visitor.send("POST", "/sign-in/enter", data={"token": secret}, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    assert enter(visitor, secret) == 303


def test_many_tries_in_a_minute_are_refused(visitor: Visitor) -> None:
    assert [enter(visitor, "guess") for _ in range(11)] == [403] * 10 + [429]


@pytest.mark.parametrize("seconds", [sign_ins.IDLE_SECONDS + 1, 3601.0])
def test_a_session_ends_by_time(seconds: float, app: Effects, sign_in: SignIn, visitor: Visitor) -> None:
    session_seconds = 3600.0 if seconds == 3601.0 else 86_400.0
    assert enter(visitor, link(app, session_seconds=session_seconds)) == 303
    assert visitor.get("/").status_code == 200
    sign_in.looking.store.shift_clock(seconds)
    assert visitor.get("/").status_code == 303


def test_a_session_that_is_used_goes_on(app: Effects, sign_in: SignIn, visitor: Visitor) -> None:
    assert enter(visitor, link(app, session_seconds=86_400.0)) == 303
    for _ in range(3):
        sign_in.looking.store.shift_clock(sign_ins.IDLE_SECONDS - 60)
        assert visitor.get("/").status_code == 200


def test_signing_out_ends_the_session(app: Effects, visitor: Visitor) -> None:
    enter(visitor, link(app))
    session = dict(visitor.cookies)
    assert visitor.post("/sign-out", {"form_token": visitor.token()}).status_code == 303
    visitor.cookies = session
    assert visitor.get("/").status_code == 303
    assert audit_actions(app)[-1] == ("web:ann", "sign_out")


def test_an_operator_ends_a_session_by_the_id_of_the_list(app: Effects, visitor: Visitor) -> None:
    enter(visitor, link(app))
    [session] = sign_ins.list_sessions(app.store)
    assert sign_ins.end_session(app.store, session.id[:4], actor="cli:root") is None
    assert sign_ins.end_session(app.store, session.id, actor="cli:root", reason="lost laptop") == "ann"
    assert visitor.get("/").status_code == 303
    assert sign_ins.list_sessions(app.store) == []


def test_no_secret_is_stored(app: Effects, visitor: Visitor) -> None:
    secret = link(app)
    enter(visitor, secret)
    with app.store.read() as connection:
        stored = str(connection.exec_driver_sql(f"SELECT * FROM {app.store.sql.web_sessions}").all())
    assert secret not in stored
    assert visitor.cookies["effects-session-80"] not in stored


def test_over_https_the_cookie_is_bound_to_the_host(app: Effects) -> None:
    board = Dashboard(app, None, sign_in=SignIn(app, port=80, secure=True), https=True)
    with closing(board):
        answer = Visitor(board).post("/sign-in/enter", {"token": link(app)})
    assert answer.headers["set-cookie"].startswith("__Host-effects-session=")
    assert answer.headers["set-cookie"].endswith("; Path=/; HttpOnly; SameSite=Lax; Secure")


@pytest.mark.parametrize(
    ("host", "public_url", "reason"),
    [
        ("0.0.0.0", None, "not loopback"),
        ("127.0.0.1", "http://ops.example.com", "https://"),
        ("127.0.0.1", "https://ops.example.com/path", "https://"),
        ("127.0.0.1", "https://ann@ops.example.com", "https://"),
        ("127.0.0.1", "https://ops.example.com/#top", "https://"),
        ("127.0.0.1", "https://[::1", "https://"),
    ],
)
def test_it_listens_on_loopback_unless_people_come_by_https(
    host: str, public_url: str | None, reason: str, app: Effects
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        DashboardServer(app, host=host, port=0, public_url=public_url, title="effects")
