"""`effects workers`: who works, and a wish that a worker's heartbeat reads."""

from __future__ import annotations

from effects import Effects, enqueue
from effects.store.workers import end, heartbeat
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, row, rows


def test_a_drain_request_is_written_once_and_returned_by_the_heartbeat(app: Effects, run: Run) -> None:
    manual_worker, second = ManualWorker(app, "host:1:aa"), ManualWorker(app, "host:2:bb")
    assert heartbeat(app.store, manual_worker.name).drain_requested_by is None
    answer = run("workers", "drain", manual_worker.name, "--reason", "new version")
    assert answer.out == "worker host:1:aa will drain from its next heartbeat\n"
    first = row(app, "workers", "id = :id", id=manual_worker.name)
    assert run("workers", "drain", manual_worker.name, "--reason", "again").exit_code == 0
    assert row(app, "workers", "id = :id", id=manual_worker.name) == first
    assert (first["drain_reason"], first["drain_requested_by"][:4]) == ("new version", "cli:")
    assert heartbeat(app.store, manual_worker.name).drain_requested_by == first["drain_requested_by"]
    assert heartbeat(app.store, second.name).drain_requested_by is None
    states = {state["id"]: state for state in run("workers", "list", "--json").json}
    assert {worker: state["state"] for worker, state in states.items()} == {
        manual_worker.name: "draining",
        second.name: "alive",
    }
    shown = run("workers", "list").out
    assert "draining, drain requested by cli:" in shown
    assert "(new version)" in shown


def test_all_workers_but_ended_ones_are_asked_to_drain(app: Effects, run: Run) -> None:
    assert run("workers", "drain", "--all").out == "no workers running\n"
    for name in ("a", "b", "ended"):
        ManualWorker(app, name)
    end(app.store, "ended", 70, "settler ended")
    assert run("workers", "drain", "--all", "--json").json == {"workers": ["a", "b"], "result": "drain_requested"}
    assert {worker["id"] for worker in rows(app, "workers", "drain_requested_at IS NULL")} == {"ended"}


def test_an_unknown_worker_is_an_error_that_names_the_nearest(app: Effects, run: Run) -> None:
    ManualWorker(app, "host:1:aa")
    for worker, expected in (("host:1:ab", "; is it 'host:1:aa'?"), ("elsewhere", "")):
        answer = run("workers", "drain", worker)
        assert answer.exit_code == 2
        assert error_line(answer) == f"error: worker {worker} not found{expected} (see `effects workers list`)"


def test_a_worker_or_all_must_be_named(app: Effects, run: Run) -> None:
    for arguments in ((), ("a", "--all")):
        answer = run("workers", "drain", *arguments)
        assert answer.exit_code == 2
        assert "or --all" in error_line(answer)


def test_a_worker_that_ended_by_a_fault_is_forgotten_once_its_jobs_are_taken_back(app: Effects, run: Run) -> None:
    for name in ("alive", "host:1:aa", "busy"):
        worker = ManualWorker(app, name)
    enqueue("scripted", {}, effects=app)
    worker.claim_one()
    for name in ("host:1:aa", "busy"):
        end(app.store, name, 70, "settler ended")
    for name, nearest in (("alive", ""), ("busy", ""), ("host:1:ab", "; is it 'host:1:aa'?")):
        refused = error_line(run("workers", "forget", name))
        assert refused == f"error: no ended worker {name} without jobs{nearest} (see `effects workers list`)"
    assert run("workers", "forget", "host:1:aa", "--reason", "mended").out == "worker host:1:aa forgotten\n"
    assert {worker["id"] for worker in rows(app, "workers")} == {"alive", "busy"}
    assert error_line(run("workers", "forget", "host:1:aa")).startswith("error: no ended worker")
