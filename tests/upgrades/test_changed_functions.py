"""A job function that has changed: rows of the old code in the new, and of the new in the old, while both work."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from effects import ConfigurationError, Effects, Schedule, status
from effects.app.job_function import JobFunction
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.manual_workers import row, rows

Code = Callable[[Effects, list[Any]], JobFunction[..., Any, Any]]
WRITTEN_AT = r"[a-z_]+\.<locals>\.label \(tests/upgrades/test_changed_functions\.py:\d+\)"


def of_before(app: Effects, printed: list[Any]) -> JobFunction[..., Any, Any]:
    @app.job("shop.label")
    def label(order: int, copies: int = 1) -> None:
        printed.append((order, copies))

    return label


def with_one_more(app: Effects, printed: list[Any]) -> JobFunction[..., Any, Any]:
    @app.job("shop.label")
    def label(order: int, copies: int = 2, size: str = "A4") -> None:
        printed.append((order, copies, size))

    return label


def with_one_that_is_needed(app: Effects, printed: list[Any]) -> JobFunction[..., Any, Any]:
    @app.job("shop.label")
    def label(order: int, size: str) -> None: ...

    return label


def of_another_type(app: Effects, printed: list[Any]) -> JobFunction[..., Any, Any]:
    @app.job("shop.label")
    def label(order: date, copies: int = 1) -> None: ...

    return label


class Releases:
    """Two releases of an app on one database, and what each has printed."""

    def __init__(self, factory: AppFactory, old: Code, new: Code) -> None:
        self.old, self.new = factory(job_types=[]), factory(job_types=[])
        self.printed_by_old: list[Any] = []
        self.printed_by_new: list[Any] = []
        self.old_label, self.new_label = old(self.old, self.printed_by_old), new(self.new, self.printed_by_new)

    def pass_time(self, seconds: float) -> None:
        for app in (self.old, self.new):
            app.store.shift_clock(seconds)


@pytest.fixture
def releases(app_factory: AppFactory, request: pytest.FixtureRequest) -> Releases:
    return Releases(app_factory, of_before, getattr(request, "param", with_one_more))


def test_a_row_of_the_old_code_has_the_new_codes_defaults(releases: Releases) -> None:
    releases.old_label.enqueue(order=1)
    releases.old_label.enqueue(order=2, copies=1)
    Worker(releases.new).drain()
    assert sorted(releases.printed_by_new) == [(1, 2, "A4"), (2, 1, "A4")]


def test_the_key_of_a_call_of_the_old_code_is_that_of_the_same_call_of_the_new(releases: Releases) -> None:
    releases.old_label.using(key="k").enqueue(order=1)
    assert releases.new_label.using(key="k").enqueue(order=1).existing


def test_a_row_of_the_new_code_waits_in_the_old_for_the_new(releases: Releases) -> None:
    releases.new_label.using(key="k").enqueue(order=1, size="A5")
    releases.new_label.enqueue(order=2)
    Worker(releases.old).drain()
    assert releases.printed_by_old == [(2, 1)]
    assert status(key="k", effects=releases.old).state == "intended"
    waiting = row(releases.old, "jobs")
    assert (waiting["status"], waiting["attempts"], waiting["error_code"]) == ("queued", 0, "argument_unknown")
    assert "it has no argument size: a newer release may carry it out" in command(releases.old, "why", "k").out
    releases.pass_time(120)
    Worker(releases.new).drain()
    assert releases.printed_by_new == [(1, 2, "A5")]


def test_what_no_release_carries_out_within_an_hour_dies_in_words(releases: Releases) -> None:
    releases.new_label.enqueue(order=1, size="A5")
    Worker(releases.old).drain()
    looks = 1
    while rows(releases.old, "jobs"):
        releases.pass_time(61)
        Worker(releases.old).drain()
        looks += 1
    assert 55 < looks < 70
    dead = row(releases.old, "job_history")
    assert (dead["status"], dead["error_code"]) == ("dead", "argument_unknown")
    assert dead["last_error"].startswith("shop.label, ")
    assert dead["last_error"].endswith("argument size, and within an hour no newer release has carried it out")


@pytest.mark.parametrize(
    ("releases", "words"),
    [
        (with_one_that_is_needed, "there is no argument `size`"),
        (of_another_type, r"Expected `date`, got `int` - at `\$\.order`"),
    ],
    indirect=["releases"],
    ids=["missing", "another type"],
)
def test_a_row_that_the_new_code_cannot_read_is_a_dead_letter(releases: Releases, words: str) -> None:
    releases.old_label.enqueue(order=1)
    Worker(releases.new).drain()
    dead = row(releases.new, "job_history")
    assert (dead["status"], dead["error_code"]) == ("dead", "payload_invalid")
    assert re.fullmatch(rf"shop\.label, {WRITTEN_AT}: the stored arguments are not valid: {words}", dead["last_error"])


@pytest.mark.parametrize(
    ("releases", "words"),
    [
        (with_one_that_is_needed, "there is no argument `size`"),
        (of_another_type, r"Expected `date`, got `int` - at `\$\.order`"),
    ],
    indirect=["releases"],
    ids=["missing", "another type"],
)
def test_a_schedule_of_the_old_arguments_is_refused_where_it_is_declared(releases: Releases, words: str) -> None:
    schedule = Schedule("labels", "shop.label", {"order": 1}, cron="0 3 * * *")
    releases.old.add_schedules(schedule)
    with pytest.raises(ConfigurationError, match=rf"schedule 'labels': shop\.label, {WRITTEN_AT}: .*{words}"):
        releases.new.add_schedules(schedule)


def test_a_stored_schedule_of_the_old_arguments_is_a_finding_of_the_doctor(app_factory: AppFactory) -> None:
    old, new = app_factory(job_types=[]), app_factory(job_types=[])
    of_before(old, [])
    with_one_that_is_needed(new, [])
    arguments = ("labels", "--type", "shop.label", "--cron", "0 3 * * *", "--payload", '{"order": 1}')
    assert command(old, "schedules", "add", *arguments, "--reason", "labels").exit_code == 0
    assert "there is no argument `size`" in command(new, "doctor").out
