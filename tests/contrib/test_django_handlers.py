"""Handlers of the jobs of a Django project: their connections are closed, and an async one stays async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.db.utils import ConnectionHandler

from effects import Attempt, JobType, enqueue
from effects.contrib.django.project import ProjectEffects
from effects.worker import Worker
from tests.support.django_setup import set_up_django


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[str]:
    """A database of Django's. Its name is new each time: the thread of async ORM calls keeps a connection for each."""
    set_up_django()
    own = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db")}
    name = f"shop_{uuid4().hex}"
    connections.settings[name] = ConnectionHandler({"default": own}).settings["default"]
    yield name
    del connections.settings[name]


class Counting(JobType[dict[str, Any]]):
    name = "shop.count"

    def __init__(self, alias: str) -> None:
        self.alias, self.seen = alias, 0

    def open(self) -> None:
        connections[self.alias].ensure_connection()
        self.seen += 1

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> None:
        self.open()


class CountingAsync(Counting):
    async def perform(self, payload: dict[str, Any], attempt: Attempt) -> None:  # type: ignore[override]
        await sync_to_async(self.open)()


@pytest.mark.parametrize("kind", [Counting, CountingAsync])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_handler_is_called_and_its_connections_are_closed(
    database_url: str, alias: str, kind: type[Counting]
) -> None:
    job_type = kind(alias)
    app = ProjectEffects(alias, database_url)
    app.add(job_type)
    assert job_type.is_async == (kind is CountingAsync)
    enqueue("shop.count", {}, effects=app)
    assert Worker(app).drain().counts == {"succeeded": 1}
    assert job_type.seen == 1
    is_closed = sync_to_async(lambda: getattr(connections[alias], "connection", None) is None)
    assert asyncio.run(is_closed())  # in the thread of all async ORM calls
    app.dispose()
