"""This release and the next two, on one database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects
from tests.support.file_jobs import file_jobs_app
from tests.support.processes import Fleet, fleet
from tests.support.releases import AFTER_NEXT, NEXT, Release, release


@pytest.fixture
def app(database_url: str) -> Iterator[Effects]:
    app = file_jobs_app(database_url, sessions="off")
    yield app
    app.dispose()


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Processes of this release."""
    with fleet(database_url, tmp_path) as processes:
        yield processes


@pytest.fixture
def following(database_url: str, tmp_path: Path) -> Iterator[Release]:
    """The next release."""
    with release(NEXT, database_url, tmp_path) as following:
        yield following


@pytest.fixture
def after_next(database_url: str, tmp_path: Path) -> Iterator[Release]:
    """The release after the next one."""
    with release(AFTER_NEXT, database_url, tmp_path) as after_next:
        yield after_next
