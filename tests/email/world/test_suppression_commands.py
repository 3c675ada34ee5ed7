"""`effects email suppressions`: what an operator sees and does, and that it is on record who did."""

from __future__ import annotations

import pytest

from effects import Effects
from effects.cli.context import actor
from effects_email.suppression import suppress, suppressed
from tests.cli.conftest import Run, _logging, run
from tests.cli.test_main import error_line
from tests.email.world.conftest import KEYS, NEWEST_KEYS

__all__ = ["_logging", "run"]
ANN = "Ann@example.com"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", KEYS)


def test_an_address_is_added_shown_and_removed(run: Run, mail: Effects) -> None:
    base = ("email", "suppressions")
    assert run(*base, "list").out == "nobody is suppressed\n"
    assert run(*base, "add", ANN, "--why", "asked on the phone").out == f"{ANN}: no more mail\n"
    assert run(*base, "add", "bo@example.com", "--category", "news", "--until", "2099-01-31", "--why", "asked").out == (
        "bo@example.com: no more mail of the category news\n"
    )
    listed = run(*base, "list").out.splitlines()
    assert listed[0].split() == ["address", "scope", "reason", "until", "source", "actor", "why", "created_at"]
    assert [line.split()[:3] for line in listed[1:]] == [["bo@example.com", "news", "manual"], [ANN, "all", "manual"]]
    shown = run(*base, "show", "ann@EXAMPLE.com")
    assert shown.exit_code == 0
    assert "asked on the phone" in shown.out
    assert actor() in shown.out
    assert "suppressed" in shown.out
    assert run(*base, "remove", ANN, "--why", "changed her mind").out == "1 removed\n"
    gone = run(*base, "show", ANN)
    assert (gone.exit_code, gone.out.splitlines()[0]) == (1, "nothing holds: the address is written to")
    assert "changed her mind" in gone.out
    assert run(*base, "remove", ANN, "--why", "again").exit_code == 1
    with mail.store.read() as connection:
        assert suppressed(mail, connection, [(ANN, None), ("bo@example.com", "news")]) == [None, "manual"]


def test_scripts_get_json(run: Run, mail: Effects) -> None:
    base = ("email", "suppressions")
    added = run(*base, "add", ANN, "--reason", "complaint", "--why", "a letter", "--json").json
    assert added == {"address": ANN, "scope": "all", "reason": "complaint"}
    [listed] = run(*base, "list", "--reason", "complaint", "--json").json
    assert (listed["address"], listed["reason"], listed["until"], listed["why"], listed["source"]) == (
        ANN, "complaint", None, "a letter", "cli",
    )  # fmt: skip
    assert run(*base, "list", "--category", "news", "--json").json == []
    shown = run(*base, "show", ANN, "--json").json
    assert [line["action"] for line in shown["log"]] == ["suppressed"]
    assert run(*base, "remove", ANN, "--reason", "manual", "--why", "x", "--json").json == {
        "address": ANN,
        "removed": 0,
    }
    assert run(*base, "remove", ANN, "--why", "x", "--json").json == {"address": ANN, "removed": 1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "nobody", "--why", "x"), "local@domain"),
        (("add", ANN), "--why"),
        (("add", ANN, "--why", "x", "--until", "tomorrow"), "--until is no time"),
        (("add", ANN, "--why", "x", "--until", "2020-01-01"), "has passed"),
        (("add", ANN, "--why", "x", "--reason", "unsubscribe"), "from a category"),
        (("add", ANN, "--why", "x", "--reason", "whim"), "whim"),
        (("remove", ANN), "--why"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_said_in_one_line(run: Run, mail: Effects, arguments: tuple[str, ...], says: str) -> None:
    answer = run("email", "suppressions", *arguments)
    assert says in error_line(answer)


def test_a_long_list_is_cut_and_says_so(run: Run, mail: Effects) -> None:
    for number in range(4):
        suppress(f"u{number}@example.com", effects=mail)
    cut = run("email", "suppressions", "list", "--limit", "3")
    assert (len(cut.out.splitlines()), cut.err) == (4, "There are more than 3: give --limit.\n")
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
