"""Thousands of attempts leave nothing behind: objects, tasks, threads, descriptors, cached entries, temporary files."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from effects import Attempt, Effects, JobType, NewJob, Refused, Retry, enqueue_many
from effects.store.migrations import migrate
from effects.worker import Worker
from tests.peers.worded import HttpWords, SmtpWords, WordedPeer
from tests.support.processes import Child
from tests.support.running import running
from tests.support.sampling import is_full
from tests.support.soaked import BATCH, KINDS, soak
from tests.support.waiting import wait_until

ATTEMPTS = 10_000
ATTEMPTS_IN_CI = {"reports": 2_000}
SOAK_SECONDS = float(os.environ.get("EFFECTS_TEST_SOAK_SECONDS", "1800"))  # of all kinds together
PATIENCE_SECONDS = 600.0
KIND_SECONDS = SOAK_SECONDS / len(KINDS) if is_full() else 0.0
TIMEOUT_SECONDS = PATIENCE_SECONDS + 3 * KIND_SECONDS


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    with WordedPeer(HttpWords) as http, WordedPeer(SmtpWords) as smtp:
        yield http.port, smtp.port


@pytest.mark.timeout(TIMEOUT_SECONDS + 30)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_thousands_of_attempts(kind: str, ports: tuple[int, int], tmp_path: Path) -> None:
    """With every ending: done, refused, failed, unknown, cancelled, cut at its time limit, lost to another worker.

    10,000 attempts of each kind, in CI 2,000 steps of reports: one costs nine milliseconds of processor time, an
    attempt of any other kind less than one.
    """
    attempts = ATTEMPTS if is_full() else ATTEMPTS_IN_CI.get(kind, ATTEMPTS)
    child = Child(soak, (kind, tmp_path, *ports, BATCH, attempts, KIND_SECONDS), {}, tmp_path / "soak.log")
    try:
        assert child.wait(TIMEOUT_SECONDS) == 0, child.output
    finally:
        child.close()
    report = json.loads(child.output.splitlines()[-1])
    assert report["attempts"] >= attempts
    assert report["grown"] == {}, report


class Held:
    """What a handler has in a variable: a large response, say."""


class Raises(JobType[dict[str, Any]]):
    """Raises what its payload names, with something in a variable."""

    name, payload = "raises", dict[str, Any]
    app: Effects

    def __init__(self) -> None:
        self.seen: list[tuple[str, weakref.ref[Held]]] = []

    def perform(self, payload: Any, attempt: Attempt) -> Any:
        held = Held()
        self.seen.append((payload["raises"], weakref.ref(held)))
        match payload["raises"]:
            case "an outcome":
                raise Refused("no")
            case "an outcome from an error":
                try:
                    raise ValueError
                except ValueError as error:
                    raise Retry("later") from error
            case "an error of ours":
                enqueue_many([NewJob(job_type="mistyped", payload={})], effects=self.app)
            case "a group":
                raise ExceptionGroup("both", [ValueError(), KeyError()])
        raise ValueError


class AsyncRaises(Raises):
    async def perform(self, payload: Any, attempt: Attempt) -> Any:
        await asyncio.sleep(0)
        return super().perform(payload, attempt)


RAISED = ("an error", "an outcome", "an outcome from an error", "an error of ours", "a group")


@pytest.mark.parametrize("kind", [Raises, AsyncRaises])
def test_a_failed_attempt_keeps_no_variable_of_its_handler(
    kind: type[Raises], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error has the frames. They go with the attempt, also without a collection of garbage."""
    monkeypatch.setattr(logging.getLogger("effects"), "propagate", False)  # pytest keeps what is logged, with errors
    job_type = kind()
    job_type.app = app = Effects(f"sqlite:///{tmp_path / 'raises.db'}", job_types=[job_type], threads=4)
    migrate.init(app.store)
    enqueue_many([NewJob(job_type="raises", payload={"raises": raised}) for raised in RAISED * 10], effects=app)
    gc.collect()
    gc.disable()
    try:
        with running(worker := Worker(app)):
            wait_until(lambda: sum(worker.counts.values()) >= 10 * len(RAISED))
            with suppress(AssertionError):
                wait_until(lambda: not any(held() for _, held in job_type.seen), seconds=10)
            assert {raised for raised, held in job_type.seen if held()} == set()
    finally:
        gc.enable()
    assert {raised for raised, _ in job_type.seen} == set(RAISED)
