"""`effects limits`: what it sets is what workers keep, and what it shows is what the rows say."""

from __future__ import annotations

import psycopg
import pytest

from effects import Effects, NewJob, enqueue_many
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, row, run_sql


def put(app: Effects, key: str, count: int = 1) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}, limit_key=key) for _ in range(count)], effects=app)


def test_what_is_set_is_shown_and_kept(app: Effects, run: Run) -> None:
    put(app, "domain", 5)
    said = run(
        "limits",
        "set",
        "domain",
        "--create",
        "--rate",
        "50/1s",
        "--in-flight",
        2,
        "--parent",
        "mail",
        "--breaker",
        "5/60s",
    )
    assert said.exit_code == 0
    assert said.out == "domain: 2 in flight, 50 per 1 s (burst 10), breaker 5 failures, 60 s, under mail\n"
    assert len(ManualWorker(app).claim()) == 2
    shown = run("limits", "show", "domain", "--json").json
    assert shown["limits"] == {
        "max_in_flight": 2, "rate": {"tokens": 50, "period_seconds": 1.0, "burst": 10}, "parent": "mail",
        "breaker": {"failures": 5, "seconds": 60.0},
    }  # fmt: skip
    assert (shown["breaker_state"], shown["running"], shown["waiting"]) == ("closed", 2, 3)
    [entry] = run("log", "--subject", "limit:domain", "--json").json
    assert (entry["action"], entry["via"], entry["detail"]["max_in_flight"]) == ("set", "cli", 2)
    listed = run("limits", "list", "--json").json
    assert [limit["limit_key"] for limit in listed] == ["domain", "mail"]
    assert (listed[1]["running"], listed[1]["waiting"]) == (2, 3)  # a parent stands for its children


def test_omitted_limits_keep_their_value_and_none_removes_them(app: Effects, run: Run) -> None:
    run("limits", "set", "k", "--create", "--rate", "5/m", "--in-flight", 2)
    assert run("limits", "set", "k", "--in-flight", 3).out == "k: 3 in flight, 5 per 60 s (burst 2)\n"
    assert run("limits", "set", "k", "--in-flight", "none").out == "k: 5 per 60 s (burst 2)\n"
    assert run("limits", "set", "k", "--rate", "none").out == "k: no limits\n"
    limit = row(app, "limits", "limit_key = 'k'")
    assert (limit["rate_tokens"], limit["rate_burst"], limit["max_in_flight"]) == (None, None, None)


@pytest.mark.slow
def test_a_pause_holds_until_it_is_resumed(app: Effects, run: Run) -> None:
    put(app, "webhook:ep_1", 2)
    said = run("limits", "pause", "webhook:ep_1", "--reason", "their release").out
    assert said == "webhook:ep_1 paused\n"
    manual_worker = ManualWorker(app)
    assert manual_worker.claim() == []
    app.store.shift_clock(365 * 86_400)
    manual_worker.heartbeat()
    assert manual_worker.claim() == []
    app.store.shift_clock(-365 * 86_400)
    assert "their release" in run("status").out
    assert "webhook:ep_1" in run("limits", "list", "--paused").out
    assert run("limits", "resume", "webhook:ep_1").out == "webhook:ep_1 resumed\n"
    assert run("limits", "resume", "webhook:ep_1").out == "webhook:ep_1 was not paused\n"
    assert run("limits", "list", "--paused").out == "no limits\n"
    assert len(manual_worker.claim()) == 2


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_resume_notifies_the_idle_workers(app: Effects, run: Run, database_url: str) -> None:
    run("limits", "pause", "k", "--create")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("LISTEN effects")
        run("limits", "resume", "k")
        [hint] = connection.notifies(timeout=30, stop_after=1)
    assert "default" in hint.payload.split(",")


def test_a_pause_for_a_time_ends_by_itself_and_is_never_shortened(app: Effects, run: Run) -> None:
    put(app, "k")
    first = run("limits", "pause", "k", "--for", "2h", "--json").json
    assert run("limits", "pause", "k", "--for", "15m", "--json").json["paused_until"][:16] == first["paused_until"][:16]
    manual_worker = ManualWorker(app)
    app.store.shift_clock(3600)
    manual_worker.heartbeat()
    assert manual_worker.claim() == []
    app.store.shift_clock(3601)
    manual_worker.heartbeat()
    assert len(manual_worker.claim()) == 1


def test_resume_closes_an_open_breaker(app: Effects, run: Run) -> None:
    run("limits", "set", "k", "--create", "--breaker", "1/60s")
    run_sql(
        app,
        "UPDATE effects_limits SET breaker_state = 'open', breaker_failures = 3, "
        f"paused_until = {app.store.sql.after('60')}, paused_from = {app.store.sql.now}, paused_seconds = 60",
    )
    assert run("limits", "show", "k", "--json").json["breaker_state"] == "open"
    run("limits", "resume", "k")
    shown = run("limits", "show", "k", "--json").json
    assert (shown["breaker_state"], shown["failures_in_a_row"], shown["paused_until"]) == ("closed", 0, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "unknown"), "there are no limits for the key 'unknown'"),
        (("resume", "unknown"), "there are no limits for the key 'unknown'"),
        (("set", "k", "--create", "--rate", "fast"), "a rate is written 50/1s"),
        (("set", "k", "--create", "--rate", "0/1s"), "a rate is at least 1 start"),
        (("set", "k", "--create", "--rate", "5/1s", "--burst", "6"), "the burst of this rate is 1 to 5"),
        (("set", "k", "--create", "--burst", "6"), "--burst belongs to a --rate"),
        (("set", "k", "--create", "--in-flight", "0"), "--in-flight is '0'"),
        (("set", "k", "--create", "--breaker", "5"), "a breaker is written 5/60s"),
        (("set", "k", "--create", "--parent", "k"), "cannot be its own parent"),
        (("set", "child", "--create", "--parent", "middle"), "'middle' has a parent itself"),
        (("set", "top", "--create", "--parent", "other"), "'top' is a parent itself"),
        (("pause", "k", "--for", "soon"), "'soon' is not a length of time"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused(app: Effects, run: Run, arguments: tuple[str, ...], words: str) -> None:
    run("limits", "set", "middle", "--create", "--parent", "top")
    refused = run("limits", *arguments)
    assert refused.exit_code == 2
    assert words in error_line(refused)


def test_a_mistyped_key_is_not_limited(app: Effects, run: Run) -> None:
    put(app, "webhook:ep_1234")
    for mistyped in (("webhook:ep_1243",), ("webhook:ep_1234", "--parent", "webhook:ep_1244")):
        line = error_line(run("limits", "set", *mistyped, "--in-flight", 2))
        assert f"the key {mistyped[-1]!r}; is it 'webhook:ep_1234'? (a new one: --create)" in line
    assert run("limits", "list", "--json").json == []
    assert run("limits", "set", "webhook:ep_1234", "--in-flight", 2).exit_code == 0
    assert "is it 'webhook:ep_1234'?" in error_line(run("limits", "show", "webhook:ep_1243"))


def test_a_mistyped_key_is_not_paused(app: Effects, run: Run) -> None:
    """In an incident the partner would go on being hit."""
    put(app, "webhook:ep_1234")
    line = error_line(run("limits", "pause", "webhook:ep_1243"))
    assert "no limits and no waiting job have the key 'webhook:ep_1243'; is it 'webhook:ep_1234'?" in line
    assert run("limits", "list", "--json").json == []
    assert run("limits", "pause", "webhook:ep_1243", "--create").exit_code == 0
    assert "is it 'webhook:ep_1243'?" in error_line(run("limits", "resume", "webhook:ep_1233"))
    assert run("limits", "pause", "webhook:ep_1234").exit_code == 0
