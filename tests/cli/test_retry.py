"""`effects retry`, `cancel` and `resolve`: what a name means, what a preview says, and that nothing is done unasked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from effects import Done, Effects, Refused, Retry, Unknown, enqueue
from effects.cli import bulk
from effects.kit.exit_codes import ExitCode
from tests.cli.conftest import Run, effects
from tests.conftest import AppFactory
from tests.support.commands import command, error_line
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.scripted import Scripted


class Picky(Scripted):
    """Its package knows a code that no retry helps against."""

    def why_retry_fails(self, error_code: str | None) -> str | None:
        return "the number is taken" if error_code == "taken" else None


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold"), Picky("picky")])


@pytest.fixture
def run(app: Effects) -> Run:
    """With the app's own job types."""
    return partial(command, app)


def put(app: Effects, key: str, job_type: str = "scripted", **options: object) -> int:
    return enqueue(job_type, {"name": f"secret of {key}"}, key=key or None, effects=app, **options).job_id  # type: ignore[arg-type]


def dead(app: Effects, key: str, *, code: str = "refused", job_type: str = "scripted", **options: object) -> int:
    unknown = job_type == "held"
    put(app, key, job_type, **options)
    manual_worker = ManualWorker(app, f"manual of {key}")
    job = manual_worker.claim_one()
    manual_worker.settle((job, Unknown("no reply") if unknown else Refused(f"{key} said no", code=code)))
    return job.id


def put_off(app: Effects, key: str, **options: object) -> int:
    put(app, key, **options)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    manual_worker.settle((job, Retry("busy", code="busy", after_seconds=3600)))
    return job.id


# -- retry: one name -------------------------------------------------------------------------------------------


def test_an_ended_job_is_retried_as_a_new_one_and_only_once(app: Effects, run: Run) -> None:
    first = dead(app, "a")
    successor = run("retry", first, "--reason", "fixed", "--json").json
    assert (successor["requeued_from"], successor["result"]) == (first, "queued")
    again = run("retry", first)
    assert f"job {first} was retried already: job {successor['job_id']} is queued" in error_line(again, 1)
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), Done()))
    assert "only --even-if-done makes it once more" in error_line(run("retry", "a"), ExitCode.FINDINGS)
    assert run("retry", "a", "--even-if-done").exit_code == 0
    assert [action["action"] for action in rows(app, "job_actions")] == ["requeue", "requeue", "even_if_done"]
    assert row(app, "job_actions", "id = 1")["reason"] == "fixed"


def test_a_waiting_job_is_due_now(app: Effects, run: Run) -> None:
    job_id = put(app, "k", run_at=datetime.now(UTC) + timedelta(days=1))
    assert run("retry", "k", "--json").json["result"] == "due"
    assert ManualWorker(app).claim_one().id == job_id
    assert "only a waiting job can be run now" in error_line(run("retry", job_id), ExitCode.FINDINGS)


def test_what_may_have_happened_needs_a_word(app: Effects, run: Run) -> None:
    """Nobody is asked, terminal or not: it ends with 1, says why, and names the option and the other decision."""
    job_id = dead(app, "a", job_type="held")
    refusal = error_line(run("retry", "a"), ExitCode.FINDINGS)
    assert "may have happened" in refusal
    assert f"`effects retry {job_id} --even-if-done`" in refusal
    assert f"`effects resolve {job_id} --as done`" in refusal
    assert rows(app, "jobs") == []
    assert run("retry", "a", "--even-if-done").exit_code == 0
    assert [action["action"] for action in rows(app, "job_actions")] == ["requeue", "even_if_unknown"]


def test_a_retry_that_cannot_help_says_so(app: Effects, run: Run) -> None:
    dead(app, "a", job_type="picky", code="taken")
    assert run("retry", "a").out == "job 1 retried as job 2. It is likely to end as before: the number is taken\n"


def test_several_names_and_a_refusal_among_them(app: Effects, run: Run) -> None:
    first, second = dead(app, "a"), dead(app, "b", job_type="held")
    answer = run("retry", first, "b")
    assert answer.exit_code == ExitCode.FINDINGS
    assert answer.out.splitlines()[0] == f"job {first} retried as job 3"
    assert answer.out.splitlines()[1].startswith(f"refused: the effect of job {second} may have happened")


def test_a_number_that_is_a_job_and_a_key_is_refused(app: Effects, run: Run) -> None:
    """An order's number and a job's look alike."""
    first = dead(app, "a")
    second = dead(app, str(first))
    refusal = error_line(run("retry", first))
    assert "'1' may mean several effects: give job:1 for the job, --key 1 for the effect" in refusal
    assert run("retry", "--key", first, "--json").json["requeued_from"] == second
    assert run("retry", f"job:{first}", "--json").json["requeued_from"] == first


def test_a_key_of_two_job_types_needs_the_type(app: Effects, run: Run) -> None:
    dead(app, "k")
    held = dead(app, "k", job_type="held")
    assert "give --type: held, scripted" in error_line(run("resolve", "k", "--as", "done"))
    assert run("resolve", "k", "--type", "held", "--as", "done").out == f"job {held}: marked as done\n"


def test_a_name_that_nothing_has(run: Run) -> None:
    for words in (("retry",), ("cancel",), ("resolve", "--as", "done")):
        assert "no job and no effect is named 'order:7'" in error_line(run(*words, "order:7"))
        assert "no job and no effect is named '4711'" in error_line(run(*words, 4711))


def test_names_or_filters(app: Effects, run: Run) -> None:
    first = dead(app, "a")
    for words in (("retry",), ("cancel",), ("resolve", "--as", "done")):
        assert "give a KEY or an ID, or filters, or --all" in error_line(run(*words))
        for filtered in (("--all",), ("--code", "refused"), ("--limit", 1)):
            assert "give names, or filters" in error_line(run(*words, first, *filtered))
    assert "'dead' is not one of" in error_line(run("cancel", "--status", "dead"))
    assert rows(app, "jobs") == []


# -- retry: filters ----------------------------------------------------------------------------------------------


def test_a_preview_counts_by_action_and_cause(app: Effects, run: Run) -> None:
    card = [dead(app, key, code="card") for key in "ab"]
    dead(app, "c", job_type="picky", code="taken")
    dead(app, "d", job_type="held")
    waiting = put_off(app, "e")
    preview = run("retry", "--all")
    assert preview.exit_code == 0
    lines = [line.split() for line in preview.out.splitlines()]
    assert lines[1:5] == [
        ["2", "retry", "scripted", "card", "not", "done"],
        ["1", "leave", "alone", "held", "unknown", "unknown"],
        ["1", "retry", "picky", "taken", "not", "done"],
        ["1", "make", "due", "now", "scripted", "busy", "waits"],
    ]
    assert "A retry of picky, taken, cannot help: the number is taken" in preview.out
    assert "1 may have happened, and are left alone: decide with `effects resolve`" in preview.out
    assert "3 to retry, 1 to make due now. Nothing was done: use --yes (with --as-of " in preview.out
    document = run("retry", "--code", "card", "--yes", "--dry-run", "--json").json
    assert [(part["action"], part["job_ids"]) for part in document["parts"]] == [("retry", card), ("make_due_now", [])]
    assert len(rows(app, "jobs")) == 1

    done = run("retry", "--all", "--yes")
    assert done.exit_code == ExitCode.FINDINGS  # one was left alone
    assert done.out.count(": retried as job ") == 3
    assert f"job {waiting}: made due now" in done.out
    assert "refused: the effect of job 4 may have happened" in done.out
    assert run("retry", "--all", "--even-if-done", "--yes").out.startswith("job 4: retried as job ")
    assert {action["actor"].split(":")[0] for action in rows(app, "job_actions")} == {"cli"}


def test_a_preview_is_acted_on_as_it_was(app: Effects, run: Run) -> None:
    ids = [dead(app, key, code="card") for key in "ab"]
    as_of = run("retry", "--code", "card", "--json").json["as_of"]
    late = dead(app, "c", code="card")
    done = run("retry", "--code", "card", "--as-of", as_of, "--yes", "--json").json
    assert list(done["parts"][0]["done"]) == [str(job_id) for job_id in ids]
    assert [letter["id"] for letter in run("dead", "list", "--json").json] == [late]
    assert run("retry", "--all", "--as-of", "2026-01-01", "--yes").out == "no jobs match\n"


def test_the_newest_n(app: Effects, run: Run) -> None:
    ids = [dead(app, key, code="card") for key in "abc"]
    put_off(app, "d")
    preview = run("retry", "--all", "--limit", 2, "--json").json
    assert [part["job_ids"] for part in preview["parts"]] == [ids[1:], []]
    assert [part["jobs"] for part in run("retry", "--all", "--limit", 4, "--json").json["parts"]] == [3, 1]
    done = run("retry", "--all", "--limit", 2, "--yes", "--json").json
    assert list(done["parts"][0]["done"]) == [str(job_id) for job_id in ids[1:]]


def test_a_status_chooses_the_action(app: Effects, run: Run) -> None:
    refused, later = dead(app, "a"), put_off(app, "b")
    put(app, "c")
    run("resolve", refused, "--as", "give-up", "--reason", "a test")
    assert run("retry", "--status", "retrying", "--yes").out == f"job {later}: made due now\n"
    assert run("retry", "--all", "--status", "dead", "--yes").out == f"job {refused}: retried as job 4\n"
    assert run("retry", "--status", "failed").exit_code == ExitCode.ERROR


def test_a_limit_key_is_a_filter(app: Effects, run: Run) -> None:
    ended, waiting = dead(app, "a", limit_key="partner"), put_off(app, "b", limit_key="partner")
    dead(app, "c")
    preview = run("retry", "partner", "--json").json
    assert [part["job_ids"] for part in preview["parts"]] == [[ended], [waiting]]
    assert run("retry", "--limit-key", "partner", "--json").json["parts"] == preview["parts"]
    assert run("retry", "partner", "--newer", "1h", "--yes").exit_code == 0
    assert [part["job_ids"] for part in run("cancel", "partner", "--json").json["parts"]] == [[waiting, 4]]
    assert "is given alone" in error_line(run("retry", "partner", "a"))


def test_over_1000_jobs_become_a_bulk_action(app: Effects, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bulk.AT_ONCE == 1000
    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    for key in "abc":
        dead(app, key, code="card")
    assert run("bulk", "list").out == "no bulk actions\n"
    started = run("retry", "--code", "card", "--yes", "--reason", "fixed")
    assert started.out == "bulk 1 started: 3 jobs to retry, by job 4; see `effects bulk show 1`\n"
    assert len(rows(app, "jobs")) == 1
    [listed] = run("bulk", "list", "--json").json
    assert (listed["id"], listed["status"], listed["expected"], listed["reason"]) == (1, "running", 3, "fixed")
    assert "error_code=card" in run("bulk", "show", 1).out
    cancelled = run("bulk", "cancel", 1, "--reason", "wait").out
    assert cancelled == "bulk 1 cancelled: 0 jobs were done, 0 refused, 3 are left\n"
    assert error_line(run("bulk", "cancel", 1), 1) == "error: bulk 1 is cancelled: only a running one can be cancelled"
    assert run("bulk", "show", 2).exit_code == 2
    assert run("bulk", "list", "--status", "running", "--json").json == []


def test_a_type_that_repeats_by_itself_is_retried_from_unknown_too(app: Effects, run: Run, database_url: str) -> None:
    job_id = put(app, "k", max_attempts=1)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Unknown("no reply")))
    assert [letter["unknown"] for letter in run("dead", "list", "--json").json] == [True]
    third_party = effects("retry", job_id, database_url=database_url)  # this command's app does not know the type
    assert "may have happened" in error_line(third_party, ExitCode.FINDINGS)
    assert run("retry", job_id).exit_code == 0
    assert len(rows(app, "jobs")) == 1


# -- cancel ------------------------------------------------------------------------------------------------------


def test_cancel(app: Effects, run: Run) -> None:
    job_id = put(app, "k")
    assert run("cancel", job_id).out == f"job {job_id} cancelled\n"
    assert row(app, "job_history")["status"] == "cancelled"
    assert str(row(app, "job_actions")["actor"]).startswith("cli:")
    assert f"job {job_id} is cancelled: only a live job" in error_line(run("cancel", job_id), ExitCode.FINDINGS)
    assert "only a live job can be cancelled" in error_line(run("cancel", "k"), ExitCode.FINDINGS)


def test_cancel_by_key_tells_whether_it_was_in_time(app: Effects, run: Run) -> None:
    job_id = put(app, "k", run_at=datetime.now(UTC) + timedelta(days=1))
    document = run("cancel", "k", "--reason", "paid", "--json").json
    assert document == {
        "job_id": job_id, "result": "cancelled", "prevented": True, "state": "abandoned", "unresolved": False,
    }  # fmt: skip
    put(app, "late")
    ManualWorker(app).claim_one()
    assert "its effect may happen" in run("cancel", "late").out


def test_cancel_of_a_running_job_asks_it_to_stop_and_names_what_may_remain(app: Effects, run: Run) -> None:
    job_id = put(app, "k", "held")
    worker = ManualWorker(app)
    job = worker.claim_one()
    answer = run("cancel", job_id)
    assert f"job {job_id} is running: asked to stop, will not be retried" in answer.out
    assert f"an unresolved dead letter remains: see `effects why {job_id}` then" in answer.out
    assert row(app, "jobs")["cancel_requested"]
    worker.settle((job, Unknown("no reply", code="lost")), released=True)
    assert f"`effects retry {job_id} --even-if-done`" in run("why", "k").out
    assert run("resolve", job_id, "--as", "retry").exit_code == 0


def test_a_cancelled_job_whose_effect_may_have_happened_names_the_decision(app: Effects, run: Run) -> None:
    """Before it was tried again it was unknown, and so it stays: the printed commands decide it."""
    job_id = put(app, "k", on_unknown="repeat")
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), Unknown("no reply", code="lost")), released=True)
    answer = run("cancel", job_id)
    resolve = f"effects resolve {job_id} --as done"
    assert answer.out.startswith(f"job {job_id} cancelled. Its effect may have happened")
    assert f"`{resolve}`" in answer.out
    assert f"`{resolve}`" in run("why", "k").out
    assert run(*resolve.split()[1:]).exit_code == 0
    assert "k (scripted) was done" in run("why", "k").out


def test_cancel_by_filters(app: Effects, run: Run) -> None:
    waiting = [put(app, key) for key in "ab"]
    preview = run("cancel", "--type", "scripted")
    assert preview.out.splitlines()[1].split() == ["2", "cancel", "scripted", "-", "waits"]
    assert len(rows(app, "jobs")) == 2
    done = run("cancel", "--type", "scripted", "--yes")
    assert done.out == "".join(f"job {job_id}: cancelled, or asked to stop\n" for job_id in waiting)
    assert rows(app, "jobs") == []


# -- resolve -----------------------------------------------------------------------------------------------------


def test_what_may_have_happened_is_decided(app: Effects, run: Run) -> None:
    first, second, third = (dead(app, key, job_type="held") for key in "abc")
    dead(app, "d")
    keyless = dead(app, "", job_type="held")
    run("resolve", keyless, "--as", "give-up")
    assert run("resolve", "a", "--as", "done").out == f"job {first}: marked as done\n"
    assert run("resolve", second, "--as", "give-up", "--reason", "too late").exit_code == 0
    assert run("resolve", third, "--as", "retry").out == f"job {third}: retried as job 6\n"
    states = {effect["key"]: effect["state"] for effect in rows(app, "effect_ledger")}
    assert states == {"a": "done", "b": "unknown", "c": "unknown", "d": "refused"}
    assert "already resolved" in error_line(run("resolve", first, "--as", "retry"), ExitCode.FINDINGS)
    refusal = error_line(run("resolve", "d", "--as", "done"), ExitCode.FINDINGS)
    assert "the effect of job 4 is not unknown: `effects retry 4` tries it again" in refusal
    assert run("audit").exit_code == 0


def test_what_did_not_happen_is_given_up_with_a_reason(app: Effects, run: Run) -> None:
    first = dead(app, "a")
    assert "give --reason" in error_line(run("resolve", first, "--as", "give-up"))
    assert run("resolve", first, "--as", "give-up", "--reason", "a test order").out == f"job {first}: given up\n"
    noted = row(app, "job_actions")
    assert (noted["action"], noted["reason"]) == ("ignore", "a test order")
    assert [letter["id"] for letter in run("dead", "list", "--resolved", "--json").json] == [first]


def test_many_are_decided_by_cause(app: Effects, run: Run) -> None:
    unknown, refused = dead(app, "a", job_type="held"), dead(app, "b", code="card")
    assert "2 to give up. Nothing was done" in run("resolve", "--all", "--as", "give-up").out
    done = run("resolve", "--all", "--as", "done", "--yes", "--json").json
    assert [(part["action"], list(part["done"])) for part in done["parts"]] == [("mark_as_done", [str(unknown)])]
    assert "give-up needs --reason" in error_line(run("resolve", "--code", "card", "--as", "give-up", "--yes"))
    given_up = run("resolve", "--code", "card", "--as", "give-up", "--yes", "--reason", "gone")
    assert given_up.out == f"job {refused}: given up\n"
    assert run("dead", "list").out == "no unresolved dead letters\n"
