"""Commands that act on many jobs: a preview first, at once on few, as a bulk action on many."""

from __future__ import annotations

import pytest

from effects import Done, Effects, enqueue
from effects.operate import bulk
from effects.operate.tables import job_list
from effects.worker import Worker
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, rows
from tests.support.many_dead import many_dead

NAMED_QUEUES = ("mails", "other")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "INLINE_MAX", 2)


def test_waiting_jobs_are_cancelled_by_filters(app: Effects, run: Run) -> None:
    mails = [enqueue("scripted", {}, queue="mails", effects=app).job_id for _ in range(2)]
    running = enqueue("scripted", {}, queue="other", effects=app).job_id
    ManualWorker(app, queue="other").claim_one()
    preview = run("jobs", "cancel", "--queue", "mails")
    assert preview.out.splitlines()[0].split()[:3] == ["id", "type", "status"]
    assert "\n2 would be cancelled or asked to stop; nothing was done (use --yes; " in preview.out
    assert len(rows(app, "jobs")) == 3
    done = run("jobs", "cancel", "--queue", "mails", "--yes")
    assert done.out == "".join(f"job {job_id}: cancelled or asked to stop\n" for job_id in mails)
    assert [job["id"] for job in rows(app, "jobs")] == [running]
    assert run("jobs", "cancel", "--status", "running", "--yes", "--json").json == {
        "done": {str(running): None}, "refused": {},
    }  # fmt: skip
    assert run("jobs", "run-now", "--all", "--yes", "--json").json["refused"] == {
        str(running): f"job {running} is running: only a waiting job can be run now"
    }


def test_ended_jobs_are_requeued_by_filters(app: Effects, run: Run) -> None:
    ids = many_dead(app, 3)
    preview = run("jobs", "requeue", "--status", "dead", "--json").json
    assert (preview["jobs"], preview["job_ids"], preview["newest"]) == (3, ids, ids[::-1])
    assert list(run("jobs", "requeue", "--code", "refused", "--limit", 1, "--yes", "--json").json["done"]) == [
        str(ids[-1])
    ]
    again = run("jobs", "requeue", "--type", "scripted", "--yes")
    assert again.exit_code == 1
    assert again.out.count("requeued as job") == 2
    assert f"refused: job {ids[-1]} was requeued already" in again.out


def test_jobs_that_only_older_history_has_are_previewed_and_acted_on(
    app: Effects, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of successes looks at the newest part of the history, that of the dead at an index; an action at all."""
    ids = many_dead(app, 3)
    many_dead(app, 10, ending=Done(), limit_key="done")
    monkeypatch.setattr(job_list, "SPAN", 4)
    preview = run("jobs", "requeue", "--status", "dead").out
    assert [int(line.split()[0]) for line in preview.splitlines()[1:4]] == ids[::-1]
    assert "nothing was done (use --yes; " in preview
    assert run("jobs", "requeue", "--status", "succeeded", "--limit", 1).out.endswith("(use --yes)\n")
    newest = run("jobs", "requeue", "--status", "dead", "--limit", 2, "--json").json
    assert (newest["jobs"], newest["job_ids"]) == (2, ids[:0:-1])
    acted = run("jobs", "requeue", "--status", "dead", "--limit", 2, "--yes", "--json").json
    assert list(acted["done"]) == [str(job_id) for job_id in ids[1:]]
    assert run("jobs", "requeue", "--code", "unheard_of", "--limit", 2).out == "no jobs match\n"
    many_dead(app, 10, limit_key="newest")
    assert run("jobs", "requeue", "--status", "succeeded").out.startswith(
        "none of the newest jobs, but all older ones that match would be requeued; nothing was done (use --yes; "
    )


def test_an_empty_filter_is_refused(app: Effects, run: Run) -> None:
    """As of a variable that is not set: it would select every job that failed, or that has no tenant."""
    many_dead(app, 1)
    for option in ("--text", "--tenant"):
        assert f"'{option}': it is empty" in error_line(run("dead", "ignore", option, "", "--reason", "r", "--yes"))
        assert f"'{option}': it is empty" in error_line(run("jobs", "list", option, ""))
    assert len(rows(app, "unresolved")) == 1


def test_one_job_or_filters(app: Effects, run: Run) -> None:
    [job_id] = many_dead(app, 1)
    for command in ("cancel", "run-now", "requeue"):
        assert "give IDs, or filters, or --all" in error_line(run("jobs", command))
        assert "give one job, or filters" in error_line(run("jobs", command, job_id, "--queue", "default"))
        assert "give one job, or filters" in error_line(run("jobs", command, job_id, "--yes"))
    assert "'dead' is not one of" in error_line(run("jobs", "cancel", "--status", "dead"))
    assert "'queued' is not one of" in error_line(run("jobs", "requeue", "--status", "queued"))
    assert "give at most 100 IDs" in error_line(run("dead", "requeue", *range(1, 102)))


@pytest.mark.usefixtures("few")
def test_a_bulk_action_is_followed(app: Effects, run: Run) -> None:
    many_dead(app, 3)
    started = run("jobs", "requeue", "--type", "scripted", "--yes", "--reason", "fixed").out
    assert started == "bulk 1 started: 3 jobs to be requeued by job 4; see `effects bulk show 1`\n"
    assert "bulk 1 (requeue): 0 of 3 jobs" in run("status").out
    assert run("status", "--json").json["bulks"] == [
        {"id": 1, "action": "requeue", "status": "running", "done": 0, "refused": 0, "expected": 3}
    ]
    assert bulk_metrics(run) == [1, 0, 3, 0, 0]
    run("jobs", "requeue", 2)
    Worker(app).drain()
    assert bulk_metrics(run) == [0, 0, 0, 0, 0]
    shown = run("bulk", "show", 1)
    assert "requeued_already  1" in shown.out
    assert "job_type=scripted" in shown.out
    record = run("bulk", "show", 1, "--json").json
    assert (record["status"], record["done"], record["refusals"]) == ("done", 2, {"requeued_already": 1})
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
    run("dead", "ignore", "--all", "--yes", "--reason", "a test")
    run("jobs", "cancel", 4)
    assert "bulk 1 (ignore): 0 of 3 jobs; stopped: see `effects bulk show 1`" in run("status").out
    shown = run("bulk", "show", 1).out
    assert "stopped" in shown
    assert bulk_metrics(run) == [0, 1, 3, 0, 0]
    assert "`effects jobs requeue 4` continues it" in shown
    assert run("jobs", "requeue", 4).exit_code == 0
    Worker(app).drain()
    assert "done" in run("bulk", "show", 1).out
    assert run("dead", "list").out == "no unresolved dead letters\n"
