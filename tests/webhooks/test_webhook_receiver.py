"""The partner's side: verified, once, in the handler's own transaction; as ASGI and as WSGI."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from effects import ConfigurationError
from effects.kit.web_apps import BODY_BYTES_MAX
from effects_webhooks import SecretInvalid, generate_secret, sign
from effects_webhooks.receiver import Event, Receiving, SeenMessages, asgi_app, wsgi_app
from tests.support.web_clients import lifespan

SECRET = generate_secret()
BODY = b'{"type":"order.paid","timestamp":"2026-11-21T17:06:50Z","data":{"id":123}}'

Post: TypeAlias = Callable[[Mapping[str, str], bytes], int]


def signed(body: bytes = BODY, message_id: str = "msg_1", *, age: float = 0, secret: str = SECRET) -> dict[str, str]:
    timestamp = int(time.time() - age)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, message_id, timestamp, body),
    }


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE partner_orders (id text)"))
    yield engine
    engine.dispose()


class Shop:
    """A partner's app: writes one row an event; fails as often as it is told to."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.fail = 0
        self.seen = SeenMessages(engine)
        self.seen.create()
        self.seen.create()

    def handle(self, event: Event, connection: Connection) -> None:
        connection.execute(text("INSERT INTO partner_orders VALUES (:id)"), {"id": event.id})
        if self.fail:
            self.fail -= 1
            raise RuntimeError("hunter2")

    @property
    def rows(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT id FROM partner_orders")).scalars())


@pytest.fixture
def shop(engine: Engine) -> Shop:
    return Shop(engine)


def via_asgi(shop: Shop) -> Post:
    app: Any = asgi_app(shop.handle, secrets=[SECRET], seen=shop.seen)

    def post(headers: Mapping[str, str], body: bytes) -> int:
        async def send() -> int:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://partner") as client:
                return (await client.post("/hooks", headers=dict(headers), content=body)).status_code

        return asyncio.run(send())

    return post


def via_wsgi(shop: Shop) -> Post:
    app: Any = wsgi_app(shop.handle, secrets=[SECRET], seen=shop.seen)

    def post(headers: Mapping[str, str], body: bytes) -> int:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://partner") as client:
            return client.post("/hooks", headers=dict(headers), content=body).status_code

    return post


@pytest.fixture(params=[via_asgi, via_wsgi])
def post(request: pytest.FixtureRequest, shop: Shop) -> Post:
    posting: Post = request.param(shop)
    return posting


def test_a_message_is_handled_once_however_often_it_comes(shop: Shop, post: Post) -> None:
    assert [post(signed(), BODY) for _ in range(3)] == [204] * 3
    assert post(signed(message_id="msg_2"), BODY) == 204
    assert shop.rows == ["msg_1", "msg_2"]


def test_a_failed_message_is_rolled_back_and_accepted_again(shop: Shop, post: Post) -> None:
    shop.fail = 1
    assert [post(signed(), BODY) for _ in range(3)] == [500, 204, 204]
    assert shop.rows == ["msg_1"]


def test_an_engine_that_commits_each_statement_is_refused(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A message whose handler failed would be remembered as handled, and its repeat be answered with success."""
    seen = SeenMessages(engine.execution_options(isolation_level="AUTOCOMMIT"))
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        seen.create()
    SeenMessages(engine).create()
    handled: list[Event] = []
    receiving = Receiving(lambda event, connection: handled.append(event), secrets=[SECRET], seen=seen)
    assert [receiving.take(signed(), BODY) for _ in range(2)] == [500, 500]
    assert handled == []
    assert "AUTOCOMMIT" in caplog.records[-1].__dict__["error"]


# Made when the test runs, not when it is collected: a long run would make the early one fresh.
_UNVERIFIABLE: dict[str, Callable[[], dict[str, str]]] = {
    "none": dict,
    "too old": lambda: signed(age=400),
    "too early": lambda: signed(age=-400),
    "another secret": lambda: signed(secret=generate_secret()),
    "another body": lambda: signed(b"{}"),
    "another id": lambda: {**signed(), "webhook-id": "msg_other"},
    "no signature": lambda: {**signed(), "webhook-signature": "v1,"},
}


@pytest.mark.parametrize("headers", _UNVERIFIABLE.values(), ids=_UNVERIFIABLE.keys())
def test_an_unverified_message_is_not_handled(shop: Shop, post: Post, headers: Callable[[], dict[str, str]]) -> None:
    assert post(headers(), BODY) == 401
    assert shop.rows == []


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"type":1}', b"1", b"\xff", b"[" * 100_000])
def test_a_verified_body_that_is_no_event_is_refused(shop: Shop, post: Post, body: bytes) -> None:
    assert post(signed(body), body) == 400
    assert shop.rows == []


def test_a_large_body_is_not_read(shop: Shop, post: Post) -> None:
    body = b"x" * (BODY_BYTES_MAX + 1)
    assert post(signed(body), body) == 413


def test_only_post_is_accepted(shop: Shop) -> None:
    app: Any = wsgi_app(shop.handle, secrets=SECRET, seen=shop.seen)
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://partner") as client:
        assert client.get("/").status_code == 405
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "-1", "wsgi.input": io.BytesIO()}
    said: list[str] = []
    app(environ, lambda status, headers: said.append(status))
    assert said == ["400 Bad Request"]


def test_the_asgi_app_runs_by_itself(shop: Shop) -> None:
    app = asgi_app(shop.handle, secrets=SECRET, seen=shop.seen)
    assert lifespan(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_repeats_at_once_are_handled_once(shop: Shop) -> None:
    receiving = Receiving(shop.handle, secrets=SECRET, seen=shop.seen)
    headers, statuses = signed(), []
    threads = [threading.Thread(target=lambda: statuses.append(receiving.take(headers, BODY))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [204] * 8
    assert shop.rows == ["msg_1"]


def test_old_ids_may_be_forgotten(shop: Shop) -> None:
    receiving = Receiving(shop.handle, secrets=SECRET, seen=shop.seen)
    receiving.take(signed(), BODY)
    assert shop.seen.prune() == 0
    assert shop.seen.prune(keep_days=-1) == 1
    receiving.take(signed(), BODY)
    assert shop.rows == ["msg_1", "msg_1"]


def test_both_secrets_are_taken_while_one_is_replaced(shop: Shop) -> None:
    new = generate_secret()
    receiving = Receiving(shop.handle, secrets=[new, SECRET], seen=shop.seen)
    assert receiving.take(signed(), BODY) == 204
    assert receiving.take(signed(message_id="msg_2", secret=new), BODY) == 204
    for wrong in ([], ["whsec_x"], ""):
        with pytest.raises(SecretInvalid):
            Receiving(shop.handle, secrets=wrong, seen=shop.seen)


def test_what_the_handler_raised_is_not_in_the_log(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.fail = 1
    assert Receiving(shop.handle, secrets=SECRET, seen=shop.seen).take(signed(), BODY) == 500
    assert "hunter2" not in caplog.text
    assert json.loads(BODY)["data"]["id"] == 123


def test_the_module_needs_no_database_of_ours(tmp_path: Path) -> None:
    seen = SeenMessages(create_engine(f"sqlite:///{tmp_path / 'partner.db'}"), table="other_name")
    seen.create()
    taken: list[Event] = []
    receiving = Receiving(lambda event, connection: taken.append(event), secrets=SECRET, seen=seen)
    assert receiving.take(signed(), BODY) == 204
    assert taken == [Event("msg_1", "order.paid", "2026-11-21T17:06:50Z", {"id": 123})]
    seen.engine.dispose()
