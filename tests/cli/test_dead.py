"""`effects dead`: what it lists."""

from __future__ import annotations

import pytest

from effects import Effects, Refused, Unknown, enqueue
from tests.cli.conftest import Run
from tests.conftest import AppFactory
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker
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
    assert ids("--code", "card") == ids("--text", "A SAID") == ids("--limit-key", "ep_1") == [card]
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
    run("resolve", newest_first[1], "--as", "give-up", "--reason", "known")
    left = [json_row["id"] for json_row in run("dead", "list", "--before", newest_first[1], "--json").json]
    assert left == newest_first[2:]
    for job_id in (newest_first[4], newest_first[0]):
        run("resolve", job_id, "--as", "give-up", "--reason", "known")
    assert pages("--resolved") == [newest_first[0], newest_first[4], newest_first[1]]
    assert pages() == newest_first[2:4]


def test_list_and_causes_have_one_word_for_an_effect(app: Effects, run: Run) -> None:
    dead(app, "a")
    assert ["  not done  " in run("dead", command).out for command in ("list", "causes")] == [True, True]
