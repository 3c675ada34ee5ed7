"""`effects dead`: what it lists, and that nothing happens to many without a word."""

from __future__ import annotations

import pytest

from effects import Effects, Refused, Unknown, enqueue
from effects.operate import bulk
from tests.cli.conftest import Run
from tests.conftest import AppFactory
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.scripted import Scripted


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


def dead(app: Effects, key: str, *, code: str = "refused", unknown: bool = False, **options: str) -> int:
    job_type = "held" if unknown else "scripted"
    enqueue(job_type, {"name": f"secret of {key}"}, key=key or None, effects=app, **options)  # type: ignore[arg-type]
    manual_worker = ManualWorker(app, f"manual of {key}")
    job = manual_worker.claim_one()
    manual_worker.settle((job, Unknown("no reply") if unknown else Refused(f"{key} said no", code=code)))
    return job.id


def test_list_and_its_filters(app: Effects, run: Run) -> None:
    assert run("dead", "list").out == "no unresolved dead letters\n"
    card = dead(app, "a", code="card", limit_key="webhook:ep_1")
    held = dead(app, "b", unknown=True)

    def ids(*options: object) -> list[int]:
        return [letter["id"] for letter in run("dead", "list", "--json", *options).json]

    assert ids() == [held, card]
    assert ids("--type", "held") == [held]
    assert ids("--code", "card") == ids("--text", "A SAID") == ids("--endpoint", "ep_1") == [card]
    assert ids("--unknown") == [held]
    assert ids("--known") == [card]
    assert ids("--older", "1h") == []
    assert ids("--newer", "1h") == [held, card]
    assert ids("--limit", 1) == [held]
    assert ids("--resolved") == []
    assert run("dead", "list", "--resolved").out == "no resolved dead letters\n"
    text = run("dead", "list").out
    assert "unknown" in text
    assert "webhook:ep_1" in text
    assert "secret" not in text
    assert "is not a length of time" in error_line(run("dead", "list", "--older", "soon"))


def test_pages_follow_each_other(app: Effects, run: Run) -> None:
    """The next page begins behind the last job of this one, also when that one was resolved meanwhile."""
    newest_first = [dead(app, key) for key in "abcde"][::-1]

    def pages(*options: object) -> list[int]:
        ids: list[int] = []
        while page := run("dead", "list", "--json", "--limit", 2, *options, *(["--before", ids[-1]] if ids else [])):
            ids += [letter["id"] for letter in page.json]
            assert (f"--before {ids[-1]} shows older ones" in page.err) == bool(page.err)
            if not page.err:
                break
        return ids

    assert pages() == newest_first
    run("dead", "ignore", newest_first[1], "--reason", "known")
    left = [json_row["id"] for json_row in run("dead", "list", "--before", newest_first[1], "--json").json]
    assert left == newest_first[2:]
    for job_id in (newest_first[4], newest_first[0]):
        run("dead", "ignore", job_id, "--reason", "known")
    assert pages("--resolved") == [newest_first[0], newest_first[4], newest_first[1]]
    assert pages() == newest_first[2:4]


def test_show_has_every_attempt_of_the_whole_chain(app: Effects, run: Run) -> None:
    first = dead(app, "a")
    second = next(iter(run("dead", "requeue", first, "--reason", "fixed", "--json").json["done"].values()))
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("still no")))
    shown = run("dead", "show", second, "--json")
    assert [(attempt["job_id"], attempt["message"]) for attempt in shown.json["facts"]["attempts"]] == [
        (first, "a said no"),
        (second, "still no"),
    ]
    assert [(action["job_id"], action["action"], action["reason"]) for action in shown.json["facts"]["actions"]] == [
        (first, "requeue", "fixed")
    ]
    text = run("dead", "show", second).out
    assert "still no" in text
    assert "secret" not in text + shown.out


def test_requeue_by_id_acts_immediately_and_only_once(app: Effects, run: Run) -> None:
    first, second = dead(app, "a"), dead(app, "b")
    answer = run("dead", "requeue", first, second)
    assert answer.exit_code == 0
    assert answer.out.count(": requeued as job ") == 2
    assert len(rows(app, "jobs")) == 2
    again = run("dead", "requeue", first)
    assert again.exit_code == 1
    assert again.out.startswith(f"refused: job {first} was requeued already")
    assert run("dead", "list", "--json").json == []


def test_filters_preview_and_act_with_yes(app: Effects, run: Run) -> None:
    ids = [dead(app, key, code="card") for key in "abc"]
    last = dead(app, "d")
    preview = run("dead", "requeue", "--code", "card")
    assert preview.exit_code == 0
    preview_json = run("dead", "requeue", "--code", "card", "--yes", "--dry-run", "--json").json
    as_of = preview_json.pop("as_of")
    assert preview_json == {"preview": True, "jobs": 3, "at_least": False, "newest": ids[::-1], "job_ids": ids}
    assert "3 would be requeued; nothing was done (use --yes; with --as-of " in preview.out
    assert run("dead", "requeue", "--all", "--as-of", as_of, "--dry-run", "--json").json["job_ids"] == [*ids, last]
    assert run("dead", "requeue", "--all", "--as-of", "2026-01-01", "--yes").out == "no jobs match\n"
    assert rows(app, "jobs") == []
    done = run("dead", "requeue", "--code", "card", "--limit", 2, "--yes", "--json").json
    assert list(done["done"]) == [str(ids[1]), str(ids[2])]
    assert sorted(letter["id"] for letter in run("dead", "list", "--json").json) == [ids[0], last]
    assert run("dead", "requeue", "--all", "--yes").exit_code == 0
    assert run("dead", "requeue", "--all", "--yes").out == "no jobs match\n"
    assert {action["actor"].split(":")[0] for action in rows(app, "job_actions")} == {"cli"}


def test_list_and_causes_have_one_word_for_an_effect(app: Effects, run: Run) -> None:
    dead(app, "a")
    assert ["  not done  " in run("dead", command).out for command in ("list", "causes")] == [True, True]


def test_an_action_needs_ids_or_filters_and_not_both(app: Effects, run: Run) -> None:
    first = dead(app, "a")
    for options in ((), (first, "--all"), (first, "--code", "refused")):
        assert "give IDs, or filters, or --all" in error_line(run("dead", "requeue", *options))
    assert rows(app, "jobs") == []


def test_more_than_100_jobs_become_a_bulk_action(app: Effects, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "INLINE_MAX", 2)
    for key in "abc":
        dead(app, key, code="card")
    assert run("bulk", "list").out == "no bulk actions\n"
    started = run("dead", "requeue", "--code", "card", "--yes", "--reason", "fixed")
    assert started.out == "bulk 1 started: 3 jobs to be requeued by job 4; see `effects bulk show 1`\n"
    assert len(rows(app, "jobs")) == 1
    [listed] = run("bulk", "list", "--json").json
    assert (listed["id"], listed["status"], listed["expected"], listed["reason"]) == (1, "running", 3, "fixed")
    assert "error_code=card" in run("bulk", "show", 1).out
    assert (
        run("bulk", "cancel", 1, "--reason", "wait").out
        == "bulk 1 cancelled: 0 jobs were done, 0 refused, 3 are left\n"
    )
    again = run("bulk", "cancel", 1)
    assert error_line(again, 1) == "error: bulk 1 is cancelled: only a running one can be cancelled"
    assert run("bulk", "show", 2).exit_code == 2
    assert run("bulk", "list", "--status", "running", "--json").json == []
    document = run("dead", "requeue", "--code", "card", "--yes", "--json").json
    assert document == {"bulk_id": 2, "job_id": 5, "expected": 3, "counted_all": True, "result": "started"}


def test_ignore_needs_a_reason(app: Effects, run: Run) -> None:
    first = dead(app, "a")
    assert "--reason" in error_line(run("dead", "ignore", first))
    assert run("dead", "ignore", first, "--reason", "a test order").out == f"job {first}: ignored\n"
    noted = row(app, "job_actions")
    assert (noted["action"], noted["reason"]) == ("ignore", "a test order")
    assert "already resolved" in run("dead", "ignore", first, "--reason", "again").out
    assert [letter["id"] for letter in run("dead", "list", "--resolved", "--json").json] == [first]


def test_what_may_have_happened_is_resolved_and_not_requeued_blindly(app: Effects, run: Run) -> None:
    first, second, third = (dead(app, key, unknown=True) for key in "abc")
    certain = dead(app, "d")
    keyless = dead(app, "", unknown=True)
    refused = run("dead", "requeue", "--all", "--yes", "--json")
    assert refused.exit_code == 1
    assert list(refused.json["done"]) == [str(certain)]
    assert list(refused.json["refused"]) == [str(job_id) for job_id in (first, second, third, keyless)]
    assert f"`effects dead resolve {first} --as mark-done`" in refused.json["refused"][str(first)]
    run("dead", "resolve", keyless, "--as", "give-up")

    assert run("dead", "resolve", first, "--as", "mark-done").out == f"job {first}: marked as done\n"
    assert run("dead", "resolve", second, "--as", "give-up", "--reason", "too late").exit_code == 0
    assert ": requeued as job" in run("dead", "resolve", third, "--as", "requeue").out
    states = {effect["key"]: effect["state"] for effect in rows(app, "effect_ledger")}
    assert states == {"a": "done", "b": "unknown", "c": "unknown", "d": "intended"}
    assert run("dead", "list", "--json").json == []
    assert run("audit").exit_code == 0


def test_a_bulk_resolve_takes_only_what_is_unknown(app: Effects, run: Run) -> None:
    unknown = dead(app, "a", unknown=True)
    dead(app, "b")
    done = run("dead", "resolve", "--all", "--as", "mark-done", "--yes", "--json").json
    assert (list(done["done"]), done["refused"]) == ([str(unknown)], {})


@pytest.mark.slow
def test_a_type_that_repeats_by_itself_is_requeued_from_unknown_too(app: Effects, run: Run, process: Run) -> None:
    job_id = enqueue("scripted", {}, key="k", max_attempts=1, effects=app).job_id
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Unknown("no reply")))
    assert [letter["unknown"] for letter in run("dead", "list", "--json").json] == [True]
    third_party = run("dead", "requeue", job_id)  # this command's app does not know the type
    assert third_party.exit_code == 1
    assert "may have happened" in third_party.out
    assert process("--app", "tests.cli.shop_app:app", "dead", "requeue", job_id).exit_code == 0
    assert len(rows(app, "jobs")) == 1
