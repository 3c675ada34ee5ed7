"""One-click unsubscribing: tokens that cannot be forged, and an endpoint that link scanners do not trigger."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from effects import ConfigurationError, Effects
from effects.app.effects import Effects as App
from effects.keys.encryption import KeyRing, generate_key
from effects_email import unsubscribe as module
from effects_email.errors import TokenInvalid
from effects_email.suppression import find_suppressions, suppressed, suppression_log
from effects_email.unsubscribe import (
    check_unsubscribe,
    read_token,
    unsubscribe,
    unsubscribe_headers,
    unsubscribe_link,
    write_token,
)
from tests.email.world.conftest import DIGEST, KEYS, NEWEST_KEYS, MailFactory
from tests.support.manual_workers import rows, run_sql
from tests.support.web_clients import WebClient, asgi_client, gone, lifespan, wsgi_client

URL = "https://shop.example/unsubscribe"
ANN = "Ann@Example.com"
ONE_CLICK = {"content": b"List-Unsubscribe=One-Click", "headers": {"content-type": "application/x-www-form-urlencoded"}}


@pytest.fixture
def shop(mail_factory: MailFactory) -> Effects:
    return mail_factory(unsubscribe_url=URL)


def blocked(app: Effects, category: str | None = "news", address: str = ANN) -> bool:
    with app.store.read() as connection:
        return suppressed(app, connection, [(address, category)])[0] is not None


# -- the headers -----------------------------------------------------------------------------------------------------


def test_a_message_of_a_category_carries_both_headers(shop: Effects) -> None:
    [(first, ways), second] = unsubscribe_headers(shop, ANN, "news")
    assert (first, second) == ("List-Unsubscribe", ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"))
    assert ways.startswith(f"<{URL}?token=")
    assert ways.endswith(">")
    assert len(f"{first}: {ways}") < 998
    assert "xample.com" not in ways
    token = read_token(shop, parse_qs(urlsplit(ways.strip("<>")).query)["token"][0])
    assert (token.address, token.category) == (ANN, "news")
    assert "xample" not in repr(token)


@pytest.mark.parametrize("category", [None, "transactional"])
def test_a_transactional_message_carries_none_and_needs_no_setting(mail: Effects, category: str | None) -> None:
    assert unsubscribe_headers(mail, ANN, category) == ()


def test_a_mail_address_may_accompany_the_link(mail_factory: MailFactory) -> None:
    app = mail_factory(unsubscribe_url=f"{URL}?shop=1", unsubscribe_mailto="bye@shop.example")
    link, mailto = unsubscribe_headers(app, ANN, "news")[0][1].split(", ")
    assert link.startswith(f"<{URL}?shop=1&token=")
    token = parse_qs(urlsplit(mailto.strip("<>")).query)["subject"][0].removeprefix("unsubscribe ")
    assert unsubscribe(token, source="mail", effects=app) == "news"
    assert blocked(app)


@pytest.mark.parametrize(
    ("options", "category", "says"),
    [
        ({}, "news", "set EFFECTS_UNSUBSCRIBE_URL"),
        ({"unsubscribe_url": URL, "keys": f"k={generate_key()}"}, "news", "a key named digest"),
        ({"unsubscribe_url": URL}, "all", "named all"),
    ],
)
def test_missing_settings_are_reported_at_the_call(
    mail_factory: MailFactory, options: dict[str, Any], category: str, says: str
) -> None:
    app = mail_factory(**options)
    for ask in (lambda: check_unsubscribe(app, category), lambda: unsubscribe_headers(app, ANN, category)):
        with pytest.raises(ConfigurationError, match=says):
            ask()


def test_a_transactional_message_has_no_link(shop: Effects) -> None:
    assert unsubscribe_link(ANN, "news", effects=shop).startswith(URL)
    with pytest.raises(ConfigurationError, match="no unsubscribe link"):
        unsubscribe_link(ANN, "transactional", effects=shop)


@pytest.mark.parametrize(
    "url",
    ["shop.example", "http://shop.example/", "https://shop.example/#x", "https://a b/", "https://a>/", "https://"],
)
def test_a_url_unfit_for_the_header_is_refused(mail_factory: MailFactory, url: str) -> None:
    with pytest.raises(ConfigurationError, match="EFFECTS_UNSUBSCRIBE_URL"):
        mail_factory(unsubscribe_url=url)
    with pytest.raises(ConfigurationError, match="EFFECTS_UNSUBSCRIBE_MAILTO"):
        mail_factory(unsubscribe_mailto="a@b.example?subject=x")
    assert mail_factory(unsubscribe_url="http://localhost:8000/bye").packages["email"].unsubscribe_url


# -- the token -----------------------------------------------------------------------------------------------------

_RING: Any = SimpleNamespace(keys=KeyRing(KEYS))  # of an app, the token needs the keys only
_OTHER: Any = SimpleNamespace(keys=KeyRing(f"old={generate_key()},digest={generate_key()}"))
_NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=30)


@given(local=_NAMES, category=_NAMES)
def test_a_token_is_read_as_it_was_written(local: str, category: str) -> None:
    read = read_token(_RING, write_token(_RING, f"{local}@example.com", category))
    assert (read.address, read.category) == (f"{local}@example.com", category)


@given(data=st.data())
def test_an_altered_token_is_invalid(data: st.DataObject) -> None:
    token = write_token(_RING, "ann@example.com", "news")
    at = data.draw(st.integers(0, len(token) - 1))
    replacements = "ABCXYZabcxyz0189-_".replace(token[at], "")  # the token is another one each time
    replacement = replacements[data.draw(st.integers(0, 16))]
    for altered in (
        token[:at] + replacement + token[at + 1 :],
        token[:at],
        token + replacement,
        token[:at] + token[at + 1 :],
    ):
        with pytest.raises(TokenInvalid):
            read_token(_RING, altered)


@given(
    st.one_of(st.text(max_size=300), st.binary(max_size=200).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
)
def test_a_bad_token_from_a_third_party_is_refused_uniformly(text: str) -> None:
    with pytest.raises(TokenInvalid):
        read_token(_RING, text)


def test_a_foreign_token_is_invalid() -> None:
    with pytest.raises(TokenInvalid):
        read_token(_RING, write_token(_OTHER, "ann@example.com", "news"))


def test_a_link_outlives_the_rotation_of_keys(mail_factory: MailFactory) -> None:
    token = write_token(mail_factory(KEYS), ANN, "news")
    after = mail_factory(NEWEST_KEYS)  # the key that sealed the address is gone
    assert unsubscribe(token, effects=after) == "news"
    assert blocked(after, address="ann@EXAMPLE.com")
    assert [suppression.address for suppression in find_suppressions(ANN, effects=after)] == [None]


def test_a_digest_key_alone_is_enough(mail_factory: MailFactory) -> None:
    app = mail_factory(f"digest={DIGEST}")
    assert unsubscribe(write_token(app, ANN, "news"), effects=app) == "news"
    assert blocked(app)


# -- the endpoint --------------------------------------------------------------------------------------------------


def web_clients(app: App, **options: Any) -> dict[str, AbstractContextManager[WebClient]]:
    return {
        "asgi": asgi_client(module.asgi_app(effects=app, **options)),
        "wsgi": wsgi_client(module.wsgi_app(effects=app, **options)),
    }


@pytest.fixture(params=["asgi", "wsgi"])
def web_client(request: pytest.FixtureRequest, shop: Effects) -> Iterator[WebClient]:
    with web_clients(shop)[request.param] as opened:
        yield opened


def path_of(app: Effects, category: str = "news") -> str:
    parts = urlsplit(unsubscribe_link(ANN, category, effects=app))
    return f"{parts.path}?{parts.query}"


def test_a_post_unsubscribes_at_once(shop: Effects, web_client: WebClient) -> None:
    answers = [web_client("POST", path_of(shop), **ONE_CLICK) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    for answer in answers:
        assert "set-cookie" not in answer.headers
        assert "location" not in answer.headers
    assert (blocked(shop), blocked(shop, "tips"), blocked(shop, None)) == (True, False, False)
    [suppression] = find_suppressions(ANN, effects=shop)
    assert (suppression.reason, suppression.source, suppression.actor, suppression.address) == (
        "unsubscribe",
        "link",
        "recipient",
        ANN,
    )
    assert len(suppression_log(ANN, effects=shop)) == 2


def test_following_the_link_asks_and_changes_nothing(shop: Effects, web_client: WebClient) -> None:
    shown = web_client("GET", path_of(shop, "<b>tips</b>"))
    assert shown.status_code == 200
    assert '<form method="post">' in shown.text
    assert "&lt;b&gt;tips&lt;/b&gt;" in shown.text
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert (shown.headers["cache-control"], shown.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    head = web_client("HEAD", path_of(shop))
    assert (head.status_code, head.content) == (200, b"")
    assert rows(shop, "email_suppressions") == []


def test_a_bad_token_is_not_found(shop: Effects, web_client: WebClient) -> None:
    for query in ("", "?token=", "?token=abc", "?tok=x", "?token=%ff%fe", "?token=" + "A" * 5000):
        for method in ("GET", "POST"):
            answer = web_client(method, f"/u{query}")
            assert answer.status_code == 404, query
            assert "does not work" in answer.text
    assert rows(shop, "email_suppressions") == []


def test_other_methods_and_long_bodies_are_refused(shop: Effects, web_client: WebClient) -> None:
    put = web_client("PUT", path_of(shop))
    assert (put.status_code, put.headers["allow"]) == (405, "GET, HEAD, POST")
    assert web_client("POST", path_of(shop), content=b"x" * (16 * 1024 + 1)).status_code == 413
    assert rows(shop, "email_suppressions") == []


def test_mounted_in_a_framework_it_does_not_redirect(shop: Effects) -> None:
    web = FastAPI()
    web.mount("/unsubscribe", module.asgi_app(effects=shop))
    with asgi_client(web) as web_client:
        path = path_of(shop).replace("/unsubscribe?", "/unsubscribe/?")
        assert web_client("GET", path).status_code == 200
        assert web_client("POST", path, **ONE_CLICK).status_code == 200
        assert web_client("POST", path.replace("/?", "?")).is_redirect  # which is why the address has its slash
    assert blocked(shop)


def test_the_app_may_provide_its_own_texts(shop: Effects) -> None:
    for opening in web_clients(shop, page=lambda state, category: f"{state}:{category}").values():
        with opening as web_client:
            assert web_client("GET", path_of(shop)).text == "ask:news"
            assert web_client("POST", path_of(shop)).text == "done:news"
            assert web_client("GET", "/").text == "invalid:"


def test_an_unavailable_database_gives_a_retry_after(mail_factory: MailFactory) -> None:
    app = mail_factory(unsubscribe_url=URL)
    path = path_of(app)
    away = App("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2", keys=KEYS, unsubscribe_url=URL, job_types=[])
    try:
        for opening in web_clients(away).values():
            with opening as web_client:
                answer = web_client("POST", path)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
                assert web_client("GET", path).status_code == 200
    finally:
        away.dispose()


def test_neither_address_nor_token_is_logged(
    shop: Effects, web_client: WebClient, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(shop)
    caplog.set_level(logging.DEBUG, logger="effects")
    caplog.set_level(logging.DEBUG, logger="sqlalchemy")
    web_client("POST", path)
    assert "xample.com" not in "".join(record.getMessage() for record in caplog.records if record.name != "httpx")


def test_the_app_runs_alone(shop: Effects) -> None:
    app = module.asgi_app(effects=shop)
    assert lifespan(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert gone(app) == []
    said: list[str] = []
    wsgi: Any = module.wsgi_app(effects=shop)
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "-1", "wsgi.input": io.BytesIO()}
    wsgi(environ, lambda status, headers: said.append(status))
    assert said == ["400 Bad Request"]


def test_a_row_that_has_an_address_keeps_it(shop: Effects) -> None:
    token = write_token(shop, ANN, "news")
    unsubscribe(token, effects=shop)
    run_sql(shop, "UPDATE effects_email_suppressions SET why = 'before'")
    bare: Any = SimpleNamespace(keys=KeyRing(f"digest={DIGEST}"))
    unsubscribe(write_token(bare, ANN, "news"), effects=shop)
    [suppression] = find_suppressions(ANN, effects=shop)
    assert (suppression.address, suppression.why) == (ANN, None)
