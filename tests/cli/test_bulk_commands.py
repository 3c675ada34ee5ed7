"""Commands that act on many jobs: a preview first, at once on few, as a bulk action on many."""

from __future__ import annotations

import pytest

from effects import Done, Effects, enqueue
from effects.cli import bulk
from effects.operate.tables import job_list
from effects.worker import Worker
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, rows
from tests.support.many_dead import many_dead

NAMED_QUEUES = ("mails", "other")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 2)


def test_waiting_jobs_are_cancelled_by_filters(app: Effects, run: Run) -> None:
    mails = [enqueue("scripted", {}, queue="mails", effects=app).job_id for _ in range(2)]
    running = enqueue("scripted", {}, queue="other", effects=app).job_id
    ManualWorker(app, queue="other").claim_one()
    assert "2 to cancel. Nothing was done: use --yes" in run("cancel", "--queue", "mails").out
    assert len(rows(app, "jobs")) == 3
    done = run("cancel", "--queue", "mails", "--yes")
    assert done.out == "".join(f"job {job_id}: cancelled, or asked to stop\n" for job_id in mails)
    assert [job["id"] for job in rows(app, "jobs")] == [running]
    [part] = run("cancel", "--status", "running", "--yes", "--json").json["parts"]
    assert (part["done"], part["refused"]) == ({str(running): None}, {})


def test_ended_jobs_are_retried_by_filters(app: Effects, run: Run) -> None:
    ids = many_dead(app, 3)
    [part] = run("retry", "--status", "dead", "--json").json["parts"]
    assert (part["jobs"], part["job_ids"]) == (3, ids)
    newest = run("retry", "--code", "refused", "--limit", 1, "--yes", "--json").json["parts"][0]
    assert list(newest["done"]) == [str(ids[-1])]
    again = run("retry", "--type", "scripted", "--status", "dead", "--yes")
    assert again.exit_code == 1
    assert again.out.count("retried as job") == 2
    assert f"refused: job {ids[-1]} was retried already" in again.out


def test_jobs_that_only_older_history_has_are_previewed_and_acted_on(
    app: Effects, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of successes looks at the newest part of the history, that of the dead at an index; an action at all."""
    ids = many_dead(app, 3)
    many_dead(app, 10, ending=Done(), limit_key="done")
    monkeypatch.setattr(job_list, "SPAN", 4)
    assert "3 to retry. Nothing was done" in run("retry", "--status", "dead").out
    [newest] = run("retry", "--status", "dead", "--limit", 2, "--json").json["parts"]
    assert (newest["jobs"], newest["job_ids"]) == (2, ids[1:])
    [acted] = run("retry", "--status", "dead", "--limit", 2, "--yes", "--json").json["parts"]
    assert list(acted["done"]) == [str(job_id) for job_id in ids[1:]]
    assert run("retry", "--code", "unheard_of", "--limit", 2).out == "no jobs match\n"
    many_dead(app, 10, limit_key="newest")
    assert run("retry", "--status", "succeeded").out.startswith("more among the older ones. Nothing was done: ")


def test_an_empty_filter_is_refused(app: Effects, run: Run) -> None:
    """As of a variable that is not set: it would select every job that failed, or that has no tenant."""
    many_dead(app, 1)
    for option in ("--text", "--tenant"):
        for words in (("resolve", "--as", "give-up", "--yes"), ("retry", "--yes"), ("cancel", "--yes")):
            assert f"'{option}': it is empty" in error_line(run(*words, option, "", "--reason", "r"))
        assert f"'{option}': it is empty" in error_line(run("jobs", "list", option, ""))
    assert len(rows(app, "unresolved")) == 1


@pytest.mark.usefixtures("few")
def test_a_bulk_action_is_followed(app: Effects, run: Run) -> None:
    many_dead(app, 3)
    started = run("retry", "--type", "scripted", "--yes", "--reason", "fixed").out.splitlines()[0]
    assert started == "bulk 1 started: 3 jobs to retry, by job 4; see `effects bulk show 1`"
    assert "bulk 1 (requeue): 0 of 3 jobs" in run("status").out
    assert run("status", "--json").json["bulks"] == [
        {"id": 1, "action": "requeue", "status": "running", "done": 0, "refused": 0, "expected": 3}
    ]
    assert bulk_metrics(run) == [1, 0, 3, 0, 0]
    run("retry", 2)
    Worker(app).drain()
    assert bulk_metrics(run) == [0, 0, 0, 0, 0]
    shown = run("bulk", "show", 1)
    assert "no longer match  1" in shown.out
    assert "job_type=scripted" in shown.out
    record = run("bulk", "show", 1, "--json").json
    assert (record["status"], record["done"], record["refusals"]) == ("done", 2, {})
    assert run("status", "--json").json["bulks"] == []
    assert [line.split()[:4] for line in run("bulk", "list").out.splitlines()] == [
        ["id", "action", "status", "done"], ["1", "requeue", "done", "2"],
    ]  # fmt: skip
    assert "error: bulk 9 not found" in error_line(run("bulk", "cancel", 9))


def bulk_metrics(run: Run) -> list[int]:
    """How many run and are stopped; their jobs: expected, done, refused."""
    return [int(line.split()[-1]) for line in run("metrics").out.splitlines() if line.startswith("effects_bulk_")]


@pytest.mark.usefixtures("few")
def test_a_stopped_bulk_action_names_the_command_that_continues_it(app: Effects, run: Run) -> None:
    many_dead(app, 3)
    run("resolve", "--all", "--as", "give-up", "--yes", "--reason", "a test")
    run("cancel", 4)
    assert "bulk 1 (ignore): 0 of 3 jobs; stopped: see `effects bulk show 1`" in run("status").out
    shown = run("bulk", "show", 1).out
    assert "stopped" in shown
    assert bulk_metrics(run) == [0, 1, 3, 0, 0]
    assert "`effects retry 4` continues it" in shown
    assert run("retry", 4).exit_code == 0
    Worker(app).drain()
    assert "done" in run("bulk", "show", 1).out
    assert run("dead", "list").out == "no unresolved dead letters\n"
