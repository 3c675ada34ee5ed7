"""Fixtures of the fault tests: a stub server that counts effects, processes to harm, an app to look with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects
from tests.peers.stub_server import StubServer
from tests.support.processes import Fleet, fleet
from tests.support.step_jobs import step_jobs_app


@pytest.fixture
def stub_server() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture
def step_jobs(database_url: str) -> Iterator[Effects]:
    """An app of the test's own process on the test's database; it rescues after 3 s of silence."""
    app = step_jobs_app(database_url, lease_seconds=3.0, heartbeat_seconds=0.3, poll_seconds=0.2, queues=["held"])
    yield app
    app.dispose()


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(database_url, tmp_path) as workers:
        yield workers
