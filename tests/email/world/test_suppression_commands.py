"""`effects email suppressions`: what an operator sees and does, and that it is on record who did."""

from __future__ import annotations

import pytest

from effects import Effects
from effects.cli.context import actor
from effects_email.suppression import suppress, suppressed
from tests.cli.conftest import Run, _logging, run
from tests.email.world.conftest import KEYS, NEWEST_KEYS
from tests.support.commands import error_line

__all__ = ["_logging", "run"]
ANN = "Ann@example.com"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", KEYS)


def test_an_address_is_added_shown_and_removed(run: Run, mail: Effects) -> None:
    base = ("email", "suppressions")
    assert run(*base, "list").out == "no suppressions\n"
    assert run(*base, "add", ANN, "--reason", "asked on the phone").out == f"{ANN}: no more mail\n"
    assert run(
        *base, "add", "bo@example.com", "--category", "news", "--until", "2099-01-31", "--reason", "asked"
    ).out == ("bo@example.com: no more mail of the category news\n")
    listed = run(*base, "list").out.splitlines()
    assert listed[0].split() == ["address", "scope", "cause", "until", "source", "actor", "reason", "created"]
    assert [line.split()[:3] for line in listed[1:]] == [["bo@example.com", "news", "manual"], [ANN, "all", "manual"]]
    shown = run(*base, "show", "ann@EXAMPLE.com")
    assert shown.exit_code == 0
    assert "asked on the phone" in shown.out
    assert actor() in shown.out
    assert "suppressed" in shown.out
    assert run(*base, "remove", ANN, "--reason", "changed her mind").out == "1 removed\n"
    gone = run(*base, "show", ANN)
    assert (gone.exit_code, gone.out.splitlines()[0]) == (1, "no suppressions")
    assert "changed her mind" in gone.out
    assert run(*base, "remove", ANN, "--reason", "again").exit_code == 1
    with mail.store.read() as connection:
        assert suppressed(mail, connection, [(ANN, None), ("bo@example.com", "news")]) == [None, "manual"]


def test_scripts_get_json(run: Run, mail: Effects) -> None:
    base = ("email", "suppressions")
    added = run(*base, "add", ANN, "--cause", "complaint", "--reason", "a letter", "--json").json
    assert added == {"address": ANN, "scope": "all", "reason": "complaint"}
    [listed] = run(*base, "list", "--cause", "complaint", "--json").json
    assert (listed["address"], listed["reason"], listed["until"], listed["why"], listed["source"]) == (
        ANN, "complaint", None, "a letter", "cli",
    )  # fmt: skip
    assert run(*base, "list", "--category", "news", "--json").json == []
    shown = run(*base, "show", ANN, "--json").json
    assert [line["action"] for line in shown["log"]] == ["suppressed"]
    assert run(*base, "remove", ANN, "--cause", "manual", "--reason", "x", "--json").json == {
        "address": ANN,
        "removed": 0,
    }
    assert run(*base, "remove", ANN, "--reason", "x", "--json").json == {"address": ANN, "removed": 1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "nobody", "--reason", "x"), "local@domain"),
        (("add", ANN), "--reason"),
        (("add", ANN, "--reason", "x", "--until", "tomorrow"), "is not a time"),
        (("add", ANN, "--reason", "x", "--until", "2020-01-01"), "has passed"),
        (("add", ANN, "--reason", "x", "--cause", "unsubscribe"), "from a category"),
        (("add", ANN, "--reason", "x", "--cause", "whim"), "whim"),
        (("remove", ANN), "--reason"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_impossible_suppression_is_reported_in_one_line(
    run: Run, mail: Effects, arguments: tuple[str, ...], says: str
) -> None:
    answer = run("email", "suppressions", *arguments)
    assert says in error_line(answer)


def test_a_long_list_is_cut_and_marked_as_cut(run: Run, mail: Effects) -> None:
    for number in range(4):
        suppress(f"u{number}@example.com", effects=mail)
    cut = run("email", "suppressions", "list", "--limit", "3")
    assert (len(cut.out.splitlines()), cut.err) == (4, "There are more than 3: use --limit.\n")
    whole = run("email", "suppressions", "list", "--limit", "4")
    assert (len(whole.out.splitlines()), whole.err) == (5, "")


def test_without_the_key_the_list_shows_all_but_the_address(
    run: Run, mail: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    suppress(ANN, effects=mail)
    monkeypatch.setenv("EFFECTS_KEYS", NEWEST_KEYS)
    [listed] = run("email", "suppressions", "list", "--json").json
    assert (listed["address"], listed["reason"]) == (None, "manual")
    assert run("email", "suppressions", "show", ANN).exit_code == 0
