"""An app that may reach this machine, endpoints on it, and the command as `tests/cli` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from sqlalchemy import event, text

from effects import Effects
from effects.keys import generate_key
from tests.cli.conftest import _logging
from tests.conftest import AppFactory

KEYS = f"k1={generate_key()}"

Rows: TypeAlias = Callable[..., list[dict[str, Any]]]

__all__ = ["_logging"]


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
    """The statements that the engine executes meanwhile."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    for engine in shop.store.engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        for engine in shop.store.engines:
            event.remove(engine, "before_cursor_execute", note)
