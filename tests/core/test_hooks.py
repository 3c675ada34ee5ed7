"""`app.on`: when a hook is called, and that a hook that fails, hangs or is lost harms no job."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from effects import ConfigurationError, Effects, HookEvent, Pause, Refused, enqueue
from effects.app.hooks import WAITING_MAX, Hooks
from effects.kit.exit_codes import ExitCode
from effects.store.workers import end
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.house.source import ROOT
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.processes import Ended, run_typed
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until


def listening(app: Effects) -> list[HookEvent]:
    events: list[HookEvent] = []
    for name in ("dead", "unknown", "paused"):
        app.on(name, events.append)  # type: ignore[arg-type]
    return events


def test_a_dead_job_calls_its_hook_once_it_is_recorded(app: Effects) -> None:
    recorded = []
    app.on("dead", lambda event: recorded.append(row(app, "job_history", "id = :id", id=event.job_id)["status"]))
    events = listening(app)
    receipt = enqueue("scripted", {"moves": ["refuse"]}, key="k", effects=app)
    Worker(app).drain()
    assert recorded == ["dead"]
    [event] = events
    assert (event.event, event.job_id, event.job_type, event.queue) == ("dead", receipt.job_id, "scripted", "default")
    assert (event.attempt, event.ended, event.key) == (1, True, "k")
    assert "'k'" not in repr(event)


def test_success_and_retry_call_none(app: Effects) -> None:
    events = listening(app)
    for moves in (["done"], ["retry"], ["cancel"], ["snooze"]):
        enqueue("scripted", {"moves": moves}, effects=app)
    Worker(app).drain()
    assert events == []


@pytest.mark.parametrize(("policy", "called"), [("repeat", ["unknown"]), ("hold", ["unknown", "dead"])])
def test_an_unknown_effect_calls_its_hook_whether_it_is_repeated_or_held(
    app_factory: AppFactory, policy: Any, called: list[str]
) -> None:
    app = app_factory(job_types=[Scripted(on_unknown=policy)])
    events = listening(app)
    enqueue("scripted", {"moves": ["release unknown"]}, effects=app)
    Worker(app).drain()
    assert [event.event for event in events] == called
    assert {event.ended for event in events} == {policy == "hold"}


class Pausing(Scripted):
    def perform(self, payload: Any, attempt: Any) -> Any:
        return Pause(60, "the server is down", code="connect_failed")


def test_a_paused_limit_key_calls_its_hook(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Pausing()])
    events = listening(app)
    enqueue("scripted", {}, limit_key="smtp", effects=app)
    Worker(app).drain()
    [event] = events
    assert (event.event, event.limit_key, event.pause_seconds, event.code) == ("paused", "smtp", 60, "connect_failed")
    assert "smtp" not in repr(event)


def test_what_a_worker_takes_back_from_lost_ones_is_told_too(app: Effects) -> None:
    """The fifth lost worker ends the job, and its effect may have happened."""
    events = listening(app)
    enqueue("scripted", {}, effects=app)
    lost = ManualWorker(app)
    lost.claim_one()
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET lost_count = 4")
    end(app.store, lost.name, ExitCode.PART_FAILED, "killed")
    [settlement] = ManualWorker(app, "successor").rescue().accepted
    app.hooks.recorded(settlement)
    app.hooks.finish(10)
    assert [(event.event, event.ended) for event in events] == [("unknown", True), ("dead", True)]


def test_a_hook_that_raises_is_logged_and_stops_neither_the_next_nor_a_job(
    app: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(event: HookEvent) -> None:
        raise SystemExit("rosebud")

    app.on("dead", fails)
    events = listening(app)
    for _ in range(3):
        enqueue("scripted", {"moves": ["refuse"]}, effects=app)
    assert Worker(app).drain().counts == {"dead": 3}
    assert len(events) == 3
    [logged] = [record for record in caplog.records if record.message == "hook.failed"]
    assert "SystemExit" in str(vars(logged)["reason"])
    assert "rosebud" not in str(vars(logged)["reason"])


@pytest.mark.slow
def test_a_hook_that_hangs_holds_up_no_job_and_no_end(app: Effects, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    app.on("dead", lambda event: gate.wait(60))
    for _ in range(20):
        enqueue("scripted", {"moves": ["refuse"]}, effects=app)
    try:
        assert Worker(app).drain().counts == {"dead": 20}
        assert len(rows(app, "job_history")) == 20
        assert "hook.dropped" in caplog.messages
    finally:
        gate.set()


def test_hooks_that_fall_behind_lose_events_and_no_memory(caplog: pytest.LogCaptureFixture, app: Effects) -> None:
    hooks, gate, events = Hooks(), threading.Event(), []
    hooks.add("dead", lambda event: (gate.wait(60), events.append(event)))
    enqueue("scripted", {}, effects=app)
    worker = ManualWorker(app)
    settlement = worker.decide(worker.claim_one(), Refused("no"))
    for _ in range(WAITING_MAX + 10):
        hooks.recorded(settlement)
    gate.set()
    wait_until(lambda: len(events) >= WAITING_MAX)
    hooks.finish(10)
    assert WAITING_MAX <= len(events) <= WAITING_MAX + 1
    assert "hook.dropped" in caplog.messages


@pytest.mark.parametrize(("name", "hook"), [("died", print), ("dead", "print"), (None, print)])
def test_what_is_no_event_or_no_function_is_refused(app: Effects, name: Any, hook: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"app\.on"):
        app.on(name, hook)


CRASH = """
import os, sys
from effects import Effects, enqueue
from effects.kit import crashpoints
from effects.worker import Worker
from tests.support.scripted import Scripted
app = Effects(sys.argv[1], job_types=[Scripted()])
app.on("dead", lambda event: print("told", event.job_id, flush=True))
crashpoints.install_from_environment()
print(Worker(app).drain().counts)
"""


@pytest.mark.slow
def test_a_crash_between_the_commit_and_the_call_loses_the_call_and_never_the_job(app: Effects, tmp_path: Path) -> None:
    receipt = enqueue("scripted", {"moves": ["refuse"]}, effects=app)

    def run(**environment: str) -> Ended:
        return run_typed(tmp_path, environment, "python", "-c", CRASH, app.settings.database_url, cwd=ROOT)

    assert "told" not in run(EFFECTS_CRASHPOINT="settle.committed").out
    assert row(app, "job_history", "id = :id", id=receipt.job_id)["status"] == "dead"
    again = run()
    assert again.exit_code == 0, again.err
    assert "told" not in again.out


SENTRY = """
import json, sys
import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport
from effects import Effects, enqueue
from effects.retry import RetryPolicy
from effects.worker import Worker
from tests.support.scripted import Scripted

class Kept(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.type == "event":
                print(json.dumps(item.payload.json))

sentry_sdk.init("http://key@127.0.0.1:9/1", transport=Kept, default_integrations=False,
                integrations=[LoggingIntegration()])
app = Effects(sys.argv[1], job_types=[Scripted(on_unknown="hold")])
enqueue("scripted", {"moves": ["release raise"]}, key="xanadu", effects=app)
Worker(app).drain()
"""


@pytest.mark.slow
def test_sentrys_logging_integration_gets_the_exception_of_a_dead_job(app: Effects, tmp_path: Path) -> None:
    """Its class and where it was raised; neither its text nor the payload."""
    ran = run_typed(tmp_path, {}, "python", "-c", SENTRY, app.settings.database_url, cwd=ROOT)
    assert ran.exit_code == 0, ran.err
    [event] = [json.loads(line) for line in ran.out.splitlines()]
    [exception] = event["exception"]["values"]
    assert (exception["type"], exception["module"]) == ("BoomError", "tests.support.scripted")
    assert exception["stacktrace"]["frames"][-1]["function"] == "_move"
    assert event["logentry"]["message"] == "job.dead"
    assert "xanadu" not in ran.out
    assert exception["value"] == "[its text may be personal and is not shown]"
