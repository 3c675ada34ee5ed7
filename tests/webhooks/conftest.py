"""An app that may reach this machine, endpoints on it, and the command as `tests/cli` runs it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from sqlalchemy import event, text

from effects import Effects, Outcome
from effects.keys.encryption import generate_key
from effects.kit.guarded import GuardedNetwork
from effects.worker import Worker
from effects_webhooks.classify import classify
from effects_webhooks.transport.exchange import WebhookExchange
from tests.cli.conftest import _logging
from tests.conftest import AppFactory
from tests.support.blocking_posts import BlockingTransports

KEYS = f"k1={generate_key()}"

Rows: TypeAlias = Callable[..., list[dict[str, Any]]]

__all__ = ["_logging"]


def drain(shop: Effects) -> dict[str, int]:
    """How many ended, by status, once nothing is due."""
    return Worker(shop).drain(max_seconds=50).counts


@contextmanager
def made_transports(ssl_context: ssl.SSLContext | None = None, **options: int | float) -> Iterator[BlockingTransports]:
    """BlockingTransports to which every name is this machine."""
    backend = GuardedNetwork(allow_private=True, resolver=lambda host, port: ["127.0.0.1"])
    transports = BlockingTransports(backend, ssl_context=ssl_context, **options)  # type: ignore[arg-type]
    yield transports
    transports.close()


@pytest.fixture
def transports() -> Iterator[BlockingTransports]:
    with made_transports() as transports:
        yield transports


def outcome_of(exchange: WebhookExchange) -> Outcome:
    return classify(exchange, host="partner.test")


@pytest.fixture
def shop(app_factory: AppFactory) -> Effects:
    """An app with a sealing key and leave to reach loopback."""
    return app_factory(job_types=[], keys=KEYS, allow_private_addresses=True)


@pytest.fixture
def rows(shop: Effects) -> Rows:
    """`rows("SELECT …", name=value)`: what the database holds, committed."""

    def read(statement: str, **parameters: Any) -> list[dict[str, Any]]:
        with shop.store.read() as connection:
            return [dict(row._mapping) for row in connection.execute(text(statement), parameters)]

    return read


@contextmanager
def statements(shop: Effects) -> Iterator[list[str]]:
    """The statements that this thread has the engine execute meanwhile."""
    seen: list[str] = []
    thread = threading.get_ident()  # the notifier has another one

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if threading.get_ident() == thread:
            seen.append(statement)

    for engine in shop.store.engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        for engine in shop.store.engines:
            event.remove(engine, "before_cursor_execute", note)
