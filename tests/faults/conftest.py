"""Fixtures of the fault tests: a desk that counts effects, processes to harm, an app to look with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects
from tests.peers.desk import Desk
from tests.peers.proxy import Proxy
from tests.support.errands import errands_app
from tests.support.processes import Fleet, fleet


@pytest.fixture
def desk() -> Iterator[Desk]:
    with Desk() as made:
        yield made


@pytest.fixture
def errands(database_url: str) -> Iterator[Effects]:
    """An app of the test's own process on the test's database; it rescues after 3 s of silence."""
    app = errands_app(database_url, lease_seconds=3.0, heartbeat_seconds=0.3, poll_seconds=0.2)
    yield app
    app.dispose()


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(database_url, tmp_path) as made:
        yield made


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """Stands between the test's workers and the PostgreSQL server."""
    with Proxy(database_url) as made:
        yield made
