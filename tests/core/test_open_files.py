"""The limit of open files: raised by a worker's command, looked at by doctor."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from effects.kit import process
from effects.operate.doctor import examine
from tests.conftest import AppFactory
from tests.support.scripted import AsyncScripted


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """Those of this process, as they were before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 256), hard))
    process.raise_open_files_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize(("in_flight", "level"), [(1024, "ok"), (2**30, "warning")])
def test_doctor_warns_where_fewer_files_may_be_open_than_attempts_are_in_flight(
    app_factory: AppFactory, in_flight: int, level: str
) -> None:
    assert process.open_files_max() >= 1024 + process.FILES_BESIDES, "the hard limit is too low for the test"
    app = app_factory(job_types=[AsyncScripted()], in_flight=in_flight)
    [finding] = [finding for finding in examine(app) if finding.check == "open files"]
    assert finding.level == level
    assert ("EFFECTS_IN_FLIGHT" in (finding.advice or "")) == (level == "warning")


def test_doctor_counts_what_is_begun_in_the_place_of_silent_attempts(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[AsyncScripted(reserved_share=0.5)], in_flight=100, queues="webhooks=10")
    [finding] = [finding for finding in examine(app) if finding.check == "open files"]
    assert finding.text.startswith("167 attempts in flight")  # 150, and 17 for webhooks
