"""A worker that is frozen beyond its lease, replaced and woken is fenced off."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effects import Effects, enqueue
from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.conftest import AppFactory
from tests.peers.http import Answer, Receiver
from tests.peers.stub_server import StubServer
from tests.support.freezing import freeze_between_transactions
from tests.support.manual_workers import all_but_late, row, rows
from tests.support.processes import Child, Fleet, fleet
from tests.support.running import running
from tests.support.scripted import Script, Scripted
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

LEASE_SECONDS = 1.2
SHORT = {"EFFECTS_LEASE_SECONDS": str(LEASE_SECONDS), "EFFECTS_HEARTBEAT_SECONDS": "0.2"}
OPTIONS: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": 0.2, "poll_seconds": 0.2}


@pytest.fixture
def app(database_url: str) -> Iterator[Effects]:
    step_app = step_jobs_app(database_url, **OPTIONS)
    yield step_app
    step_app.dispose()


def test_a_woken_worker_is_refused_the_release_and_sends_nothing(
    app: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    stub_server.hold("letter")
    enqueue("step_job.held", StepJob("letter", stub_server.port, ("ask", "release", "do")), key="letter", effects=app)
    zombie = processes.worker(**SHORT)
    stub_server.wait_asked("letter")
    freeze_between_transactions(zombie, app)
    stub_server.open("letter")  # its answer waits in the socket
    _replace(app)
    assert stub_server.done == ["letter"]
    truth = all_but_late(app)
    _wake(zombie)
    assert all_but_late(app) == truth
    assert stub_server.done == ["letter"]
    assert stub_server.asked == ["letter", "letter"]  # both came as far as the question
    assert zombie.output.count("lease.lost") == 1
    assert [attempt["outcome"] for attempt in rows(app, "job_attempts")] == ["lost", "succeeded"]
    assert _late(app) == ["failed", None]


def test_a_late_outcome_does_not_touch_the_newer_attempt(
    app: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    """The second attempt is still running when the first one's outcome comes."""
    stub_server.hold("letter")
    enqueue("step_job", StepJob("letter", stub_server.port, ("ask", "do")), key="letter", effects=app)
    zombie = processes.worker(**SHORT)
    stub_server.wait_asked("letter")
    freeze_between_transactions(zombie, app)
    second = processes.worker()
    stub_server.wait_asked("letter", 2)
    truth = all_but_late(app)
    freeze_between_transactions(second, app)  # the newer attempt stays as it is while the zombie speaks
    stub_server.open("letter")
    _wake(zombie)
    assert all_but_late(app) == truth
    assert [job["status"] for job in rows(app, "jobs")] == ["running"]
    second.thaw()
    wait_until(lambda: not rows(app, "jobs"))
    assert stub_server.done == ["letter", "letter"]
    assert [attempt["outcome"] for attempt in rows(app, "job_attempts")] == ["lost", "succeeded"]
    assert _late(app) == ["succeeded", None]


@pytest.mark.parametrize("answer", ["done", "busy"])
def test_what_a_woken_worker_reports_late_resolves_the_effect_that_was_held(
    answer: str, app: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    stub_server.hold("letter")
    steps = ("release", "ask", "do")
    enqueue("step_job.held", StepJob("letter", stub_server.port, steps), key="letter", effects=app)
    zombie = processes.worker(**SHORT)
    stub_server.wait_asked("letter")
    freeze_between_transactions(zombie, app)
    _replace(app)
    assert row(app, "effect_ledger")["state"] == "unknown"
    if answer == "busy":
        stub_server.busy["letter"] = 1
    stub_server.open("letter")
    _wake(zombie)
    assert row(app, "effect_ledger")["state"] == {"done": "done", "busy": "refused"}[answer]
    assert [bool(letter["unknown"]) for letter in rows(app, "unresolved")] == ([] if answer == "done" else [False])
    worker = row(app, "job_attempts")["worker"]
    assert row(app, "audit_log")["actor"] == f"worker:{worker}"
    assert audit(app.store, app.ledgers) == []


def test_a_late_webhook_outcome_changes_nothing(app_factory: AppFactory, database_url: str, tmp_path: Path) -> None:
    keys = f"k1={generate_key()}"
    shop = app_factory(job_types=[], keys=keys, allow_private_addresses=True, **OPTIONS)
    late = threading.Event()
    answers = iter([Answer(503, wait=late), Answer(200)])
    with Receiver(lambda request: next(answers)) as receiver, fleet(database_url, tmp_path) as processes:
        add_endpoint(receiver.url, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {"n": 1}), effects=shop)
        env = {**SHORT, "EFFECTS_KEYS": keys, "EFFECTS_ALLOW_PRIVATE_ADDRESSES": "true"}
        zombie = processes.worker(app="tests.crash.app:app", **env)
        receiver.wait_for(1)
        freeze_between_transactions(zombie, shop)
        _replace(shop)
        truth = all_but_late(shop)
        late.set()  # the 503 that the zombie will read
        _wake(zombie)
        assert all_but_late(shop) == truth
        assert len(receiver.requests) == 2
        assert len({(request.message_id, request.body) for request in receiver.requests}) == 1
    [delivery] = rows(shop, "delivered_webhooks")
    assert (delivery["state"], delivery["status_code"]) == ("done", 200)


def _replace(app: Effects) -> None:
    """A second worker takes the job back once the lease is over, and finishes it."""

    def done() -> bool:
        Worker(app).drain()
        return not rows(app, "jobs")

    wait_until(done)


def _wake(zombie: Child) -> None:
    """Let it go on, find out, and end in order."""
    zombie.thaw()
    zombie.wait_logged("worker.fenced_off")
    zombie.send(signal.SIGTERM)
    assert zombie.wait() == 0, zombie.output
    assert "Traceback" not in zombie.output


def _late(app: Effects) -> list[str | None]:
    return [attempt["late_outcome"] for attempt in rows(app, "job_attempts")]


def test_the_answer_of_a_handler_past_its_time_limit_is_a_late_one(app_factory: AppFactory) -> None:
    held = Scripted("held", on_unknown="hold", time_limit_seconds=0.2)
    app = app_factory(job_types=[held], **OPTIONS)
    enqueue("held", Script(["release wait"]), key="k", effects=app)
    with running(Worker(app)):
        wait_until(lambda: rows(app, "unresolved"))
        assert row(app, "job_attempts")["outcome"] == "timed_out"
        held.gate.set()
        wait_until(lambda: row(app, "effect_ledger")["state"] == "done")
    assert row(app, "job_attempts")["late_outcome"] == "succeeded"
    assert audit(app.store, app.ledgers) == []


def test_a_second_release_after_the_lease_is_lost_does_not_say_that_nothing_happened(app_factory: AppFactory) -> None:
    held = Scripted("held", on_unknown="hold")
    app = app_factory(job_types=[held], **OPTIONS)
    enqueue("held", Script(["release wait release"]), key="k", effects=app)
    worker = Worker(app)
    with running(worker):
        wait_until(held.began.is_set)
        worker._parts.queues.fence_off()
        held.gate.set()
        wait_until(lambda: rows(app, "unresolved"))
    attempt = row(app, "job_attempts")
    assert (attempt["verdict"], attempt["error_code"]) == ("unknown", "lease_lost")
